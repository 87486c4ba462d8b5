#include "src/join/tcp_store_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <shoal/limits.h>

#include "src/base/event.h"
#include "src/base/quiet_thread.h"
#include "src/base/tcp_options.h"
#include "src/join/socket.h"
#include "src/join/store_session.h"

namespace shoal {
namespace {

constexpr std::uint32_t kNothing = 0;  // of the events that a descriptor is watched for
constexpr std::uint32_t kReadable = EPOLLIN;
constexpr std::uint32_t kWritable = EPOLLOUT;
constexpr std::size_t kMaxUnauthenticated = 256;  // connections at a time; beyond it a new one displaces an old one
constexpr std::size_t kMaxConnections = kMaxJobRanks + kMaxUnauthenticated;
constexpr int kMaxReadsInARow = 16;  // so that one client does not delay the other ones
constexpr auto kUnauthenticatedTimeLimit = std::chrono::seconds(10);
constexpr auto kPause = std::chrono::milliseconds(100);  // before a retry of what failed for lack of resources
constexpr auto kLongestWait = std::chrono::milliseconds(1000);

bool change_watch(const Descriptor& epoll, int operation, const Descriptor& descriptor, std::uint32_t events, void* whose) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = whose;
  return ::epoll_ctl(epoll.get(), operation, descriptor.get(), &event) == 0;
}

}  // namespace

struct TcpStoreServer::Client final : StoreSession {
  Client(Descriptor connection, const Descriptor& watches, StoreTable& table)
      : StoreSession(table), socket(std::move(connection)), epoll(watches) {}
  // Before the socket is closed: a child of fork() may have a copy of it, which would keep it in the set.
  ~Client() { change_watch(epoll, EPOLL_CTL_DEL, socket, kNothing, nullptr); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Descriptor socket;
  const Descriptor& epoll;
  const Clock::time_point since = Clock::now();
  std::list<Held>::iterator self;  // in the list of those that have proven the key, or of the others
  bool proven = false;
  bool finished = false;
  std::uint32_t watched = 0;  // events
};

bool TcpStoreServer::Held::greeted() const { return !client->silent(); }

Result<std::unique_ptr<TcpStoreServer>> TcpStoreServer::start(const std::string& host, int port, std::string_view job,
                                                              const Key& key) {
  const auto cannot = [](const Status& why) {
    return Status(why.code(), fmt::format("rank 0 cannot serve its store: {}", why.message()));
  };
  auto listener = listen_on(host, port);
  const auto taken = listener.ok() ? port_of(*listener) : Result<int>(listener.status());
  if (!taken.ok()) return cannot(taken.status());
  auto opened = prepare(std::move(listener).value());
  if (!opened.ok()) return cannot(opened.status());
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(opened).value(), *taken, job, key, std::nullopt));
}

Result<std::unique_ptr<TcpStoreServer>> TcpStoreServer::keep(Kept kept, std::string_view job, const Key& key) {
  auto opened = prepare(std::move(kept.listener));
  if (!opened.ok()) return opened.status();
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(opened).value(), 0, job, key, std::move(kept)));
}

Result<TcpStoreServer::Descriptors> TcpStoreServer::prepare(Descriptor listener) {
  Descriptors made;
  made.listener = std::move(listener);
  made.epoll = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  made.wake = make_event();
  made.spare = Descriptor(made.wake.valid() ? ::fcntl(made.wake.get(), F_DUPFD_CLOEXEC, 0) : -1);
  if (!made.epoll.valid() || !made.spare.valid()) return descriptor_error("eventfd or epoll", errno);
  if (!change_watch(made.epoll, EPOLL_CTL_ADD, made.wake, kReadable, nullptr) ||
      !change_watch(made.epoll, EPOLL_CTL_ADD, made.listener, kNothing, nullptr))
    return system_error("epoll_ctl", errno);
  return made;
}

TcpStoreServer::Relay::Relay(StoreTable& table, Kept kept) : Relay(table, kept.to_store.release(), kept.expected) {}

TcpStoreServer::Relay::Relay(StoreTable& table, std::pair<Descriptor, RecordCipher> connection, std::size_t expected)
    : socket(std::move(connection.first)), relay(table, std::move(connection.second), expected) {}

