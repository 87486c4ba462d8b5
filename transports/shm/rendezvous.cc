#include "transports/shm/rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/descriptor_limit.h"
#include "src/base/hash.h"
#include "src/trust/admission.h"
#include "src/trust/proof.h"
#include "transports/shm/message.h"

namespace shoal::shm {

namespace {

using Deadline = std::chrono::steady_clock::time_point;

/// Limit of connections that have not sent a hello. More at once cannot all be ranks of this job.
constexpr std::size_t kMaxUnknown = 64;

/// A connection that has not sent a hello. The hello proves the job's secret, so there is no greeting before it.
struct Unknown {
  Descriptor socket;
  [[nodiscard]] static bool greeted() noexcept { return false; }
};

constexpr const char* kOtherUser =
    "; the ranks of one host share memory only as one user: run all as the same user, or set SHOAL_TRANSPORTS=tcp on all ranks";

/// The start of address(), of fixed size; the name of the socket follows.
struct AddressHead {
  std::uint64_t magic = kSegmentMagic;
  std::uint32_t version = kProtocolVersion;
  std::int32_t rank = 0;
  std::uint64_t job_id = 0;
  std::array<std::byte, 16> secret{};
};
static_assert(sizeof(AddressHead) == 40, "no padding: the bytes are compared and sent");

/// Hash of the ranks of the group, by which two ranks detect that their lists differ.
std::uint64_t hash_ranks(const std::vector<int>& ranks) { return hash_of(std::as_bytes(std::span(ranks))); }

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

/// Whether the process at the other end of a Unix socket runs as the same user as this one.
bool same_user(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0 && credentials.uid == ::geteuid();
}

/// The reason in a refusal. A text of the system names no rank, so the rank that sent it is added.
Status told_by(int rank, const Message& refusal) {
  Status status = refusal_status(refusal);
  if (status.message().find("rank ") != std::string::npos) return status;
  return {status.code(), "rank " + std::to_string(rank) + " aborted: " + status.message()};
}

SegmentLayout layout_of(const GroupSettings& settings, std::size_t ranks) {
  return {ranks, settings.ring, settings.window_bytes};
}

std::size_t position_of(const std::vector<int>& ranks, int rank) {
  return static_cast<std::size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

/// The error that this process has no room for descriptors: `what` failed. `ranks`: size of the group; the lowest rank has a
/// connection with each of them.
Status no_room_for_descriptors(const std::string& what, std::size_t ranks) {
  return descriptor_error(
      "shm: " + what, EMFILE,
      ", and the " + std::to_string(ranks) + " ranks of this host need " + std::to_string(ranks + 1) + " in addition");
}

/// Polls one descriptor for input, at most until the deadline.
void wait_readable(int fd, Deadline deadline) {
  pollfd item{fd, POLLIN, 0};
  ::poll(&item, 1, poll_timeout_ms(deadline));
}

/// The lowest rank's side. One object lives for one call of lead_group().
class Leader {
 public:
  Leader(int listener, const std::array<std::byte, 16>& secret, const GroupSettings& settings, const std::vector<int>& ranks,
         const RankCard& card, ConnectDeadline time_limit)
      : listener_(listener),
        secret_(secret),
        settings_(settings),
        ranks_(ranks),
        card_(card),
        time_limit_(std::move(time_limit)),
        processes_(ranks.size()),
        sockets_(ranks.size()),
        ready_(ranks.size(), false) {
    group_.lives.resize(ranks.size());
    processes_[0] = card_.process;
    ready_[0] = true;
  }

  Result<Group> run() {
    Status status = gather();
    if (status.ok()) status = hand_out();
    if (status.ok()) status = await_ready();
    if (!status.ok()) {
      broadcast(make_refusal(status));
      return status;
    }
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (i == 0 || processes_[i].is_valid_for(processes_[0])) group_.lives[i].reset();
    }
    broadcast(make_message(MessageKind::go));
    return std::move(group_);
  }
  /// The connections of all ranks, and of peers without a hello.
  std::vector<Descriptor> take_sockets() {
    for (Unknown& unknown : unknown_.unproven) sockets_.push_back(std::move(unknown.socket));
    return std::move(sockets_);
  }

 private:
  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> result;
    for (std::size_t i = 1; i < ranks_.size(); ++i) {
      if (!sockets_[i].valid()) result.push_back(ranks_[i]);
    }
    return result;
  }

  void broadcast(const Message& message) {
    for (const Descriptor& socket : sockets_) {
      if (socket.valid()) send_message(socket.get(), message);  // a rank that has ended is detected when its socket is read
    }
  }

