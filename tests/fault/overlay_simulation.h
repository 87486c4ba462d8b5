// Many hosts with the real code of src/progress/overlay, on simulated boards and connections, in one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "src/progress/overlay/host_control.h"

namespace shoal::testing {

/// Everything depends on the options alone. Ranks of a host are numbered consecutively.
class OverlaySimulation {
 public:
  using Time = HostControl::Time;
  using Duration = Time::duration;

  struct Options {
    int hosts = 2;
    int ranks_per_host = 1;
    std::uint64_t seed = 0;
    Duration least_delay = std::chrono::microseconds(20);  ///< of a message between hosts
    Duration most_delay = std::chrono::milliseconds(2);
    Duration board_delay = std::chrono::microseconds(50);  ///< until the other ranks of a host read the board
    Duration lost_after = std::chrono::seconds(5);
    Duration connect_timeout = std::chrono::seconds(1);
  };
  explicit OverlaySimulation(const Options& options);

  /// Runs all that happens in the next `time`.
  void run(Duration time);
  [[nodiscard]] Time now() const noexcept { return now_; }
  [[nodiscard]] int ranks() const noexcept { return table_.ranks(); }
  [[nodiscard]] const HostTable& table() const noexcept { return table_; }
  [[nodiscard]] std::uint64_t random(std::uint64_t below) { return random_() % below; }

  // What ranks do. They must live and run.
  void write(int rank, const OverlayMessage& message);
  /// An abort of `group`.
  void abort(int rank, std::uint64_t group);
  /// Another notice. Returns its number, which is higher than those of all earlier ones.
  std::uint64_t notify(int rank);
  void farewell(int rank, std::uint64_t group, const std::string& history);
  /// Says goodbye and ends.
  void leave(int rank);

  // Faults.
  void kill(int rank);
  void stop(int rank);
  void resume(int rank);
  /// The whole host ends; its system too, so that it refuses no connection.
  void switch_off(int host);

  // What has come of it.
  [[nodiscard]] bool is_alive(int rank) const { return process(rank).alive; }
  [[nodiscard]] bool is_stopped(int rank) const { return process(rank).stopped; }
  struct News {
    Time at;
    OverlayMessage message;
  };
  /// What the rank has learnt, in order; of verdicts too.
  [[nodiscard]] const std::vector<News>& news(int rank) const { return process(rank).news; }
  /// The rank that the board of a host names.
  [[nodiscard]] int keeper(int host) const { return boards_[static_cast<std::size_t>(host)].claim.rank; }
  [[nodiscard]] const HostControl& control(int rank) const { return *process(rank).control; }
  /// Hosts with which the rank has a connection.
  [[nodiscard]] std::size_t connections(int rank) const { return process(rank).peers.size(); }
  [[nodiscard]] std::uint64_t sent(int host) const { return boards_[static_cast<std::size_t>(host)].sent; }
  void reset_sent();

 private:
  struct Connection {
    bool open = true;
    Time delivered_until[2]{};  // to the lower and the higher rank: of the latest message on its way
    Time cut_at = Time::max();  // what arrives later is lost
  };
  struct Process {
    std::unique_ptr<HostControl> control;
    bool alive = true;
    bool stopped = false;
    std::size_t cursor = 0;                                            // in the log of the board
    Time wake_at = Time::max();                                        // the next wake() that is queued
    std::map<int, std::pair<int, std::shared_ptr<Connection>>> peers;  // by host: rank and connection
    std::vector<std::function<void()>> held;                           // what has happened while it was stopped
    std::vector<News> news;
  };
  struct Board {
    KeeperClaim claim;
    std::vector<std::pair<int, OverlayMessage>> log;  // writer
    std::uint64_t sent = 0;                           // messages to other hosts
    bool off = false;
  };
  struct Event {
    Time at;
    std::uint64_t number = 0;
    std::function<void()> what;

    bool operator>(const Event& other) const { return at != other.at ? at > other.at : number > other.number; }
  };

  [[nodiscard]] Process& process(int rank) { return processes_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Process& process(int rank) const { return processes_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Board& board_of(int rank) { return boards_[static_cast<std::size_t>(table_.host_of(rank))]; }
  [[nodiscard]] Duration delay();
  void at(Time time, std::function<void()> what);
  /// `what` happens to a process: later where it is stopped, never where it is dead.
  void to_process(Time time, int rank, std::function<void()> what);
  void wake_at(int rank, Time time);
  void wake_others(int rank);
  /// The process reads the board and does what is due.
  void wake(int rank);
  /// Until the next thing is due.
  void sleep(int rank);
  void act(int rank);
  void deliver(int rank, const OverlayMessage& message) { process(rank).news.push_back({now_, message}); }
  void connect(int from, int to);
  void establish(int a, int b);
  void disconnect(int rank, int host);
  void send(int rank, int host, const std::shared_ptr<const std::vector<std::byte>>& bytes);
  /// To `to`: the connection with `from` has ended.
  void report_lost(Time time, int from, int to, const std::shared_ptr<Connection>& connection, bool silent);
  /// The process ends: its peers notice after `notice`.
  void end(int rank, Duration notice, bool in_order);

  const Options options_;
  const HostTable table_;
  std::mt19937_64 random_;
  Time now_{std::chrono::seconds(1000)};
  std::uint64_t numbers_ = 0;
  std::uint64_t notices_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Process> processes_;  // by rank
  std::vector<Board> boards_;       // by host
};

}  // namespace shoal::testing
