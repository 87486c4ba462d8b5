#include "src/join/tcp_store_server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

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
  Descriptors made;
  made.listener = std::move(listener).value();
  made.epoll = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  made.wake = make_event();
  made.spare = Descriptor(made.wake.valid() ? ::fcntl(made.wake.get(), F_DUPFD_CLOEXEC, 0) : -1);
  if (!made.epoll.valid() || !made.spare.valid()) return cannot(descriptor_error("eventfd or epoll", errno));
  if (!change_watch(made.epoll, EPOLL_CTL_ADD, made.wake, kReadable, nullptr) ||
      !change_watch(made.epoll, EPOLL_CTL_ADD, made.listener, kNothing, nullptr))
    return cannot(system_error("epoll_ctl", errno));
  return std::unique_ptr<TcpStoreServer>(new TcpStoreServer(std::move(made), *taken, job, key));
}

TcpStoreServer::TcpStoreServer(Descriptors descriptors, int port, std::string_view job, const Key& key)
    : descriptors_(std::move(descriptors)),
      port_(port),
      table_{std::string(job), key, {}},
      silence_limit_(silence_limit()),
      admission_("store", kMaxUnauthenticated),
      thread_(quiet_thread([this] { serve(); })) {}

TcpStoreServer::~TcpStoreServer() {
  over_ = true;
  ring_event(descriptors_.wake.get());
  thread_.join();
}

std::vector<int> TcpStoreServer::absent(int size) const {
  const std::lock_guard<std::mutex> lock(table_mutex_);
  return table_.absent(size);
}

void TcpStoreServer::serve() {
  std::array<epoll_event, 64> events;
  while (!over_) {
    const bool paused = Clock::now() < admission_.accept_again();
    listen(!paused);
    const auto longest = paused ? kPause : kLongestWait;
    const int count = ::epoll_wait(descriptors_.epoll.get(), events.data(), static_cast<int>(events.size()),
                                   static_cast<int>(longest.count()));
    if (count < 0) continue;  // a signal
    const std::lock_guard<std::mutex> lock(table_mutex_);
    bool knocks = false;
    for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(count))) {
      if (event.data.ptr == this)
        knocks = true;
      else if (event.data.ptr != nullptr)
        serve_client(*static_cast<Client*>(event.data.ptr));
    }
    settle();
    drop_late_clients();
    if (knocks) accept_clients();  // last: it may drop a client for which there is an event
  }
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
  while (!table_.answered.empty() || !finished_.empty()) {
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