  /// Waits until every rank has sent its hello.
  Status gather() {
    std::vector<pollfd> items;
    while (!missing().empty()) {
      const bool paused = std::chrono::steady_clock::now() < unknown_.accept_again();
      items.assign(1, {listener_, static_cast<short>(paused ? 0 : POLLIN), 0});
      for (const Unknown& unknown : unknown_.unproven) items.push_back({unknown.socket.get(), POLLIN, 0});
      for (std::size_t i = 1; i < sockets_.size(); ++i) {
        if (sockets_[i].valid()) items.push_back({sockets_[i].get(), POLLIN, 0});
      }
      const Deadline until = paused ? std::min(time_limit_.next(), unknown_.accept_again()) : time_limit_.next();
      const int count = ::poll(items.data(), items.size(), poll_timeout_ms(until));
      if (count < 0 && errno != EINTR) return system_error("shm: poll while waiting for ranks", errno);
      if (Status status = read_members(); !status.ok()) return status;
      if (Status status = read_unknown(); !status.ok()) return status;
      if (count > 0 && (items[0].revents & POLLIN) != 0) {
        if (Status status = accept_one(); !status.ok()) return status;
      }
      // Checked in each pass: unauthenticated connections may arrive faster than they are read.
      if (missing().empty()) break;
      if (std::chrono::steady_clock::now() >= time_limit_.deadline()) return late();
      if (Status status = time_limit_.check(); !status.ok()) return status;
    }
    refuse_rest();
    return {};
  }

  [[nodiscard]] Status late() const {
    std::string text =
        "shm: " + list_ranks(missing()) + " did not connect to rank " + std::to_string(ranks_[0]) + " by the deadline";
    if (other_users_ > 0) text += kOtherUser;
    return {StatusCode::timeout, text + unknown_.to_text()};
  }

  /// All ranks have joined: drops and counts all other connections, also those that wait to be accepted.
  void refuse_rest() {
    for (std::size_t i = 0; i < kMaxUnknown; ++i) {
      if (!unknown_.accept(listener_).valid()) break;
      unknown_.refuse("all ranks had joined");
    }
    for (; !unknown_.unproven.empty(); unknown_.unproven.pop_front()) unknown_.refuse("all ranks had joined");
  }

  Status accept_one() {
    Descriptor socket = unknown_.accept(listener_);
    if (unknown_.shortage() != 0) {
      if (unknown_.is_stuck(listener_))
        return no_room_for_descriptors("accept a connection of " + list_ranks(missing()), ranks_.size());
      unknown_.pause();
      unknown_.drop_one();
    } else if (socket.valid() && !same_user(socket.get())) {
      ++other_users_;
      unknown_.refuse("it belongs to another user");
    } else if (socket.valid()) {
      unknown_.add({std::move(socket)});
    }
    return {};
  }

  /// Reads hellos. A connection that is not authenticated is dropped; only a rank of this job with other settings is an
  /// error.
  Status read_unknown() {
    for (auto next = unknown_.unproven.begin(); next != unknown_.unproven.end();) {
      const auto unknown = next++;
      Received received = receive_message(unknown->socket.get());
      if (received.outcome == ReceiveOutcome::nothing) continue;
      Descriptor socket = std::move(unknown->socket);
      unknown_.unproven.erase(unknown);
      const Message& hello = received.message;
      const bool whole = received.outcome == ReceiveOutcome::message || received.outcome == ReceiveOutcome::no_room;
      if (!whole || hello.kind != MessageKind::hello || !same(hello.secret, secret_) || hello.job_id != settings_.job_id) {
        unknown_.refuse("it does not know this job's secret");
        continue;
      }
      if (received.outcome == ReceiveOutcome::no_room)
        return no_room_for_descriptors("take the descriptors of rank " + std::to_string(hello.rank), ranks_.size());
      const std::size_t position = position_of(ranks_, hello.rank);
      if (position == 0 || position == ranks_.size() || ranks_[position] != hello.rank || sockets_[position].valid() ||
          received.descriptors.size() != (hello.has_life != 0 ? 1U : 0U)) {
        unknown_.refuse("it claims to be a rank that is not expected");
        continue;
      }
      sockets_[position] = std::move(socket);
      processes_[position] = hello.process;
      if (hello.has_life != 0 && !hello.process.is_valid_for(processes_[0]))
        group_.lives[position] = std::move(received.descriptors[0]);
      if (Status status = check_settings(hello); !status.ok()) return status;
      announce();
    }
    return {};
  }

