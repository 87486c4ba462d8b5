// A Store served over TCP by rank 0's process, in a thread of its own for as long as the Store lives.
//
// Wire format, little-endian. Hello: magic, version, job length, job. Answer: one byte (0 = welcome, 1 = other job, 2 = other
// version), then the server's job as a block. Request: 1 byte (1 = set, 2 = get), key block[, value block]; a block is a 32-bit
// length and bytes. Answer to set: 1 byte 0; to get: the value as a block, sent when the key exists.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <shoal/store.h>

#include "src/bootstrap/socket.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kMagic = 0x54534853;  // "SHST"
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kMaxKeyBytes = 4096;
constexpr std::uint32_t kMaxValueBytes = 1 << 20;
constexpr std::size_t kMaxConnections = 16384;
constexpr std::size_t kMaxStrangers = 256;         // connections that have not said hello; above, they queue in the kernel
constexpr std::size_t kMaxPendingBytes = 4 << 20;  // answers that a client does not read
constexpr auto kHelloPatience = std::chrono::seconds(10);
constexpr auto kCrowdedPatience = std::chrono::seconds(1);         // where strangers keep others from coming in
constexpr auto kDescriptorPause = std::chrono::milliseconds(100);  // before accept is tried again after it failed

enum Answer : char { kWelcome = 0, kOtherJob = 1, kOtherVersion = 2 };
enum Request : char { kSet = 1, kGet = 2 };

void append_number(std::string& out, std::uint32_t value) { out.append(reinterpret_cast<const char*>(&value), sizeof value); }

void append_block(std::string& out, std::string_view bytes) {
  append_number(out, static_cast<std::uint32_t>(bytes.size()));
  out.append(bytes);
}

// Takes fields off the front of what a client has sent so far. Nothing is taken unless a whole request is there.
class Parser {
 public:
  explicit Parser(std::string_view bytes) : rest_(bytes), size_(bytes.size()) {}

