#include "src/join/startup_exchange.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "src/base/printable.h"
#include "src/join/startup_watch.h"
#include "src/join/text_list.h"

namespace shoal {
namespace {

constexpr auto kAcknowledgementTimeout = std::chrono::seconds(1);
constexpr auto kMinAcknowledgementTimeout = std::chrono::milliseconds(300);
constexpr auto kCauseTimeout = std::chrono::milliseconds(50);  // the store may be on another host
constexpr auto kStoreCheckTimeout = std::chrono::seconds(1);
constexpr std::size_t kMaxMessageBytes = 4096;

// The first byte of a value: before a contribution, or before the number of a rank, a status code and a message.
constexpr char kContribution = '+';
constexpr char kRefusal = '-';
constexpr std::size_t kMaxPieceBytes = 512 << 10;  // a store's value has at most 1 MiB

std::string acknowledgement_key(int rank) { return fmt::format("refusal/{}", rank); }

std::string refusal(int rank, const Status& why) {
  return fmt::format("{}{} {}{}", kRefusal, rank, static_cast<char>(why.code()), why.message().substr(0, kMaxMessageBytes));
}

bool is_contribution(std::string_view value) { return value.starts_with(kContribution); }

Status malformed(std::string_view name, int rank) {
  return {StatusCode::internal, fmt::format("startup (step '{}'): rank {} published a malformed value", name, rank)};
}

}  // namespace

std::optional<Status> parse_refusal(std::string_view text) {
  if (!text.starts_with(kRefusal)) return std::nullopt;
  text.remove_prefix(1);
  int rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (error != std::errc() || text.size() < 2 || text.front() != ' ') return std::nullopt;
  const int code = static_cast<unsigned char>(text[1]);
  const bool known = code > static_cast<int>(StatusCode::ok) && code <= static_cast<int>(StatusCode::internal);
  return Status(known ? static_cast<StatusCode>(code) : StatusCode::internal,
                fmt::format("rank {} aborted the startup: {}", rank, printable(std::string(text.substr(2)))));
}

std::string StartupExchange::key(int rank) const { return fmt::format("step/{}/{}", step_, rank); }

Result<std::vector<std::string>> StartupExchange::all_gather(std::string_view name, std::string_view mine) {
  if (rank_ != 0) {
    if (Status status = store_.set(key(rank_), kContribution + std::string(mine)); !status.ok()) return status;
    contributed_ = true;
  }
  auto all = rank_ == 0 ? collect(name, mine) : receive(name);
  if (!all.ok()) return all.status();
  ++step_;
  contributed_ = false;
  return all;
}

// On rank 0.
Result<std::vector<std::string>> StartupExchange::collect(std::string_view name, std::string_view mine) {
  std::vector<std::string> all{std::string(mine)};
  for (int rank = 1; rank < size_; ++rank) {
    const auto value = fetch(name, rank, key(rank));
    if (!value.ok()) return value.status();
    if (!is_contribution(*value)) {
      const Status why = refused(*value);
      static_cast<void>(store_.set(key(0), *value));  // all other ranks wait for rank 0
      contributed_ = true;
      return why.ok() ? malformed(name, rank) : why;
    }
    all.push_back(value->substr(1));
  }
  if (Status status = publish_all(join_texts(all)); !status.ok()) return status;
  return all;
}

// The first piece has the number of pieces and is published last.
Status StartupExchange::publish_all(std::string_view joined) {
  const std::size_t pieces = joined.size() / kMaxPieceBytes + 1;
  for (std::size_t piece = pieces - 1; piece > 0; --piece) {
    const auto part = joined.substr(piece * kMaxPieceBytes, kMaxPieceBytes);
    if (Status status = store_.set(fmt::format("{}/{}", key(0), piece), part); !status.ok()) return status;
  }
  return store_.set(key(0), fmt::format("{}{} {}", kContribution, pieces, joined.substr(0, kMaxPieceBytes)));
}

// On all other ranks: what rank 0 has collected.
Result<std::vector<std::string>> StartupExchange::receive(std::string_view name) {
  startup_waits_for(fmt::format("rank 0, which collects the step '{}' of all ranks", name));
  const auto first = store_.get_from(0, key(0), deadline_);
  if (!first.ok()) {
    return first.status().code() == StatusCode::timeout ? missing_rank(name, first.status())
                                                        : error_of(name, 0, first.status());
  }
  if (!is_contribution(*first)) {
    const Status why = refused(*first);
    acknowledge_refusal();
    return why.ok() ? malformed(name, 0) : why;
  }
  std::size_t pieces = 0;
  const char* const end = std::from_chars(first->data() + 1, first->data() + first->size(), pieces).ptr;
  std::string joined(end, first->data() + first->size());
  for (std::size_t piece = 1; piece < pieces; ++piece) {
    const auto part = fetch(name, 0, fmt::format("{}/{}", key(0), piece));
    if (!part.ok()) return part.status();
    joined += *part;
  }
  auto all =
      split_texts(std::string_view(joined).substr(std::min<std::size_t>(joined.size(), 1)), static_cast<std::size_t>(size_));
  if (!all) return malformed(name, 0);
  return *std::move(all);
}

// Rank 0 did not publish a step before the deadline: names the rank whose contribution it waits for.
Status StartupExchange::missing_rank(std::string_view name, const Status& of_rank_0) {
  const auto until = std::chrono::steady_clock::now() + kMinAcknowledgementTimeout;
  for (int rank = 1; rank < size_; ++rank) {
    const auto value = store_.get_from(rank, key(rank), until);
    if (!value.ok()) return error_of(name, rank, value.status());
  }
  return error_of(name, 0, of_rank_0);
}

// The error with which a rank aborted; ok for malformed bytes.
Status StartupExchange::refused(std::string_view text) {
  const auto why = parse_refusal(text);
  cause_known_ |= why.has_value();
  return why.value_or(Status());
}

Status StartupExchange::finish() {
  const auto key = [](int rank) { return fmt::format("left/{}", rank); };
  if (rank_ != 0) {
    static_cast<void>(store_.set(key(rank_), ""));  // if this fails, rank 0 sees that the connection has ended
    return {};
  }
  for (int rank = 1; rank < size_; ++rank) {
    const auto left = fetch("left", rank, key(rank));
    if (!left.ok() && left.status().code() != StatusCode::peer_failed) return left.status();
  }
  return {};
}

Status StartupExchange::check() {
  const Status status = store_.look(std::min(deadline_, std::chrono::steady_clock::now() + kStoreCheckTimeout));
  return status.ok() || status.code() == StatusCode::timeout ? Status() : cause_of(status);
}

Status StartupExchange::cause_of(const Status& of_store) {
  if (of_store.code() != StatusCode::aborted) return of_store;
  cause_known_ = true;
  return parse_refusal(of_store.message()).value_or(Status(StatusCode::aborted, "a rank aborted the startup"));
}

Result<std::string> StartupExchange::fetch(std::string_view name, int rank, std::string_view key) {
  startup_waits_for(fmt::format("rank {} (step '{}')", rank, name));
  auto value = store_.get_from(rank, key, deadline_);
  if (value.ok()) return value;
  return error_of(name, rank, value.status());
}

Status StartupExchange::error_of(std::string_view name, int rank, const Status& of_store) {
  if (of_store.code() == StatusCode::aborted) return cause_of(of_store);
  const bool late = of_store.code() == StatusCode::timeout;
  const std::string who = late ? fmt::format("rank {} of {} did not join before the deadline: ", rank, size_) : "";
  return {of_store.code(), fmt::format("startup (step '{}'): {}{}", name, who, of_store.message())};
}

Status StartupExchange::abort(const Status& why) {
  Status cause = why;
  if (why.code() == StatusCode::peer_failed && !cause_known_) {
    const auto until = std::min(deadline_, std::chrono::steady_clock::now() + kCauseTimeout);
    if (const auto first = store_.get(Store::kGivenUp, until); first.ok()) cause = parse_refusal(*first).value_or(why);
  }
  if (contributed_) ++step_;  // the contribution cannot be taken back, so the refusal takes the place of the next one
  const std::string text = refusal(rank_, cause);
  refusal_published_ = store_.set(key(rank_), text).ok();
  if (refusal_published_ && !cause_known_ && cause.message() == why.message())
    static_cast<void>(store_.set(Store::kGivenUp, text));
  return cause;
}

void StartupExchange::leave() {
  if (!refusal_published_) return;
  rank_ == 0 ? wait_for_acknowledgements() : acknowledge_refusal();  // a rank that aborts no longer needs rank 0
}

void StartupExchange::acknowledge_refusal() {
  cause_known_ = true;
  if (!std::exchange(refusal_acknowledged_, true)) static_cast<void>(store_.set(acknowledgement_key(rank_), ""));
}

void StartupExchange::wait_for_acknowledgements() {
  // Ranks whose deadline passes at the same time must still receive the refusal.
  const auto now = std::chrono::steady_clock::now();
  const auto until = std::max(std::min(deadline_, now + kAcknowledgementTimeout), now + kMinAcknowledgementTimeout);
  store_.leave();  // this rank aborts itself, so an abort of another rank must not end the waits below
  for (int rank = 1;
       rank < size_ && store_.get_from(rank, acknowledgement_key(rank), until).status().code() != StatusCode::timeout; ++rank) {
  }
}

std::string node_identity() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  ::stat("/proc/self/ns/net", &network);
  return fmt::format("{}/{}/{}/{}", host, boot, network.st_ino, ::geteuid());
}

std::string process_name() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return fmt::format("process {} on host {}", ::getpid(), host);
}

std::string given_twice(int rank, std::string_view one_process, std::string_view other_process) {
  return fmt::format("rank {} was given to two processes: {} and {}; give every process a rank of its own (SHOAL_RANK)", rank,
                     one_process, other_process);
}

std::string sizes_differ(const SizedRank& one, const SizedRank& other) {
  return fmt::format("rank {} ({}) was started with size {}, rank {} ({}) with size {}; give all ranks the same SHOAL_SIZE",
                     one.rank, one.process, one.size, other.rank, other.process, other.size);
}

}  // namespace shoal