TcpStoreServer::TcpStoreServer(Descriptors descriptors, int port, std::string_view job, const Key& key,
                               std::optional<Kept> kept)
    : descriptors_(std::move(descriptors)),
      port_(port),
      table_{std::string(job), key, {}},
      silence_limit_(silence_limit()),
      admission_("store", kMaxUnauthenticated) {
  if (kept) {
    table_.server = static_cast<std::uint32_t>(kept->rank);
    table_.values.emplace(kKeeperKey, std::to_string(kept->rank));
    relay_.emplace(table_, *std::move(kept));
    table_.relay = &relay_->relay;
  }
  thread_ = quiet_thread([this] { serve(); });
}

TcpStoreServer::~TcpStoreServer() {
  over_ = true;
  ring_event(descriptors_.wake.get());
  thread_.join();
  // A child of fork() may have a copy of it, at which ranks of a later start would wait for a keeper.
  if (relay_) ::shutdown(descriptors_.listener.get(), SHUT_RDWR);
}

std::vector<int> TcpStoreServer::absent(int size) const {
  const std::lock_guard<std::mutex> lock(table_mutex_);
  return table_.absent(size);
}

std::uint64_t TcpStoreServer::requests() const {
  const std::lock_guard<std::mutex> lock(table_mutex_);
  return table_.requests;
}

void TcpStoreServer::serve() {
  std::array<epoll_event, 64> events;
  {
    const std::lock_guard<std::mutex> lock(table_mutex_);
    send_to_store();  // nothing yet: it watches the connection
  }
  while (!over_) {
    const bool paused = Clock::now() < admission_.accept_again();
    listen(!paused);
    const int count = ::epoll_wait(descriptors_.epoll.get(), events.data(), static_cast<int>(events.size()),
                                   static_cast<int>(longest_wait(paused).count()));
    if (count < 0) continue;  // a signal
    const std::lock_guard<std::mutex> lock(table_mutex_);
    bool knocks = false;
    for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(count))) {
      if (event.data.ptr == this)
        knocks = true;
      else if (relay_ && event.data.ptr == &*relay_)
        serve_relay();
      else if (event.data.ptr != nullptr)
        serve_client(*static_cast<Client*>(event.data.ptr));
    }
    if (relay_) relay_->relay.pass_on(Clock::now());
    settle();
    drop_late_clients();
    if (knocks) accept_clients();  // last: it may drop a client for which there is an event
    left_.notify_all();
  }
  send_to_store();  // that the ranks of this host have left
  end_relay();
}

std::chrono::milliseconds TcpStoreServer::longest_wait(bool paused) const {
  const auto longest = paused ? kPause : kLongestWait;
  if (!relay_) return longest;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(relay_->relay.due() - Clock::now());
  return std::clamp(left, std::chrono::milliseconds(0), longest);
}

void TcpStoreServer::serve_relay() {
  std::array<char, 16384> buffer;
  StoreRelay& relay = relay_->relay;
  for (int reads = 0; reads < kMaxReadsInARow && !relay.over(); ++reads) {
    const ssize_t got = ::recv(relay_->socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0)
      relay.receive({buffer.data(), static_cast<std::size_t>(got)});
    else if (got == 0 || (errno != EAGAIN && errno != EINTR))
      relay.end();
    else
      break;
  }
  send_to_store();
}

// Sends what the relay has for rank 0's store, and watches the connection for what is useful.
void TcpStoreServer::send_to_store() {
  if (!relay_ || !relay_->socket.valid()) return;
  std::string& unsent = relay_->relay.unsent;
  while (!unsent.empty()) {
    const ssize_t sent = ::send(relay_->socket.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0)
      unsent.erase(0, static_cast<std::size_t>(sent));
    else if (errno == EAGAIN)
      break;
    else if (errno != EINTR)
      relay_->relay.end();
  }
  if (relay_->relay.over()) {
    end_relay();
    return;
  }
  const std::uint32_t events = kReadable | (unsent.empty() ? kNothing : kWritable);
  const int operation = relay_->watched == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (relay_->watched == events) return;
  relay_->watched = events;
  if (!change_watch(descriptors_.epoll, operation, relay_->socket, events, &*relay_)) relay_->relay.end();  // no memory
}

// Also if a child of fork() has a copy of the socket.
void TcpStoreServer::end_relay() {
  if (!relay_ || !relay_->socket.valid()) return;
  change_watch(descriptors_.epoll, EPOLL_CTL_DEL, relay_->socket, kNothing, nullptr);
  ::shutdown(relay_->socket.get(), SHUT_RDWR);
  relay_->socket.reset();
}

void TcpStoreServer::await_leaves(Clock::time_point deadline) {
  std::unique_lock<std::mutex> lock(table_mutex_);
  left_.wait_until(lock, deadline, [this] { return table_.entered.empty(); });
  relay_->relay.leave();
}

