// A Store that rank 0's process serves over TCP, in a thread of its own for as long as the Store lives. store_session.h
// describes the protocol.
#include "src/join/tcp_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <shoal/limits.h>

#include "src/base/event.h"
#include "src/base/quiet_thread.h"
#include "src/base/tcp_options.h"
#include "src/join/job_key.h"
#include "src/join/socket.h"
#include "src/join/startup_exchange.h"
#include "src/join/store_client.h"
#include "src/join/store_session.h"
#include "src/trust/admission.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxUnauthenticated = 256;  // connections at a time; beyond it a new one displaces an old one
constexpr std::size_t kMaxConnections = kMaxJobRanks + kMaxUnauthenticated;
constexpr int kMaxReadsInARow = 16;  // so that one client does not delay the other ones
constexpr auto kUnauthenticatedTimeLimit = std::chrono::seconds(10);
constexpr auto kPause = std::chrono::milliseconds(100);     // before a retry of what failed for lack of resources
constexpr auto kFirstRetry = std::chrono::milliseconds(5);  // of a client whose connection was closed in the handshake
constexpr auto kLastRetry = std::chrono::milliseconds(200);

class Server {
 public:
  // `wake`: an eventfd. `spare`: any descriptor.
  Server(Descriptor listener, Descriptor wake, Descriptor spare, std::string_view job, const Key& key)
      : listener_(std::move(listener)),
        table_{std::string(job), key, {}},
        wake_(std::move(wake)),
        spare_(std::move(spare)),
        thread_(quiet_thread([this] { serve(); })) {}
  ~Server() {
    over_ = true;
    ring_event(wake_.get());
    thread_.join();
  }
  /// Thread rule: any thread.
  [[nodiscard]] std::vector<int> absent(int size) const {
    const std::lock_guard<std::mutex> lock(table_mutex_);
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) {
      if (!table_.members.contains(static_cast<std::uint32_t>(rank))) ranks.push_back(rank);
    }
    return ranks;
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  struct Client {
    Client(Descriptor connection, StoreTable& table) : socket(std::move(connection)), session(table) {}
    Descriptor socket;
    StoreSession session;
    Clock::time_point since = Clock::now();
    std::string_view lost;  // why the connection has become unusable; empty before
    [[nodiscard]] bool greeted() const { return !session.silent(); }
  };

  void serve() {
    std::vector<pollfd> descriptors;
    while (!over_) {
      const bool paused = Clock::now() < admission_.accept_again();
      descriptors.assign({{wake_.get(), POLLIN, 0}, {listener_.get(), static_cast<short>(paused ? 0 : POLLIN), 0}});
      for_each_client([&](const Client& client) {
        const bool talks = !client.session.unsent.empty();
        descriptors.push_back({client.socket.get(), static_cast<short>(talks ? POLLIN | POLLOUT : POLLIN), 0});
      });
      const auto timeout = paused ? kPause : std::chrono::milliseconds(1000);
      if (::poll(descriptors.data(), descriptors.size(), static_cast<int>(timeout.count())) < 0) {
        if (errno != EINTR) std::this_thread::sleep_for(kPause);  // e.g. no memory: without this thread no rank can start
        continue;                                                 // revents are not valid
      }
      const std::lock_guard<std::mutex> lock(table_mutex_);
      std::size_t i = 2;
      for_each_client([&](Client& client) {
        if (descriptors[i++].revents != 0) receive(client);
      });
      for_each_client(send_unsent);
      drop_useless();
      if ((descriptors[1].revents & POLLIN) != 0) accept_clients();
    }
  }

  template <typename Each>
  void for_each_client(Each each) {
    for (Client& client : admission_.unproven) each(client);
    for (Client& client : clients_) each(client);
  }