  std::optional<char> byte() {
    if (rest_.empty()) return std::nullopt;
    const char value = rest_.front();
    rest_.remove_prefix(1);
    return value;
  }
  std::optional<std::uint32_t> number() {
    std::uint32_t value = 0;
    if (rest_.size() < sizeof value) return std::nullopt;
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  // nullopt: not there yet; *hostile is set where the length is beyond `limit`.
  std::optional<std::string_view> block(std::uint32_t limit, bool* hostile) {
    const auto length = number();
    if (!length) return std::nullopt;
    if (*length > limit) {
      *hostile = true;
      return std::nullopt;
    }
    if (rest_.size() < *length) return std::nullopt;
    const std::string_view bytes = rest_.substr(0, *length);
    rest_.remove_prefix(*length);
    return bytes;
  }
  [[nodiscard]] std::size_t taken() const { return size_ - rest_.size(); }

 private:
  std::string_view rest_;
  std::size_t size_;
};

class Server {
 public:
  Server(Descriptor listener, std::string job)
      : listener_(std::move(listener)),
        job_(std::move(job)),
        stop_event_(::eventfd(0, EFD_CLOEXEC)),
        thread_([this] { serve(); }) {}
  ~Server() {
    const std::uint64_t one = 1;
    while (::write(stop_event_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  struct Client {
    Descriptor socket;
    Clock::time_point since;
    bool welcome = false;
    bool broken = false;
    bool last_answer = false;  // close once it is sent
    std::string received;
    std::string unsent;
    std::optional<std::string> wanted;  // key of a get that waits
  };

  void serve() {
    std::vector<pollfd> descriptors;
    for (;;) {
      const auto strangers =
          std::count_if(clients_.begin(), clients_.end(), [](const Client& client) { return !client.welcome; });
      const bool crowded = static_cast<std::size_t>(strangers) >= kMaxStrangers;
      const bool paused = Clock::now() < accept_again_;
      const short listen_for = crowded || paused ? 0 : POLLIN;
      descriptors.assign({{stop_event_.get(), POLLIN, 0}, {listener_.get(), listen_for, 0}});
      for (const Client& client : clients_) {
        descriptors.push_back({client.socket.get(), static_cast<short>(client.unsent.empty() ? POLLIN : POLLIN | POLLOUT), 0});
      }
      const auto timeout = paused ? kDescriptorPause : std::chrono::milliseconds(1000);
      if (::poll(descriptors.data(), descriptors.size(), static_cast<int>(timeout.count())) < 0) {
        if (errno != EINTR) return;
        continue;  // the answers of poll mean nothing now
      }
      if ((descriptors[0].revents & POLLIN) != 0) return;
      std::size_t i = 2;
      for (Client& client : clients_) {
        if (descriptors[i++].revents != 0) receive(client);
      }
      for (Client& client : clients_) send_unsent(client);
      const auto now = Clock::now();
      const auto patience = crowded ? kCrowdedPatience : kHelloPatience;
      clients_.remove_if([now, patience](const Client& client) {
        return client.broken || (client.last_answer && client.unsent.empty()) ||
               (!client.welcome && now - client.since > patience);
      });
      if ((descriptors[1].revents & POLLIN) != 0) accept_clients(kMaxStrangers - static_cast<std::size_t>(strangers));
    }
  }

  void accept_clients(std::size_t limit) {
    for (std::size_t i = 0; i < limit; ++i) {
      const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        // Out of descriptors: the connection stays in the queue, and poll would report it over and over.
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
          accept_again_ = Clock::now() + kDescriptorPause;
        return;
      }
      Descriptor socket(fd);
      if (clients_.size() >= kMaxConnections) continue;
      clients_.emplace_back();
      clients_.back().socket = std::move(socket);
      clients_.back().since = Clock::now();
    }
  }

  void receive(Client& client) {
    char buffer[16384];
    for (;;) {
      const ssize_t got = ::recv(client.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) client.broken = true;
      if (got <= 0) break;
      client.received.append(buffer, static_cast<std::size_t>(got));
      while (handle(client)) {
      }
      if (client.broken || client.received.size() > kMaxKeyBytes + kMaxValueBytes + 64) {
        client.broken = true;
        return;
      }
    }
  }

  // One whole message; false where there is none (or the client is hostile).
  bool handle(Client& client) {
    if (client.broken || client.last_answer || client.wanted) return false;
    Parser parser(client.received);
    bool hostile = false;
    const bool taken = client.welcome ? handle_request(client, parser, &hostile) : handle_hello(client, parser, &hostile);
    if (hostile || client.unsent.size() > kMaxPendingBytes) client.broken = true;
    if (!taken || client.broken) return false;
    client.received.erase(0, parser.taken());
    return true;
  }

  bool handle_hello(Client& client, Parser& parser, bool* hostile) {
    const auto magic = parser.number();
    const auto version = parser.number();
    *hostile = magic && *magic != kMagic;
    if (*hostile || !version) return false;
    const auto job = parser.block(kMaxKeyBytes, hostile);
    if (!job) return false;
    const char answer = *version != kVersion ? kOtherVersion : *job != job_ ? kOtherJob : kWelcome;
    client.unsent.push_back(answer);
    append_block(client.unsent, job_);
    client.welcome = answer == kWelcome;
    client.last_answer = answer != kWelcome;
    return true;
  }

  bool handle_request(Client& client, Parser& parser, bool* hostile) {
    const auto request = parser.byte();
    if (!request) return false;
    *hostile = *request != kSet && *request != kGet;
    if (*hostile) return false;
    const auto key = parser.block(kMaxKeyBytes, hostile);
    if (!key) return false;
    if (*request == kGet) {
      client.wanted = std::string(*key);
      answer_if_known(client);
      return true;
    }
    const auto value = parser.block(kMaxValueBytes, hostile);
    if (!value) return false;
    values_.insert_or_assign(std::string(*key), std::string(*value));
    client.unsent.push_back(0);
    for (Client& other : clients_) answer_if_known(other);
    return true;
  }

  void answer_if_known(Client& client) {
    if (!client.wanted) return;
    const auto found = values_.find(*client.wanted);
    if (found == values_.end()) return;
    append_block(client.unsent, found->second);
    client.wanted.reset();
  }

  static void send_unsent(Client& client) {
    while (!client.unsent.empty() && !client.broken) {
      const ssize_t sent = ::send(client.socket.get(), client.unsent.data(), client.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        client.unsent.erase(0, static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        return;
      } else if (errno != EINTR) {
        client.broken = true;
      }
    }
  }

  Descriptor listener_;
  std::string job_;
  Descriptor stop_event_;
  std::map<std::string, std::string> values_;
  std::list<Client> clients_;
  Clock::time_point accept_again_{};
  std::thread thread_;  // last: starts when everything else is there
};

Status say_hello(int fd, std::string_view job, const std::string& where, Clock::time_point deadline) {
  std::string hello;
  append_number(hello, kMagic);
  append_number(hello, kVersion);
  append_block(hello, job);
  char answer = 0;
  std::uint32_t length = 0;
  Status status = send_all(fd, hello.data(), hello.size(), deadline);
  if (status.ok()) status = receive_all(fd, &answer, 1, deadline);
  if (status.ok()) status = receive_all(fd, &length, sizeof length, deadline);
  std::string theirs(std::min(length, kMaxKeyBytes), '\0');
  if (status.ok()) status = receive_all(fd, theirs.data(), theirs.size(), deadline);
  if (!status.ok()) return {status.code(), fmt::format("store at {} does not answer as one: {}", where, status.message())};
  if (answer == kOtherJob) {
    return {StatusCode::invalid_argument,
            fmt::format("store at {} serves job '{}', not '{}': two jobs use one port; give one of them another", where, theirs,
                        job)};
  }
  if (answer != kWelcome) return {StatusCode::unsupported, fmt::format("store at {} speaks another version of shoal", where)};
  return {};
}

class TcpStore final : public Store {
 public:
  TcpStore(std::unique_ptr<Server> server, const std::string& host, int port, std::string_view job)
      : server_(std::move(server)), host_(host), port_(port), job_(job), where_(fmt::format("{}:{}", host, port)) {}

  Status set(std::string_view key, std::string_view value) override {
    if (key.size() > kMaxKeyBytes || value.size() > kMaxValueBytes) {
      return {StatusCode::invalid_argument,
              fmt::format("store: key of {} or value of {} bytes is too long", key.size(), value.size())};
    }
    const auto deadline = Clock::now() + kAnswerPatience;
    std::string request(1, kSet);
    append_block(request, key);
    append_block(request, value);
    char answer = 0;
    Status status = connect(deadline);
    if (status.ok()) status = send_all(socket_->get(), request.data(), request.size(), deadline);
    if (status.ok()) status = receive_all(socket_->get(), &answer, 1, deadline);
    return explain(status, key);
  }

  Result<std::string> get(std::string_view key, Clock::time_point deadline) override {
    if (key.size() > kMaxKeyBytes) {
      return Status(StatusCode::invalid_argument, fmt::format("store: key of {} bytes is too long", key.size()));
    }
    std::string request(1, kGet);
    append_block(request, key);
    std::uint32_t length = 0;
    std::string value;
    Status status = connect(deadline);
    if (status.ok()) status = send_all(socket_->get(), request.data(), request.size(), deadline);
    if (status.ok()) status = receive_all(socket_->get(), &length, sizeof length, deadline);
    if (status.ok() && length > kMaxValueBytes) status = Status(StatusCode::system_error, "it is not a shoal store");
    if (status.ok()) {
      value.resize(length);
      status = receive_all(socket_->get(), value.data(), length, deadline);
    }
    if (!status.ok()) return explain(status, key);
    return value;
  }

  /// Connects where there is no connection. Errors: those of connect_to and say_hello.
  Status connect(Clock::time_point deadline) {
    if (!lost_.ok() || socket_) return lost_;
    auto socket = connect_to(host_, port_, deadline);
    if (!socket.ok()) return {socket.status().code(), "rank 0's store cannot be reached: " + socket.status().message()};
    if (Status status = say_hello(socket->get(), job_, where_, deadline); !status.ok()) return status;
    socket_ = std::move(socket).value();
    return {};
  }

 private:
  static constexpr auto kAnswerPatience = std::chrono::seconds(60);

  // An answer that came too late would be taken for that to the next request, so a call that has failed ends the connection.
  // After a timeout the next call makes another one; a server that is gone stays gone.
  [[nodiscard]] Status explain(const Status& status, std::string_view key) {
    if (status.ok()) return status;
    socket_.reset();
    if (status.code() != StatusCode::timeout) lost_ = status;
    return {status.code(), fmt::format("store at {}, key '{}': {}", where_, key, status.message())};
  }

  std::unique_ptr<Server> server_;  // on the rank that serves
  std::string host_;
  int port_;
  std::string job_;
  std::string where_;
  std::optional<Descriptor> socket_;
  Status lost_;
};

}  // namespace

Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool is_server, std::string_view job,
                                              Clock::time_point deadline) {
  if (job.size() > kMaxKeyBytes) return Status(StatusCode::invalid_argument, "the job's name is too long");
  if (port < 1 || port > 65535) return Status(StatusCode::invalid_argument, fmt::format("store: {} is not a port", port));
  std::unique_ptr<Server> server;
  if (is_server) {
    auto listener = listen_on(host, port);
    if (!listener.ok()) {
      return Status(listener.status().code(), fmt::format("rank 0 cannot serve its store: {}", listener.status().message()));
    }
    server = std::make_unique<Server>(std::move(listener).value(), std::string(job));
  }
  auto store = std::make_unique<TcpStore>(std::move(server), host, port, job);
  if (Status status = store->connect(deadline); !status.ok()) return status;
  return std::unique_ptr<Store>(std::move(store));
}

}  // namespace shoal
