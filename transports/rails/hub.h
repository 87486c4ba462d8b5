// Hub: all rails of one transport: completions, messages that arrive, and waiting.
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
#include "transports/rails/link_shape.h"
#include "transports/rails/rail.h"
#include "transports/rails/rails.h"
#include "transports/rails/rails_peer.h"
#include "transports/rails/registrations.h"

namespace shoal::rails {

/// Shared by the transport and its links. When the transport is destroyed, the rails close and the links end.
/// Thread rule: that of the transport, one thread at a time.
class Hub {
 public:
  static Result<std::shared_ptr<Hub>> make(const Options& options, std::vector<std::unique_ptr<Rail>> rails);
  ~Hub();
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  [[nodiscard]] std::string_view name() const noexcept { return options_.transport; }
  [[nodiscard]] std::string address() const;
  [[nodiscard]] std::size_t max_tile_bytes() const noexcept { return options_.tile_bytes; }
  /// Returns when every peer is authenticated. Errors: timeout, naming the missing ranks; mismatch for different settings.
  Result<std::vector<RailsPeer*>> connect(std::span<const int> peers, std::span<const std::string> addresses,
                                          ConnectDeadline time_limit);
  bool progress();
  [[nodiscard]] int wait_fd() const noexcept { return epoll_.get(); }
  bool prepare_wait();
  void finish_wait(bool readable);
  [[nodiscard]] std::size_t memory_bytes() const noexcept;
  void use_check_sums() noexcept { checksums_ = true; }
  /// Sends the close notices, waits a moment for operations in flight, and closes the rails.
  void close();
  /// In a child of fork(): the rails belong to the parent and are not touched.
  void leave_to_parent() noexcept;
  [[nodiscard]] bool in_owner() const noexcept;

  // For RailsPeer.
  /// Null where the rail has been closed.
  [[nodiscard]] Rail* rail(std::size_t index) const noexcept { return rails_[index].get(); }
  /// Text for an operation on that rail that has failed, or that it has refused: `result` is -errno.
  [[nodiscard]] std::string describe(std::size_t rail, const Completion& failed) const;
  [[nodiscard]] std::string describe(std::size_t rail, int result) const;
  /// Closes a rail that has failed, for all links.
  void close_rail(std::size_t index, const std::string& why);
  /// A link needs calls of its watch().
  void request_watch() noexcept { watching_ = true; }
  /// Ends the registration of that memory on this rail: peers cannot reach it on the rail any more.
  void deregister_on(Memory& memory, std::size_t rail) noexcept;
  /// The next progress() returns true.
  void note_progress() noexcept { progressed_ = true; }
  /// Makes progress, and sleeps in between, until `done` returns true or `limit` has passed. The next progress() returns
  /// true.
  void progress_until(const std::function<bool()>& done, std::chrono::milliseconds limit);
  /// The link has something to send in the next progress() or prepare_wait().
  void want_pump(RailsPeer& peer);
  [[nodiscard]] Clock::time_point now() const { return options_.clock ? options_.clock() : Clock::now(); }
  /// Whether tiles are sent with checksums from now on.
  [[nodiscard]] bool uses_checksums() const noexcept { return checksums_; }
  /// Whether the payload is large enough for zero-copy.
  [[nodiscard]] bool worth_lending(std::span<const std::byte> data) const noexcept {
    return data.size() >= options_.lend_from_bytes;
  }
  /// Whether `data` lies in the lasting memory of the options.
  [[nodiscard]] bool in_lasting_memory(std::span<const std::byte> data) const noexcept;
  /// The registration cache of a rail; null where the rail needs no registrations.
  [[nodiscard]] RegistrationCache* registrations(std::size_t rail) const noexcept { return registered_[rail].get(); }
  [[nodiscard]] std::uint64_t lasting_changes() const { return options_.lasting_changes ? options_.lasting_changes() : 0; }
  void repost(Receive& receive);
  Status register_memory(Memory& memory, bool for_peers, bool needed_locally);
  void deregister(Memory& memory) noexcept;

 private:
  Hub(const Options& options, std::vector<std::unique_ptr<Rail>> rails);
  Status open();
  Status make_receives(std::size_t peers);

  bool read_rail(std::size_t index);
  void handle(std::size_t rail, const Completion& completion);
  void on_message(Receive& receive, std::size_t bytes);
  /// The link with that number; null where there is none, or its peer is not authenticated.
  [[nodiscard]] RailsPeer* authenticated_peer(std::size_t index) const noexcept;
  std::pair<RailsPeer*, std::optional<Packet>> read_packet(std::span<const std::byte> message);
  void pump_peers();
  int post_receives(std::size_t rail);
  void check_timeouts();
  void set_timer(std::chrono::microseconds delay);
  void serve_events();

  // Handshake: handshake.cc
  Status add_peer(int rank, const std::string& address);
  void send_handshake(RailsPeer& peer, Clock::time_point now);
  void send_record(RailsPeer& peer, ShortMessage& record, RecordKind kind);
  void on_record(std::span<const std::byte, kRecordBytes> bytes);
  void on_record_sent(ShortMessage& record, const Completion& completion);
  [[nodiscard]] Record own_record(RailsPeer& peer, RecordKind kind) const;
  [[nodiscard]] bool check_settings(const Record& record);
  [[nodiscard]] Status timeout_status(Clock::time_point start, Clock::time_point deadline) const;
  void watch_process(RailsPeer& peer, const Record& record);

  const Options options_;
  std::vector<std::unique_ptr<Rail>> rails_;
  const LinkShape shape_;  // of all links
  std::vector<std::string> rail_addresses_;
  std::vector<std::unique_ptr<RailsPeer>> peers_;
  std::vector<int> index_of_rank_;

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
  std::chrono::microseconds pause_{0};  // between polls, where no descriptor wakes this thread
  Clock::time_point last_watch_{};
  unsigned polls_ = 0;
  bool watching_ = false;
  bool progressed_ = false;
  bool checksums_;
  bool left_to_parent_ = false;
  int owner_pid_ = 0;
  std::size_t rejected_ = 0;
  Status failure_;  // of connect()
};

}  // namespace shoal::rails