  [[nodiscard]] Status check_settings(const Message& hello) const {
    const auto differ = [&](const char* what, std::uint64_t theirs, std::uint64_t ours) {
      return Status(StatusCode::mismatch, "shm: rank " + std::to_string(hello.rank) + " has " + what + " " +
                                              std::to_string(theirs) + ", rank " + std::to_string(ranks_[0]) + " has " +
                                              std::to_string(ours) + "; use the same settings on all ranks");
    };
    if (hello.tile_bytes != settings_.ring.tile_bytes) return differ("tile_bytes", hello.tile_bytes, settings_.ring.tile_bytes);
    if (hello.slots != settings_.ring.slots) return differ("slots", hello.slots, settings_.ring.slots);
    if (hello.window_bytes != settings_.window_bytes) return differ("window_bytes", hello.window_bytes, settings_.window_bytes);
    if (hello.ranks_hash != hash_ranks(ranks_)) {
      return {StatusCode::mismatch, "shm: rank " + std::to_string(hello.rank) + " and rank " + std::to_string(ranks_[0]) +
                                        " name different ranks as their group"};
    }
    return {};
  }

  void announce() {
    Message roster = make_message(MessageKind::roster);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (i == 0 || sockets_[i].valid()) roster.present[i / 8] |= static_cast<std::uint8_t>(1U << (i % 8));
    }
    broadcast(roster);
  }

  /// Reads the messages of ranks that have joined: ready, refusal, or the end of the connection.
  Status read_members() {
    for (std::size_t i = 1; i < sockets_.size(); ++i) {
      if (!sockets_[i].valid()) continue;
      const Received received = receive_message(sockets_[i].get());
      if (received.outcome == ReceiveOutcome::nothing) continue;
      if (received.outcome == ReceiveOutcome::message && received.message.kind == MessageKind::refusal) {
        return told_by(ranks_[i], received.message);
      }
      if (received.outcome == ReceiveOutcome::message && received.message.kind == MessageKind::ready &&
          group_.segment.mapped()) {
        ready_[i] = true;
        continue;
      }
      sockets_[i] = Descriptor();
      return {StatusCode::peer_failed, "shm: rank " + std::to_string(ranks_[i]) + " closed its connection while connecting"};
    }
    return {};
  }

  Status hand_out() {
    Descriptor file;
    Result<Segment> segment = Segment::create(layout_of(settings_, ranks_.size()), settings_.job_id, &file);
    if (!segment.ok()) return segment.status();
    group_.segment = std::move(segment).value();
    group_.segment.block(0).card = card_;
    for (std::size_t i = 1; i < sockets_.size(); ++i) {
      const int socket = sockets_[i].get();
      const std::vector<std::size_t> foreign = foreign_to(i);
      Message welcome = make_message(MessageKind::welcome);
      welcome.members = static_cast<std::uint32_t>(foreign.size());
      bool sent = send_patiently(socket, [&] { return send_message(socket, welcome, file.get()); });
      for (std::size_t m = 0; sent && m < foreign.size(); ++m) {
        Message member = make_message(MessageKind::member);
        member.rank = ranks_[foreign[m]];
        sent = send_patiently(socket, [&] { return send_message(socket, member, group_.lives[foreign[m]].get()); });
      }
      if (!sent) {
        sockets_[i] = Descriptor();
        return {StatusCode::peer_failed, "shm: rank " + std::to_string(ranks_[i]) +
                                             " closed its connection or stopped reading while the ranks were "
                                             "connecting"};
      }
    }
    return {};
  }

