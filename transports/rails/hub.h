// Hub: the rails of one transport, what arrives on them, and waiting.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "transports/common/connect_deadline.h"
#include "transports/rails/rail.h"
#include "transports/rails/rails.h"
#include "transports/rails/rails_peer.h"
#include "transports/rails/registrations.h"

namespace shoal::rails {

/// Shared by the transport and its links; when the transport goes, the rails close and the links are over.
/// Thread rule: that of the transport, one thread at a time.
class Hub {
 public:
  static Result<std::shared_ptr<Hub>> make(const Options& options, std::vector<std::unique_ptr<Rail>> rails);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  [[nodiscard]] std::string_view name() const noexcept { return options_.transport; }
  [[nodiscard]] std::string address() const;
  /// Until every peer has proven itself. Errors: timeout naming who is missing; mismatch for other settings.
  Result<std::vector<RailsPeer*>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                          ConnectDeadline time_limit);
  bool progress();
  [[nodiscard]] int wait_fd() const noexcept { return epoll_.get(); }
  bool prepare_wait();
  void finish_wait(bool readable);
  [[nodiscard]] std::size_t memory_bytes() const noexcept;
  void use_check_sums() noexcept { sums_ = true; }
  /// Says goodbye, waits a moment for what is under way, closes the rails.
  void close();
  /// In a child of fork(): the rails are the parent's, nothing of them is touched.
  void leave_to_parent() noexcept;
  [[nodiscard]] bool in_owner() const noexcept;

  // For lanes.
  [[nodiscard]] std::size_t rail_count() const noexcept { return rails_.size(); }
  /// Null where it has been closed.
  [[nodiscard]] Rail* rail(std::size_t index) const noexcept { return rails_[index].get(); }
  /// Closes a rail that has failed, for all lanes.
  void close_rail(std::size_t index, const std::string& why);
  /// A lane wants to be watched by the clock.
  void begin_watching() noexcept { watching_ = true; }
  /// Peers reach that memory by this rail no more.
  void dismiss_one(Memory& memory, std::size_t rail) noexcept;
  /// progress() will say that something moved.
  void note_move() noexcept { moved_ = true; }
  /// Moves what can be moved, and sleeps between, until it is done or for so long. The next progress() says that something
  /// moved.
  void move_until(const std::function<bool()>& done, std::chrono::milliseconds limit);
  /// The lane has something to send in the next progress() or prepare_wait().
  void want_pump(RailsPeer& lane);
  [[nodiscard]] Clock::time_point now() const { return options_.clock ? options_.clock() : Clock::now(); }
  /// What is sent from now on has check sums.
  [[nodiscard]] bool sums() const noexcept { return sums_; }
  /// Whether it is worth sending from where it lies.
  [[nodiscard]] bool worth_lending(std::span<const std::byte> data) const noexcept {
    return data.size() >= options_.lend_from_bytes;
  }
  /// Whether this lies in memory that lasts.
  [[nodiscard]] bool lasts(std::span<const std::byte> data) const noexcept;
  /// The caches of the rails that need registrations; null for the others.
  [[nodiscard]] RegistrationCache* registrations(std::size_t rail) const noexcept { return registered_[rail].get(); }
  [[nodiscard]] std::uint64_t lasting_changes() const { return options_.lasting_changes ? options_.lasting_changes() : 0; }
  void take_back(Receive& receive);
  Status enroll(Memory& memory, bool for_peers, bool needed_locally);
  void dismiss(Memory& memory) noexcept;

 private:
  Hub(const Options& options, std::vector<std::unique_ptr<Rail>> rails);
  Status open();
  Status make_receives(std::size_t peers);

  bool read_rail(std::size_t index);
  void handle(std::size_t rail, const Completion& completion);
  void on_message(Receive& receive, std::size_t bytes);
  /// Of a peer that has shown itself; null for a number that stands for none.
  [[nodiscard]] RailsPeer* met_lane(std::size_t index) const noexcept;
  std::pair<RailsPeer*, std::optional<Packet>> read_packet(std::span<const std::byte> message);
  void pump_lanes();
  int post_receives(std::size_t rail);
  void look_at_clock();
  void set_timer(std::chrono::microseconds delay);
  void serve_events();

  // Meeting: meeting.cc
  Status add_peer(int peer, const std::string& address);
  void greet(RailsPeer& lane, Clock::time_point now);
  void send_record(RailsPeer& lane, Short& record, RecordKind kind);
  void on_record(std::span<const std::byte, kRecordBytes> bytes);
  void on_record_sent(Short& record, const Completion& completion);
  [[nodiscard]] Record own_record(const RailsPeer& lane, RecordKind kind) const;
  [[nodiscard]] bool check_settings(const Record& record);
  [[nodiscard]] Status late(Clock::time_point start, Clock::time_point deadline) const;
  void watch_process(RailsPeer& lane, const Record& record);

  const Options options_;
  std::vector<std::unique_ptr<Rail>> rails_;
  const LaneShape shape_;  // of all lanes
  std::vector<std::string> rail_addresses_;
  std::vector<std::unique_ptr<RailsPeer>> lanes_;
  std::vector<int> lane_of_rank_;

  struct Pool {
    Memory memory;
    std::vector<Receive> receives;
    std::vector<Receive*> unposted;
  };
  std::vector<Pool> pools_;  // by rail
  Memory records_;
  std::vector<std::unique_ptr<RegistrationCache>> registered_;  // by rail
  std::vector<RailsPeer*> to_pump_;
  std::vector<RailsPeer*> pumped_;

  Descriptor epoll_;
  Descriptor timer_;
  std::vector<Descriptor> pidfds_;
  bool timer_set_ = false;
  std::chrono::microseconds pause_{0};  // between looks where nothing wakes
  Clock::time_point last_watch_{};
  unsigned looks_ = 0;
  bool watching_ = false;
  bool moved_ = false;
  bool sums_;
  bool left_to_parent_ = false;
  int owner_pid_ = 0;
  std::size_t strangers_ = 0;
  Status failure_;  // of connect()
};

}  // namespace shoal::rails
