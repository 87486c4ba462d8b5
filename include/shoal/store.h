// How the ranks of a job find each other at start-up.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

namespace shoal {

/// A step of the start-up, in which every rank of a job gives one value. Every rank makes the same steps in the same order.
struct GatherStep {
  int number = 0;         ///< 0, 1, 2 ...
  std::string_view name;  ///< for messages
  int rank = 0;           ///< of the caller
  int size = 1;           ///< of the job
  bool last = false;      ///< no rank needs the store after this step
};

/// A small shared dictionary. A key is written once. Values are opaque bytes.
/// Thread rule: an implementation need not be thread safe. A Communicator uses its Store only while it is being created.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  /// Makes `key` visible to every rank.
  virtual Status set(std::string_view key, std::string_view value) = 0;

  /// Waits until `key` exists, at most until `deadline`.
  /// Errors: timeout (the message names the key), system_error when the store cannot be reached.
  virtual Result<std::string> get(std::string_view key, std::chrono::steady_clock::time_point deadline) = 0;

  /// Gives this rank's `value` for `step` and returns the values of all ranks, by rank, when all have come. After the last step
  /// rank 0 returns only when no other rank needs the store. By default rank 0 collects the values with get_from() and
  /// publishes them with set(), so all ranks of a job must have the same implementation. Errors: timeout, whose message names
  /// ranks that are missing; peer_failed, mismatch and aborted as get_from(), for any rank; aborted with the text of a rank
  /// that has called refuse().
  virtual Result<std::vector<std::string>> gather(const GatherStep& step, std::string_view value,
                                                  std::chrono::steady_clock::time_point deadline);
  /// In place of gather(): this rank takes no part in `step`, nor in later ones. `why` is for the ranks that do.
  virtual Status refuse(const GatherStep& step, std::string_view why);

  // The methods below are for stores that detect the end of a process, as the file store and the TCP store do. With other
  // stores, waiting for a dead rank blocks until the deadline.

  /// Registers this process as `rank` of `size` until leave(). If the process ends before that or loses the store, the ranks
  /// that wait for it get peer_failed. If another process has entered as the same rank, or with another size, every process
  /// that has entered gets mismatch, with a message that names both processes: from this call, or from get_from() and look().
  virtual Status enter(int rank, int size) {
    static_cast<void>(rank);
    static_cast<void>(size);
    return {};
  }
  virtual void leave() {}
  /// As get(), for a key that `rank` will set. Further errors, all without delay: mismatch as above; peer_failed if `rank` has
  /// entered and ended without setting the key; aborted if this process has entered and any rank has set kGivenUp, with the
  /// value of kGivenUp as the message.
  virtual Result<std::string> get_from(int rank, std::string_view key, std::chrono::steady_clock::time_point deadline) {
    static_cast<void>(rank);
    return get(key, deadline);
  }
  /// Checks for failures without waiting for other ranks. Errors: mismatch as above; peer_failed if a rank has entered and
  /// ended, naming it; aborted as above; timeout if the store itself does not answer.
  virtual Status look(std::chrono::steady_clock::time_point deadline) {
    static_cast<void>(deadline);
    return {};
  }
  /// The ranks of 0..size-1 that have not entered yet, for messages; empty if this process cannot tell without waiting. Unlike
  /// the other methods, it may be called while another thread is in a call of this store.
  [[nodiscard]] virtual std::vector<int> absent(int size) const {
    static_cast<void>(size);
    return {};
  }
  /// The key under which a rank publishes that it aborts the start-up, and why.
  static constexpr std::string_view kGivenUp = "given up";
};

/// A Store in a directory that all ranks see: one file for each key, created atomically.
Result<std::unique_ptr<Store>> make_file_store(const std::string& directory);

/// A Store served over TCP by the rank with `is_server`; the other ranks connect to it and retry until the deadline.
/// `job` (at most 256 bytes) separates two jobs on one port: a client of another job is refused with a clear error. Both sides
/// prove that they hold the job's key (SHOAL_JOB_KEY, SHOAL_JOB_KEY_FILE) before the server stores any value. Without a key
/// any process that reaches the port and knows `job` can take part.
Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool is_server, std::string_view job,
                                              std::chrono::steady_clock::time_point deadline);

}  // namespace shoal
