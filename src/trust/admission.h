// Accepting connections, and keeping those whose peers have not proven yet that they hold the job's key.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <list>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "src/base/descriptor.h"
#include "src/base/descriptor_limit.h"
#include "src/trust/refusals.h"

namespace shoal {

/// The unproven connections of one listener, or of several for one purpose: limited in number, and counted when they are
/// refused. The owner limits their time, and takes a connection out of the list when its peer has proven the key.
/// `Connection` has `bool greeted() const`: its peer has sent a valid greeting, which may be a recording.
/// Thread rule: one thread at a time.
template <typename Connection>
class Admission {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// `listener`: its name in refusals(). `most`: limit of connections in `unproven`.
  Admission(std::string_view listener, std::size_t most) : listener_(listener), most_(most) {}
  void raise_limit(std::size_t connections) noexcept { most_ += connections; }
  [[nodiscard]] std::size_t limit() const noexcept { return most_; }

  /// The next connection that waits at `listener`, a non-blocking socket; invalid where there is none, or shortage() is set.
  [[nodiscard]] Descriptor accept(int listener) {
    Descriptor socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    shortage_ = socket.valid() || !is_short_of_descriptors(errno) ? 0 : errno;
    if (shortage_ != 0) last_shortage_ = shortage_;
    return socket;
  }
  /// The errno of the last accept() if it failed for lack of descriptors, else 0. The connection stays in the queue, and
  /// poll would report it again and again: so the owner calls pause(), and does not poll before accept_again().
  [[nodiscard]] int shortage() const noexcept { return shortage_; }
  void pause() noexcept { accept_again_ = std::chrono::steady_clock::now() + kPause; }
  [[nodiscard]] TimePoint accept_again() const noexcept { return accept_again_; }
  /// After a shortage: the process itself is at its limit and has no connection to drop, so no later accept() succeeds.
  [[nodiscard]] bool is_stuck(int listener) const noexcept {
    return shortage_ == EMFILE && unproven.empty() && has_no_descriptors_left(listener);
  }

  /// At the limit drop_one() makes room.
  Connection& add(Connection connection) {
    if (unproven.size() >= most_) drop_one();
    return unproven.emplace_back(std::move(connection));
  }

  /// Drops the oldest connection of the more numerous kind: those without a greeting, or those with one. So neither kind can
  /// take the room of the other, and a new connection is younger than half of them: it is served before its turn to be
  /// dropped. A peer that is dropped all the same connects again. No effect where there is none.
  void drop_one() {
    if (unproven.empty()) return;
    const auto greeted = std::count_if(unproven.begin(), unproven.end(), [](const Connection& c) { return c.greeted(); });
    const bool kind = 2 * static_cast<std::size_t>(greeted) > unproven.size();
    unproven.erase(std::find_if(unproven.begin(), unproven.end(), [kind](const Connection& c) { return c.greeted() == kind; }));
    refuse("there were too many connections at a time");
  }

  /// Counts a refused connection, here and in refusals().
  void refuse(std::string_view why) {
    ++refused_;
    last_refusal_ = why;
    count_refusal(listener_, why);
  }

  /// What may have kept peers from connecting, to be appended to a message: "; accept: Too many open files; raise the limit
  /// of open files (ulimit -n); dropped 2 connections of unauthenticated peers, the last because it closed without a
  /// greeting"; empty where nothing has.
  [[nodiscard]] std::string to_text() const {
    std::string text;
    if (last_shortage_ != 0) {
      text = "; accept: " + std::generic_category().message(last_shortage_) + "; raise the limit of open files (ulimit -n)";
    }
    if (refused_ == 0) return text;
    return text + "; dropped " + std::to_string(refused_) + (refused_ == 1 ? " connection" : " connections") +
           " of unauthenticated peers, the last because " + last_refusal_;
  }

  std::list<Connection> unproven;  ///< oldest first

 private:
  static constexpr std::chrono::milliseconds kPause{50};

  const std::string listener_;
  std::size_t most_;
  int shortage_ = 0;
  int last_shortage_ = 0;
  TimePoint accept_again_{};
  std::size_t refused_ = 0;
  std::string last_refusal_;
};

}  // namespace shoal