void TcpStoreServer::listen(bool listens) {
  if (listens == listens_) return;
  if (change_watch(descriptors_.epoll, EPOLL_CTL_MOD, descriptors_.listener, listens ? kReadable : kNothing, this))
    listens_ = listens;
}

void TcpStoreServer::accept_clients() {
  // A limited number at a time, so that clients of the job and new connections are served in between.
  for (std::size_t i = 0; i < kMaxUnauthenticated / 4; ++i) {
    Descriptor socket = admission_.accept(descriptors_.listener.get());
    if (!socket.valid()) break;
    if (relay_ && !is_of_same_user(socket.get())) {
      admission_.refuse("it belongs to another user");
      continue;
    }
    if (admission_.unproven.size() + clients_.size() >= kMaxConnections) {
      admission_.refuse("there were too many connections at a time");
      continue;
    }
    tcp::tune_handshake(socket.get(), silence_limit_);
    Held& held = admission_.add({std::make_unique<Client>(std::move(socket), descriptors_.epoll, table_)});
    Client& client = *held.client;
    client.self = std::prev(admission_.unproven.end());
    client.watched = kReadable;
    if (!change_watch(descriptors_.epoll, EPOLL_CTL_ADD, client.socket, kReadable, &client))
      drop(client, "it could not be watched");  // no memory
  }
  if (admission_.shortage() == 0) return;
  if (!descriptors_.spare.valid()) admission_.pause();
  descriptors_.spare.reset();
}

void TcpStoreServer::serve_client(Client& client) {
  receive(client);
  if (!client.proven && client.trusted()) {
    client.proven = true;
    clients_.splice(clients_.end(), admission_.unproven, client.self);
  }
  send_unsent(client);
}

void TcpStoreServer::receive(Client& client) {
  std::array<char, 16384> buffer;
  for (int reads = 0; reads < kMaxReadsInARow && !client.finished && !client.over(); ++reads) {
    const ssize_t got = ::recv(client.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
      finish(client);
      client.lost();  // before another process enters as its rank
    }
    if (got <= 0) break;
    client.receive({buffer.data(), static_cast<std::size_t>(got)});
  }
}

void TcpStoreServer::send_unsent(Client& client) {
  std::string& unsent = client.unsent;
  for (client.refill(); !unsent.empty() && !client.finished; client.refill()) {
    const ssize_t sent = ::send(client.socket.get(), unsent.data(), unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0)
      unsent.erase(0, static_cast<std::size_t>(sent));
    else if (errno == EAGAIN)
      break;
    else if (errno != EINTR)
      finish(client);
  }
  if (client.over() && unsent.empty()) finish(client);
  watch(client);
}

void TcpStoreServer::finish(Client& client) {
  if (!std::exchange(client.finished, true)) finished_.push_back(&client);
}

// Waits for what is useful only: a client that is refused may go on sending.
void TcpStoreServer::watch(Client& client) {
  const std::uint32_t reads = client.over() ? kNothing : kReadable;
  const std::uint32_t events = reads | (client.unsent.empty() ? kNothing : kWritable);
  if (client.finished || client.watched == events) return;
  if (change_watch(descriptors_.epoll, EPOLL_CTL_MOD, client.socket, events, &client)) client.watched = events;
}

// Sends the answers to clients that waited for this one, and drops those that are finished.
void TcpStoreServer::settle() {
  const auto relay_sends = [this] {
    return relay_ && relay_->socket.valid() && !relay_->relay.unsent.empty() && (relay_->watched & kWritable) == 0;
  };
  while (!table_.answered.empty() || !finished_.empty() || relay_sends()) {
    send_to_store();
    for (StoreSession* const session : std::exchange(table_.answered, {})) send_unsent(static_cast<Client&>(*session));
    for (Client* const client : std::exchange(finished_, {})) drop(*client, "it closed before the handshake was complete");
  }
}

// `why` is counted for a client that has not authenticated.
void TcpStoreServer::drop(Client& client, std::string_view why) {
  if (!client.refused().empty())
    admission_.refuse(client.refused());
  else if (!client.proven && !client.over())
    admission_.refuse(why);
  client.lost();
  (client.proven ? clients_ : admission_.unproven).erase(client.self);
}

void TcpStoreServer::drop_late_clients() {
  const auto now = Clock::now();
  while (!admission_.unproven.empty()) {
    Client& oldest = *admission_.unproven.front().client;
    if (now - oldest.since <= kUnauthenticatedTimeLimit) break;
    drop(oldest, "it did not complete the handshake in time");
  }
}

}  // namespace shoal