  /// The ranks whose processes the rank at `position` cannot open itself, and whose pidfds this rank has or can open.
  std::vector<std::size_t> foreign_to(std::size_t position) {
    std::vector<std::size_t> foreign;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (i == position || processes_[i].is_valid_for(processes_[position])) continue;
      Descriptor& life = group_.lives[i];
      if (!life.valid() && i == 0) life = open_own_process();
      if (!life.valid() && processes_[i].is_valid_for(processes_[0])) static_cast<void>(open_process(processes_[i], life));
      if (life.valid()) foreign.push_back(i);
    }
    return foreign;
  }

  /// A Unix socket queues only a few messages: waits for the reader, at most until the deadline.
  template <typename Send>
  bool send_patiently(int socket, Send send) const {
    while (!send()) {
      if ((errno != EAGAIN && errno != EWOULDBLOCK && errno != ETOOMANYREFS) ||
          std::chrono::steady_clock::now() >= time_limit_.deadline())
        return false;
      pollfd item{socket, POLLOUT, 0};
      ::poll(&item, 1, std::min(poll_timeout_ms(time_limit_.deadline()), 10));
    }
    return true;
  }

  Status await_ready() {
    while (std::find(ready_.begin(), ready_.end(), false) != ready_.end()) {
      std::vector<pollfd> items;
      for (std::size_t i = 1; i < sockets_.size(); ++i) items.push_back({sockets_[i].get(), POLLIN, 0});
      const int count = ::poll(items.data(), items.size(), poll_timeout_ms(time_limit_.next()));
      if (count < 0 && errno != EINTR) return system_error("shm: poll while waiting for ranks", errno);
      if (Status status = read_members(); !status.ok()) return status;
      std::vector<int> late;
      for (std::size_t i = 1; i < ready_.size(); ++i) {
        if (!ready_[i]) late.push_back(ranks_[i]);
      }
      if (late.empty()) break;
      if (std::chrono::steady_clock::now() >= time_limit_.deadline()) {
        return {StatusCode::timeout, "shm: " + list_ranks(late) + " did not map the shared memory by the deadline"};
      }
      if (Status status = time_limit_.check(); !status.ok()) return status;
    }
    return {};
  }

  int listener_;
  const std::array<std::byte, 16>& secret_;
  const GroupSettings& settings_;
  const std::vector<int>& ranks_;
  const RankCard& card_;
  ConnectDeadline time_limit_;
  std::vector<ProcessIdentity> processes_;  ///< by position, as the following
  std::vector<Descriptor> sockets_;         ///< [0] stays invalid: this rank
  std::vector<bool> ready_;
  Admission<Unknown> unknown_{"shm", kMaxUnknown};
  int other_users_ = 0;  ///< of the refused connections
  Group group_;
};

/// Connects to the leader; waits while its queue of connections is full.
Result<Descriptor> dial(std::string_view name, int leader, Deadline deadline) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
  for (;;) {
    Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) return system_error("shm: socket", errno);
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) == 0) return socket;
    if (errno != EAGAIN && errno != EINTR) {
      const int error = errno;
      return Status(StatusCode::peer_failed,
                    system_error("shm: connecting to rank " + std::to_string(leader), error).message() +
                        " (has it ended, or is it on another host or in another network namespace?)");
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(StatusCode::timeout, "shm: rank " + std::to_string(leader) + " accepted no connection by the deadline");
    }
    ::poll(nullptr, 0, std::min(poll_timeout_ms(deadline), 1));
  }
}

/// Sends the hello of `rank`, with a pidfd of this process.
bool send_hello(int socket, const std::array<std::byte, 16>& secret, int rank, const GroupSettings& settings,
                const std::vector<int>& ranks, const ProcessIdentity& process) {
  Message hello = make_message(MessageKind::hello);
  hello.secret = secret;
  hello.rank = rank;
  hello.process = process;
  hello.job_id = settings.job_id;
  hello.ranks_hash = hash_ranks(ranks);
  hello.tile_bytes = settings.ring.tile_bytes;
  hello.slots = settings.ring.slots;
  hello.window_bytes = settings.window_bytes;
  const Descriptor life = open_own_process();
  hello.has_life = life.valid() ? 1 : 0;
  return send_message(socket, hello, life.get());
}

std::vector<int> missing_in(const Message& roster, const std::vector<int>& ranks) {
  std::vector<int> result;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if ((roster.present[i / 8] >> (i % 8) & 1) == 0) result.push_back(ranks[i]);
  }
  return result;
}

}  // namespace

Result<Listener> Listener::create(int rank, std::uint64_t job_id) {
  Listener listener;
  listener.rank_ = rank;
  listener.job_id_ = job_id;
  listener.secret_ = random_nonce();
  listener.socket_ = Descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.socket_.valid()) return system_error("shm: socket", errno);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // An address without a path lets the kernel choose a free abstract name: nothing in any file system, nothing to clean up.
  if (::bind(listener.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(sa_family_t)) != 0) {
    return system_error("shm: bind", errno);
  }
  socklen_t size = sizeof(address);
  if (::getsockname(listener.socket_.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return system_error("shm: getsockname", errno);
  }
  listener.name_.assign(address.sun_path, size - offsetof(sockaddr_un, sun_path));
  if (::listen(listener.socket_.get(), kMaxHostRanks) != 0) return system_error("shm: listen", errno);
  return listener;
}

std::string Listener::address() const {
  AddressHead head;
  head.rank = rank_;
  head.job_id = job_id_;
  head.secret = secret_;
  return std::string(reinterpret_cast<const char*>(&head), sizeof(head)) + name_;
}