  // Moves the clients that have proven the key to the other ones.
  void drop_useless() {
    const auto now = Clock::now();
    bool died = false;
    const auto is_useless = [this, now, &died](Client& client) {
      const StoreSession& session = client.session;
      if (client.lost.empty() && !session.trusted() && !session.over() && now - client.since > kUnauthenticatedTimeLimit)
        client.lost = "it did not complete the handshake in time";
      if (client.lost.empty() && !(session.over() && session.unsent.empty())) return false;
      if (!session.refused().empty())
        admission_.refuse(session.refused());
      else if (!session.trusted() && !session.over())
        admission_.refuse(client.lost);
      died |= client.session.lost();
      return true;
    };
    admission_.unproven.remove_if(is_useless);
    clients_.remove_if(is_useless);
    for (auto next = admission_.unproven.begin(); next != admission_.unproven.end();) {
      const auto client = next++;
      if (client->session.trusted()) clients_.splice(clients_.end(), admission_.unproven, client);
    }
    if (died) look_again();
  }

  void look_again() {
    for_each_client([](Client& client) { client.session.look_again(); });
  }

  void accept_clients() {
    // A limited number at a time, so that clients of the job and new connections are served in between.
    for (std::size_t i = 0; i < kMaxUnauthenticated / 4; ++i) {
      Descriptor socket = admission_.accept(listener_.get());
      if (!socket.valid()) break;
      if (admission_.unproven.size() + clients_.size() >= kMaxConnections) {
        admission_.refuse("there were too many connections at a time");
        continue;
      }
      tcp::tune_handshake(socket.get(), silence_limit_);
      admission_.add({std::move(socket), table_});
    }
    if (admission_.shortage() == 0) return;
    if (!spare_.valid()) admission_.pause();
    spare_.reset();
  }

  void receive(Client& client) {
    std::array<char, 16384> buffer;
    bool set = false;
    for (int reads = 0; reads < kMaxReadsInARow && client.lost.empty() && !client.session.over(); ++reads) {
      const ssize_t got = ::recv(client.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
        client.lost = "it closed before the handshake was complete";
        set |= client.session.lost();  // before another process enters as its rank
      }
      if (got <= 0) break;
      set |= client.session.receive({buffer.data(), static_cast<std::size_t>(got)});
    }
    if (set) look_again();
  }

  static void send_unsent(Client& client) {
    std::string& unsent = client.session.unsent;
    while (!unsent.empty() && client.lost.empty()) {
      const ssize_t sent = ::send(client.socket.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        unsent.erase(0, static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        return;
      } else if (errno != EINTR) {
        client.lost = "it closed before the handshake was complete";
      }
    }
  }

  Descriptor listener_;
  mutable std::mutex table_mutex_;  // held while requests are processed
  StoreTable table_;
  Descriptor wake_;
  Descriptor spare_;  // freed for the first connection without a descriptor: it may be this process's own, which waits for it
  std::chrono::milliseconds silence_limit_ = silence_limit();
  std::atomic<bool> over_ = false;
  Admission<Client> admission_{"store", kMaxUnauthenticated};
  std::list<Client> clients_;  // those that have proven the key
  std::thread thread_;         // last, because the thread uses all other members
};

class TcpStore final : public Store {
 public:
  TcpStore(std::unique_ptr<Server> server, const std::string& host, int port, std::string_view job, const Key& key)
      : server_(std::move(server)), host_(host), port_(port), job_(job), key_(key), where_(host_and_port(host, port)) {}

  Status set(std::string_view key, std::string_view value) override {
    if (key.size() > kMaxStoreKeyBytes || value.size() > kMaxStoreValueBytes) {
      return {StatusCode::invalid_argument,
              fmt::format("store: key of {} or value of {} bytes is too long", key.size(), value.size())};
    }
    const auto deadline = in_time();
    Status status = connect(deadline);
    if (status.ok()) status = connection_->tell(key, value, deadline);
    return explain(status, quoted(key));
  }

  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    return ask(kStoreNoRank, key, deadline);
  }

  Result<std::string> get_from(int rank, std::string_view key, Clock::time_point deadline) override {
    return ask(static_cast<std::uint32_t>(rank), key, deadline);
  }

