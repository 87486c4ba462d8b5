// How the ranks of a job find each other at start-up.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

namespace shoal {

/// A small shared dictionary. A key is written once. Values are opaque bytes.
/// Thread rule: an implementation need not be thread safe; a Communicator uses its Store only while it is being made.
class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  /// Makes `key` visible to every rank.
  virtual Status set(std::string_view key, std::string_view value) = 0;

  /// Waits until `key` exists, at most until `deadline`.
  /// Errors: timeout (the message names the key), system_error when the store is gone.
  virtual Result<std::string> get(std::string_view key, std::chrono::steady_clock::time_point deadline) = 0;

  // What follows is for stores that can notice the end of a process, as both below can. Over another one, who waits for a rank
  // that has died waits until the deadline.

  /// This process is `rank` of `size`, from now until leave(): where it ends before that, or loses the store, the others hear
  /// of it. Where another process has entered as the same rank, or with another size, every process that has entered gets
  /// mismatch from here on, with a message that names both processes: here, or from get_from() and look().
  virtual Status enter(int rank, int size) {
    static_cast<void>(rank);
    static_cast<void>(size);
    return {};
  }
  virtual void leave() {}
  /// get() of what `rank` will set. Errors besides, at once: mismatch as above; peer_failed where that one has entered and
  /// ended without it; aborted where this process has entered and somebody has set kGivenUp, with what that holds as the
  /// message.
  virtual Result<std::string> get_from(int rank, std::string_view key, std::chrono::steady_clock::time_point deadline) {
    static_cast<void>(rank);
    return get(key, deadline);
  }
  /// Without waiting for anybody: ok; peer_failed where a rank has entered and ended, naming it; aborted as above; timeout
  /// where the store itself does not answer.
  virtual Status look(std::chrono::steady_clock::time_point deadline) {
    static_cast<void>(deadline);
    return {};
  }
  /// Those of `size` ranks that have not entered yet, for messages; none where this process cannot tell without waiting. Unlike
  /// all else, to be called while another thread is in a call of this store.
  [[nodiscard]] virtual std::vector<int> absent(int size) const {
    static_cast<void>(size);
    return {};
  }
  /// The key by which a rank says that it gives up, and why.
  static constexpr std::string_view kGivenUp = "given up";
};

/// A Store in a directory that all ranks see: one file a key, created atomically.
Result<std::unique_ptr<Store>> make_file_store(const std::string& directory);

/// A Store served over TCP by the rank with `is_server`; the others connect to it and retry until the deadline.
/// `job` (at most 256 bytes) keeps two jobs on one port apart: a client of another job is refused with a clear error. Both
/// sides prove that they hold the job's key (SHOAL_JOB_KEY, SHOAL_JOB_KEY_FILE) before the server keeps anything; without a key
/// whoever reaches the port and knows `job` can take part.
Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool is_server, std::string_view job,
                                              std::chrono::steady_clock::time_point deadline);

}  // namespace shoal
