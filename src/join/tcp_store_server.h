// The server of a store: one thread that serves all clients (protocol: store_protocol.h), of rank 0 over TCP, of a keeper over
// a Unix socket.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/join/store_client.h"
#include "src/join/store_relay.h"
#include "src/join/store_table.h"
#include "src/trust/admission.h"
#include "src/trust/proof.h"

namespace shoal {

/// The key under which a keeper's store has the keeper's rank.
inline constexpr std::string_view kKeeperKey = "keeper";

/// Serves until it is destroyed. A request costs the same for any number of clients.
class TcpStoreServer {
 public:
  /// `port` 0: any free port. Errors: system_error.
  static Result<std::unique_ptr<TcpStoreServer>> start(const std::string& host, int port, std::string_view job, const Key& key);
  /// What a keeper serves.
  struct Kept {
    Descriptor listener;       ///< a Unix socket
    StoreConnection to_store;  ///< to rank 0's store, where the keeper has entered by keep()
    int rank;                  ///< of the keeper
    std::size_t expected;      ///< ranks that should come, the keeper included
  };
  static Result<std::unique_ptr<TcpStoreServer>> keep(Kept kept, std::string_view job, const Key& key);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  [[nodiscard]] int port() const noexcept { return port_; }
  /// As Store::absent(). Thread rule: any thread.
  [[nodiscard]] std::vector<int> absent(int size) const;
  /// Requests that it has served. Thread rule: any thread.
  [[nodiscard]] std::uint64_t requests() const;
  /// On a keeper: waits until the ranks that have entered have left, at most until `deadline`, and leaves for them.
  void await_leaves(std::chrono::steady_clock::time_point deadline);

 private:
  using Clock = std::chrono::steady_clock;
  struct Client;
  /// In lists; the server's epoll set and the table hold addresses of the Client.
  struct Held {
    std::unique_ptr<Client> client;
    [[nodiscard]] bool greeted() const;
  };
  struct Descriptors {
    Descriptor listener;
    Descriptor epoll;
    Descriptor wake;   // an eventfd
    Descriptor spare;  // freed for the first connection without a descriptor: it may be this process's own, which waits for it
  };
  /// A keeper's connection to rank 0's store.
  struct Relay {
    Relay(StoreTable& table, Kept kept);
    Relay(StoreTable& table, std::pair<Descriptor, RecordCipher> connection, std::size_t expected);
    Descriptor socket;
    StoreRelay relay;
    std::uint32_t watched = 0;  // events
  };

  TcpStoreServer(Descriptors descriptors, int port, std::string_view job, const Key& key, std::optional<Kept> kept);
  static Result<Descriptors> prepare(Descriptor listener);
  void serve();
  void serve_relay();
  [[nodiscard]] std::chrono::milliseconds longest_wait(bool paused) const;
  void send_to_store();
  void end_relay();
  void listen(bool listens);
  void accept_clients();
  void serve_client(Client& client);
  void receive(Client& client);
  void send_unsent(Client& client);
  void finish(Client& client);
  void watch(Client& client);
  void settle();
  void drop(Client& client, std::string_view why);
  void drop_late_clients();

  Descriptors descriptors_;
  const int port_;
  bool listens_ = false;
  mutable std::mutex table_mutex_;  // held while requests are processed
  StoreTable table_;
  const std::chrono::milliseconds silence_limit_;
  std::atomic<bool> over_ = false;
  std::condition_variable left_;  // a rank may have left
  std::optional<Relay> relay_;
  Admission<Held> admission_;
  std::list<Held> clients_;        // those that have proven the key
  std::vector<Client*> finished_;  // to be dropped
  std::thread thread_;
};

}  // namespace shoal