  Status enter(int rank, int size) override {
    leave();
    member_ = StoreMember{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size), client_, process_name()};
    const bool new_connection = !connection_;
    const auto deadline = in_time();
    Status status = connect(deadline);
    if (status.ok() && !new_connection) status = connection_->enter(*member_, deadline);
    return explain(status, "joining");
  }

  void leave() override {
    // If the message cannot be sent, the server sees that the connection has ended.
    if (member_ && connection_) static_cast<void>(connection_->leave(in_time()));
    member_.reset();
  }

  Status look(Clock::time_point deadline) override {
    if (Status status = connect(deadline); !status.ok()) return explain(status, "checking for failures");
    const auto news = connection_->look(deadline);
    return news.ok() ? status_of(*news) : explain(news.status(), "checking for failures");
  }

  [[nodiscard]] std::vector<int> absent(int size) const override {
    return server_ != nullptr ? server_->absent(size) : std::vector<int>();
  }

  /// Connects where there is no connection. Errors: those of connect_to and introduce_to_store.
  Status connect(Clock::time_point deadline) {
    if (!lost_.ok() || connection_) return lost_;
    if (reached_) deadline = std::min(deadline, Clock::now() + kReturnPatience);  // a server that no longer listens has ended
    for (auto pause = kFirstRetry;; pause = std::min(2 * pause, kLastRetry)) {
      auto socket = connect_to(host_, port_, deadline);
      if (!socket.ok()) return {socket.status().code(), "rank 0's store cannot be reached: " + socket.status().message()};
      auto made = introduce_to_store(std::move(socket).value(), job_, key_, random_nonce(), where_, deadline);
      if (made.ok()) {
        connection_.emplace(std::move(made).value());
        reached_ = true;
        return member_ ? connection_->enter(*member_, deadline) : Status();
      }
      const Status& status = made.status();
      // A server that is flooded with unauthenticated connections may have dropped this one.
      const bool closed = status.code() == StatusCode::peer_failed || status.code() == StatusCode::system_error;
      if (!closed || Clock::now() + pause >= deadline) return status;
      ::poll(nullptr, 0, static_cast<int>(pause.count()));
    }
  }

 private:
  static constexpr auto kAnswerPatience = std::chrono::seconds(60);
  static constexpr auto kReturnPatience = std::chrono::seconds(5);
  static Clock::time_point in_time() { return Clock::now() + kAnswerPatience; }
  static std::uint64_t random_number() {
    std::random_device device;
    return device() | static_cast<std::uint64_t>(device()) << 32;
  }
  static std::string quoted(std::string_view key) { return fmt::format("key '{}'", key); }

  Result<std::string> ask(std::uint32_t rank, std::string_view key, Clock::time_point deadline) {
    if (key.size() > kMaxStoreKeyBytes) {
      return Status(StatusCode::invalid_argument, fmt::format("store: key of {} bytes is too long", key.size()));
    }
    const Status status = connect(deadline);
    if (!status.ok()) return explain(status, quoted(key));
    auto value = connection_->ask(rank, key, deadline);
    if (!value.ok()) return explain(value.status(), quoted(key));
    if (Status bad = status_of(*value); !bad.ok()) return bad;
    return std::move(value->value);
  }

  [[nodiscard]] Status status_of(const StoreConnection::News& news) const {
    if (news.conflict) return {StatusCode::mismatch, news.value};
    if (news.given_up) return {StatusCode::aborted, news.value};
    if (news.died == kStoreNoRank) return {};
    return {StatusCode::peer_failed,
            fmt::format("rank {} died, or lost its connection to rank 0's store at {}", news.died, where_)};
  }

  // A late answer would be taken for the answer to the next request, so a call that has failed ends the connection. After a
  // timeout the next call makes a new connection; after any other error every later call fails with that error.
  [[nodiscard]] Status explain(const Status& status, const std::string& what) {
    if (status.ok()) return status;
    const bool comes_again = status.code() == StatusCode::timeout;
    if (comes_again && member_ && connection_) static_cast<void>(connection_->leave(Clock::now()));
    connection_.reset();
    if (!comes_again) lost_ = status;
    return {status.code(), fmt::format("rank 0's store at {}, {}: {}", where_, what, status.message())};
  }

  std::unique_ptr<Server> server_;  // on the rank that serves the store
  std::string host_;
  int port_;
  std::string job_;
  Key key_;
  std::string where_;
  std::optional<StoreConnection> connection_;
  std::optional<StoreMember> member_;  // this process, while it has entered
  std::uint64_t client_ = random_number();
  bool reached_ = false;
  Status lost_;
};

