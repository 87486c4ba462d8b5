// A keeper's connection to rank 0's store, at the keeper: bytes in, bytes out, no sockets.
//
// The ranks of a host are clients of their keeper, one of them, which serves a table as rank 0 does. The values of a step come
// from rank 0's store, to which the keeper passes those of its host, several ranks at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "src/join/store_table.h"
#include "src/trust/record_cipher.h"

namespace shoal {

/// Thread rule: as that of the table.
class StoreRelay {
 public:
  using Clock = std::chrono::steady_clock;

  /// `expected`: the ranks that should come to this keeper, itself included. Not all need come: some may be in other
  /// namespaces. `table` must outlive the relay.
  StoreRelay(StoreTable& table, RecordCipher cipher, std::size_t expected);

  // What a session of the table has got.
  /// A value for step `number`, which is in the table. The step is passed on when all ranks that are expected have given their
  /// values, else when none has come for a while.
  void gave(std::uint32_t number);
  void lost(std::uint32_t rank);
  void give_up(std::string_view why);
  /// A rank's deadline has passed: the store is asked which ranks are missing.
  void stop();

  /// Processes bytes from the store.
  void receive(std::string_view bytes);
  /// To be called when the connection has ended: rank 0 is lost, unless the last step is complete.
  void end();
  /// Passes on what has waited long enough.
  void pass_on(Clock::time_point now);
  /// When pass_on() should be called.
  [[nodiscard]] Clock::time_point due() const noexcept { return due_; }
  /// All ranks of this host have left, and their keeper leaves for them.
  void leave();
  /// Whether the connection must be closed.
  [[nodiscard]] bool over() const noexcept { return over_; }

  std::string unsent;  ///< for the store; the owner removes what it has sent

 private:
  [[nodiscard]] StoreStep* step();
  void send(std::string_view request);
  void send_values();
  bool handle();
  void take_values(std::string_view answer);
  void take_missing(std::string_view answer);

  StoreTable& table_;
  RecordCipher cipher_;
  std::size_t expected_;
  std::uint32_t number_ = 0;      // of the latest step
  std::set<std::uint32_t> sent_;  // ranks whose values for it the store has
  Clock::time_point due_ = Clock::time_point::max();
  Clock::duration silence_;  // after which the values of fewer ranks are passed on
  bool settled_ = false;     // a step is complete, so all ranks of this host are known
  bool stopping_ = false;    // the store has been asked which ranks are missing
  bool over_ = false;
  std::string received_;  // text that has not been processed yet
};

}  // namespace shoal
