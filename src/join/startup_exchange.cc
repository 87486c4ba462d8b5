#include "src/join/startup_exchange.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <utility>

#include <fmt/format.h>

#include "src/base/printable.h"
#include "src/join/rank_names.h"
#include "src/join/startup_watch.h"

namespace shoal {
namespace {

constexpr auto kAcknowledgementTimeout = std::chrono::seconds(1);
constexpr auto kMinAcknowledgementTimeout = std::chrono::milliseconds(300);
constexpr auto kCauseTimeout = std::chrono::milliseconds(50);  // the store may be on another host
constexpr auto kStoreCheckTimeout = std::chrono::seconds(1);
constexpr std::size_t kMaxMessageBytes = 4096;

std::string acknowledgement_key(int rank) { return fmt::format("refusal/{}", rank); }

// A rank, a status code and a message.
std::string refusal(int rank, const Status& why) {
  return fmt::format("{} {}{}", rank, static_cast<char>(why.code()), why.message().substr(0, kMaxMessageBytes));
}

}  // namespace

std::optional<Status> parse_refusal(std::string_view text) {
  int rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (error != std::errc() || rank < 0 || text.size() < 2 || text.front() != ' ') return std::nullopt;
  const int code = static_cast<unsigned char>(text[1]);
  const bool known = code > static_cast<int>(StatusCode::ok) && code <= static_cast<int>(StatusCode::internal);
  return Status(known ? static_cast<StatusCode>(code) : StatusCode::internal,
                fmt::format("rank {} aborted the startup: {}", rank, printable(std::string(text.substr(2)))));
}

Result<std::vector<std::string>> StartupExchange::step(std::string_view name, std::string_view mine, bool last) {
  GatherStep step = step_named(name);
  step.last = last;
  auto all = store_.gather(step, mine, deadline_);
  if (!all.ok()) {
    contributed_ = rank_ != 0 || all.status().code() == StatusCode::aborted;
    return error_of(name, all.status());
  }
  ++step_;
  over_ = last;
  return all;
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

Status StartupExchange::error_of(std::string_view name, const Status& of_store) {
  if (of_store.code() == StatusCode::aborted) return cause_of(of_store);
  return {of_store.code(), fmt::format("startup (step '{}'): {}", name, of_store.message())};
}

Status StartupExchange::abort(const Status& why) {
  if (over_) return why;
  Status cause = why;
  if (why.code() == StatusCode::peer_failed && !cause_known_) {
    const auto until = std::min(deadline_, std::chrono::steady_clock::now() + kCauseTimeout);
    if (const auto first = store_.get(Store::kGivenUp, until); first.ok()) cause = parse_refusal(*first).value_or(why);
  }
  if (contributed_) ++step_;  // so the refusal takes the place of the next contribution
  const std::string text = refusal(rank_, cause);
  refusal_published_ = store_.refuse(step_named("abort"), text).ok();
  if (refusal_published_ && !cause_known_ && cause.message() == why.message())
    static_cast<void>(store_.set(Store::kGivenUp, text));
  return cause;
}

void StartupExchange::leave() {
  if (!refusal_published_) return;
  if (rank_ == 0)
    wait_for_acknowledgements();
  else
    static_cast<void>(store_.set(acknowledgement_key(rank_), ""));  // a rank that aborts no longer needs rank 0
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