Result<LeaderAddress> parse_address(std::string_view bytes, int leader, std::uint64_t job_id) {
  const std::string leader_text = "rank " + std::to_string(leader);
  AddressHead head;
  if (bytes.size() <= sizeof(head) || bytes.size() > sizeof(head) + sizeof(sockaddr_un::sun_path)) {
    return Status(StatusCode::invalid_argument, "shm: the address of " + leader_text + " is not an address of this transport");
  }
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kSegmentMagic || head.version != kProtocolVersion) {
    return Status(StatusCode::invalid_argument,
                  "shm: the address of " + leader_text + " is of another version of this transport");
  }
  if (head.rank != leader || head.job_id != job_id) {
    return Status(StatusCode::mismatch, "shm: the address given for " + leader_text + " belongs to rank " +
                                            std::to_string(head.rank) + (head.job_id == job_id ? "" : " of another job"));
  }
  return LeaderAddress{bytes.substr(sizeof(head)), head.secret};
}

Result<Group> lead_group(Listener& listener, const GroupSettings& settings, const std::vector<int>& ranks, const RankCard& card,
                         ConnectDeadline time_limit) {
  Leader leader(listener.socket_.get(), listener.secret_, settings, ranks, card, std::move(time_limit));
  auto group = leader.run();
  if (!group.ok()) listener.refused_ = leader.take_sockets();
  return group;
}

Result<Group> join_group(const std::string& leader_address, int rank, const GroupSettings& settings,
                         const std::vector<int>& ranks, const RankCard& card, ConnectDeadline time_limit) {
  const int leader = ranks[0];
  const std::string leader_text = "rank " + std::to_string(leader);
  const Result<LeaderAddress> where = parse_address(leader_address, leader, settings.job_id);
  if (!where.ok()) return where.status();

  Result<Descriptor> dialled = dial(where->name, leader, time_limit.deadline());
  if (!dialled.ok()) return dialled.status();
  const int socket = dialled->get();
  if (!same_user(socket))
    return Status(StatusCode::unsupported, "shm: the socket of " + leader_text + " belongs to another user" + kOtherUser);
  const Status gone(StatusCode::peer_failed, "shm: " + leader_text + " closed its connection while connecting");
  if (!send_hello(socket, where->secret, rank, settings, ranks, card.process)) return gone;

  Group group;
  group.lives.resize(ranks.size());
  std::size_t members = 0;  // that are still to come
  const auto tell_if_ready = [&] { return members > 0 || send_message(socket, make_message(MessageKind::ready)); };
  std::vector<int> missing{leader};
  for (;;) {
    Received received = receive_message(socket);
    if (received.outcome == ReceiveOutcome::nothing) {
      Status vain = time_limit.check();
      if (std::chrono::steady_clock::now() >= time_limit.deadline()) {
        if (missing.empty()) missing.push_back(leader);
        vain = {StatusCode::timeout, "shm: " + list_ranks(missing) + " did not connect by the deadline"};
      }
      if (!vain.ok()) {
        send_message(socket, make_refusal(vain));  // so that all ranks name the same missing ranks
        return vain;
      }
      wait_readable(socket, time_limit.next());
      continue;
    }
    if (received.outcome == ReceiveOutcome::no_room) {
      const Status status = no_room_for_descriptors("take the descriptors of the ranks of this host", ranks.size());
      send_message(socket, make_refusal(status));
      return status;
    }
    if (received.outcome != ReceiveOutcome::message) return gone;
    switch (received.message.kind) {
      case MessageKind::roster:
        missing = missing_in(received.message, ranks);
        break;
      case MessageKind::refusal:
        return told_by(ranks[0], received.message);
      case MessageKind::welcome: {
        if (received.descriptors.size() != 1) return gone;
        Result<Segment> segment = Segment::attach(layout_of(settings, ranks.size()), settings.job_id, received.descriptors[0]);
        if (!segment.ok()) {
          send_message(socket, make_refusal(segment.status()));
          return segment.status();
        }
        group.segment = std::move(segment).value();
        group.segment.block(position_of(ranks, rank)).card = card;
        members = received.message.members;
        if (!tell_if_ready()) return gone;
        break;
      }
      case MessageKind::member: {
        const std::size_t position = position_of(ranks, received.message.rank);
        if (position == ranks.size() || ranks[position] != received.message.rank) return gone;
        if (members == 0 || received.descriptors.size() != 1) return gone;
        group.lives[position] = std::move(received.descriptors[0]);
        --members;
        if (!tell_if_ready()) return gone;
        break;
      }
      case MessageKind::go:
        if (members > 0 || !group.segment.mapped()) return gone;
        return group;
      case MessageKind::hello:
      case MessageKind::ready:
        return gone;
    }
  }
}

}  // namespace shoal::shm
