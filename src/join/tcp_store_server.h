// The server of a TCP store: one thread that serves all clients (protocol: store_protocol.h).
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <shoal/status.h>

#include "src/base/descriptor.h"
#include "src/join/store_table.h"
#include "src/trust/admission.h"
#include "src/trust/proof.h"

namespace shoal {

/// Serves until it is destroyed. A request costs the same for any number of clients.
class TcpStoreServer {
 public:
  /// `port` 0: any free port. Errors: system_error.
  static Result<std::unique_ptr<TcpStoreServer>> start(const std::string& host, int port, std::string_view job, const Key& key);
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  [[nodiscard]] int port() const noexcept { return port_; }
  /// As Store::absent(). Thread rule: any thread.
  [[nodiscard]] std::vector<int> absent(int size) const;

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

  TcpStoreServer(Descriptors descriptors, int port, std::string_view job, const Key& key);
  void serve();
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
  Admission<Held> admission_;
  std::list<Held> clients_;        // those that have proven the key
  std::vector<Client*> finished_;  // to be dropped
  std::thread thread_;             // last, because the thread uses all other members
};

}  // namespace shoal