Status check_job(std::string_view job) {
  if (job.size() <= kMaxStoreJobBytes) return {};
  return {StatusCode::invalid_argument,
          fmt::format("store: the job's name has {} bytes, more than {}", job.size(), kMaxStoreJobBytes)};
}

struct Served {
  std::unique_ptr<Server> server;
  int port;
};

// `port` 0: any free port.
Result<Served> serve(const std::string& host, int port, std::string_view job, const Key& key) {
  auto listener = listen_on(host, port);
  const auto taken = listener.ok() ? port_of(*listener) : Result<int>(listener.status());
  const auto cannot = [](const Status& why) {
    return Status(why.code(), fmt::format("rank 0 cannot serve its store: {}", why.message()));
  };
  if (!taken.ok()) return cannot(taken.status());
  Descriptor wake = make_event();
  Descriptor spare(wake.valid() ? ::fcntl(wake.get(), F_DUPFD_CLOEXEC, 0) : -1);
  if (!spare.valid()) return cannot(descriptor_error("eventfd", errno));
  return Served{std::make_unique<Server>(std::move(listener).value(), std::move(wake), std::move(spare), job, key), *taken};
}

Result<std::unique_ptr<Store>> connect_store(std::unique_ptr<Server> server, const std::string& host, int port,
                                             std::string_view job, const Key& key, Clock::time_point deadline) {
  auto store = std::make_unique<TcpStore>(std::move(server), host, port, job, key);
  if (Status status = store->connect(deadline); !status.ok()) return status;
  return std::unique_ptr<Store>(std::move(store));
}

// For a rank 0 that cannot listen. Another process of this job that is rank 0, too, may serve the store: then this process
// enters there, so that every rank learns which two processes are rank 0. Or the store of another job uses the port: then the
// error names that job.
Result<std::unique_ptr<Store>> other_rank_0(const std::string& host, int port, std::string_view job, const Key& key,
                                            Clock::time_point deadline, const Status& why) {
  constexpr auto kTimeLimit = std::chrono::seconds(2);
  auto store = connect_store(nullptr, host, port, job, key, std::min(deadline, Clock::now() + kTimeLimit));
  if (store.ok()) return store;
  const bool of_another_job = store.status().code() == StatusCode::invalid_argument;
  return of_another_job ? Status(why.code(), fmt::format("{}; {}", why.message(), store.status().message())) : why;
}

}  // namespace

Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool is_server, std::string_view job,
                                              const Key& key, Clock::time_point deadline) {
  if (Status status = check_job(job); !status.ok()) return status;
  if (port < 1 || port > 65535) return Status(StatusCode::invalid_argument, fmt::format("store: {} is not a port", port));
  std::unique_ptr<Server> server;
  if (is_server) {
    auto served = serve(host, port, job, key);
    if (!served.ok()) return other_rank_0(host, port, job, key, deadline, served.status());
    server = std::move(served->server);
  }
  return connect_store(std::move(server), host, port, job, key, deadline);
}

Result<ServedStore> serve_tcp_store(const std::string& host, std::string_view job, const Key& key, Clock::time_point deadline) {
  if (Status status = check_job(job); !status.ok()) return status;
  auto served = serve(host, 0, job, key);
  if (!served.ok()) return served.status();
  auto store = connect_store(std::move(served->server), host, served->port, job, key, deadline);
  if (!store.ok()) return store.status();
  return ServedStore{std::move(store).value(), served->port};
}

Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool is_server, std::string_view job,
                                              Clock::time_point deadline) {
  const auto key = job_key();
  if (!key.ok()) return key.status();
  return make_tcp_store(host, port, is_server, job, key->key, deadline);
}

}  // namespace shoal
