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

namespace shoal {
namespace {

constexpr auto kAcknowledgementTimeout = std::chrono::seconds(1);
constexpr auto kMinAcknowledgementTimeout = std::chrono::milliseconds(300);
constexpr auto kCauseTimeout = std::chrono::milliseconds(50);  // the store may be on another host
constexpr auto kStoreCheckTimeout = std::chrono::seconds(1);
constexpr std::size_t kMaxMessageBytes = 4096;

// The first byte of a value: before a contribution, or before a status code and a message.
constexpr char kContribution = '+';
constexpr char kRefusal = '-';

std::string acknowledgement_key(int rank) { return fmt::format("refusal/{}", rank); }

std::string refusal(const Status& why) {
  std::string text{kRefusal, static_cast<char>(why.code())};
  return text += why.message().substr(0, kMaxMessageBytes);
}

}  // namespace

Status parse_refusal(int rank, std::string_view text) {
  const int code = text.size() < 2 ? 0 : static_cast<unsigned char>(text[1]);
  const bool known = code > static_cast<int>(StatusCode::ok) && code <= static_cast<int>(StatusCode::internal);
  const std::string message = printable(std::string(text.substr(std::min<std::size_t>(text.size(), 2))));
  return {known ? static_cast<StatusCode>(code) : StatusCode::internal,
          fmt::format("rank {} aborted the startup: {}", rank, message)};
}

std::optional<Status> parse_cause(std::string_view text) {
  int rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  const auto space = static_cast<std::size_t>(end - text.data());
  if (error != std::errc() || space == text.size() || text[space] != ' ') return std::nullopt;
  return parse_refusal(rank, text.substr(space + 1));
}

std::string StartupExchange::key(int rank) const { return fmt::format("step/{}/{}", step_, rank); }

Result<std::vector<std::string>> StartupExchange::all_gather(std::string_view name, std::string_view mine) {
  if (Status status = store_.set(key(rank_), kContribution + std::string(mine)); !status.ok()) return status;
  contributed_ = true;
  std::vector<std::string> all;
  for (int rank = 0; rank < size_; ++rank) {
    const auto value = fetch(name, rank, key(rank));
    if (!value.ok()) return value.status();
    if (value->empty() || value->front() != kContribution) {
      if (rank == 0) acknowledge_refusal();
      cause_known_ = true;
      return parse_refusal(rank, *value);
    }
    all.push_back(value->substr(1));
  }
  ++step_;
  contributed_ = false;
  return all;
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
  return parse_cause(of_store.message()).value_or(Status(StatusCode::aborted, "a rank aborted the startup"));
}

Result<std::string> StartupExchange::fetch(std::string_view name, int rank, std::string_view key) {
  startup_waits_for(fmt::format("rank {} (step '{}')", rank, name));
  auto value = store_.get_from(rank, key, deadline_);
  if (value.ok()) return value;
  if (value.status().code() == StatusCode::aborted) return cause_of(value.status());
  const bool late = value.status().code() == StatusCode::timeout;
  const std::string who = late ? fmt::format("rank {} of {} did not join before the deadline: ", rank, size_) : "";
  return Status(value.status().code(), fmt::format("startup (step '{}'): {}{}", name, who, value.status().message()));
}

Status StartupExchange::abort(const Status& why) {
  Status cause = why;
  if (why.code() == StatusCode::peer_failed && !cause_known_) {
    const auto until = std::min(deadline_, std::chrono::steady_clock::now() + kCauseTimeout);
    if (const auto first = store_.get(Store::kGivenUp, until); first.ok()) cause = parse_cause(*first).value_or(why);
  }
  if (contributed_) ++step_;  // the contribution cannot be taken back, so the refusal takes the place of the next one
  const std::string text = refusal(cause);
  refusal_published_ = store_.set(key(rank_), text).ok();
  if (refusal_published_ && !cause_known_ && cause.message() == why.message())
    static_cast<void>(store_.set(Store::kGivenUp, fmt::format("{} {}", rank_, text)));
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
