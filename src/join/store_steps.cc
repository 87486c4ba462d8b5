// The steps of a start-up with a store that has only set() and get(): rank 0 collects the values of all ranks and publishes
// them together, so that a step takes three requests of each rank, not one for each pair.
#include <algorithm>
#include <charconv>
#include <cstddef>

#include <fmt/format.h>
#include <shoal/store.h>

#include "src/join/rank_names.h"
#include "src/join/startup_watch.h"
#include "src/join/text_list.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kMissingRankTimeout = std::chrono::milliseconds(300);
constexpr std::size_t kMaxPieceBytes = 512 << 10;  // a store's value has at most 1 MiB

// The first byte of a value: before a rank's contribution, or before the reason of a rank that takes no part.
constexpr char kContribution = '+';
constexpr char kRefusal = '-';

std::string key_of(const GatherStep& step, int rank) { return fmt::format("step/{}/{}", step.number, rank); }
std::string piece_of(const GatherStep& step, std::size_t piece) { return fmt::format("{}/{}", key_of(step, 0), piece); }
std::string left_key(int rank) { return fmt::format("left/{}", rank); }

Status malformed(int rank) { return {StatusCode::internal, fmt::format("rank {} published a malformed value", rank)}; }

/// What a value that is no contribution means.
Status meaning_of(std::string_view value, int rank) {
  return value.starts_with(kRefusal) ? Status(StatusCode::aborted, std::string(value.substr(1))) : malformed(rank);
}

Status late(const GatherStep& step, int rank, const Status& of_store) {
  if (of_store.code() != StatusCode::timeout) return of_store;
  return {StatusCode::timeout, fmt::format("{}: {}", missing_ranks({rank}, 1, step.size), of_store.message())};
}

Result<std::string> fetch(Store& store, const GatherStep& step, int rank, std::string_view key, Clock::time_point deadline) {
  startup_waits_for(fmt::format("rank {} (step '{}')", rank, step.name));
  auto value = store.get_from(rank, key, deadline);
  if (!value.ok()) return late(step, rank, value.status());
  return value;
}

// The first piece has the number of pieces and is published last.
Status publish(Store& store, const GatherStep& step, std::string_view joined) {
  const std::size_t pieces = joined.size() / kMaxPieceBytes + 1;
  for (std::size_t piece = pieces - 1; piece > 0; --piece) {
    const auto part = joined.substr(piece * kMaxPieceBytes, kMaxPieceBytes);
    if (Status status = store.set(piece_of(step, piece), part); !status.ok()) return status;
  }
  return store.set(key_of(step, 0), fmt::format("{}{} {}", kContribution, pieces, joined.substr(0, kMaxPieceBytes)));
}

// On rank 0.
Result<std::vector<std::string>> collect(Store& store, const GatherStep& step, std::string_view mine,
                                         Clock::time_point deadline) {
  std::vector<std::string> all{std::string(mine)};
  for (int rank = 1; rank < step.size; ++rank) {
    const auto value = fetch(store, step, rank, key_of(step, rank), deadline);
    if (!value.ok()) return value.status();
    if (!value->starts_with(kContribution)) {
      if (value->starts_with(kRefusal)) static_cast<void>(store.set(key_of(step, 0), *value));  // all others wait for rank 0
      return meaning_of(*value, rank);
    }
    all.push_back(value->substr(1));
  }
  if (Status status = publish(store, step, join_texts(all)); !status.ok()) return status;
  return all;
}

// Rank 0 did not publish a step before the deadline: names the rank whose contribution it waits for.
Status missing_rank(Store& store, const GatherStep& step, const Status& of_rank_0) {
  const auto until = Clock::now() + kMissingRankTimeout;
  for (int rank = 1; rank < step.size; ++rank) {
    const auto value = store.get_from(rank, key_of(step, rank), until);
    if (!value.ok()) return late(step, rank, value.status());
  }
  return late(step, 0, of_rank_0);
}

// On all other ranks: what rank 0 has collected.
Result<std::vector<std::string>> receive(Store& store, const GatherStep& step, Clock::time_point deadline) {
  startup_waits_for(fmt::format("rank 0, which collects the step '{}' of all ranks", step.name));
  const auto first = store.get_from(0, key_of(step, 0), deadline);
  if (!first.ok())
    return first.status().code() == StatusCode::timeout ? missing_rank(store, step, first.status()) : first.status();
  if (!first->starts_with(kContribution)) return meaning_of(*first, 0);
  std::size_t pieces = 0;
  const char* const end = std::from_chars(first->data() + 1, first->data() + first->size(), pieces).ptr;
  std::string joined(end, first->data() + first->size());
  for (std::size_t piece = 1; piece < pieces; ++piece) {
    const auto part = fetch(store, step, 0, piece_of(step, piece), deadline);
    if (!part.ok()) return part.status();
    joined += *part;
  }
  auto all = split_texts(std::string_view(joined).substr(std::min<std::size_t>(joined.size(), 1)),
                         static_cast<std::size_t>(step.size));
  if (!all) return malformed(0);
  return *std::move(all);
}

// Rank 0, which may serve the store, waits until no other rank needs it.
Status end_steps(Store& store, const GatherStep& step, Clock::time_point deadline) {
  if (step.rank != 0) {
    static_cast<void>(store.set(left_key(step.rank), ""));  // if this fails, rank 0 sees that the connection has ended
    return {};
  }
  for (int rank = 1; rank < step.size; ++rank) {
    const auto left = fetch(store, step, rank, left_key(rank), deadline);
    if (!left.ok() && left.status().code() != StatusCode::peer_failed) return left.status();
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> Store::gather(const GatherStep& step, std::string_view value, Clock::time_point deadline) {
  if (step.rank != 0) {
    if (Status status = set(key_of(step, step.rank), kContribution + std::string(value)); !status.ok()) return status;
  }
  auto all = step.rank == 0 ? collect(*this, step, value, deadline) : receive(*this, step, deadline);
  if (!all.ok() || !step.last) return all;
  if (Status status = end_steps(*this, step, deadline); !status.ok()) return status;
  return all;
}

Status Store::refuse(const GatherStep& step, std::string_view why) {
  return set(key_of(step, step.rank), kRefusal + std::string(why));
}

}  // namespace shoal
