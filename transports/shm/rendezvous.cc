#include "transports/shm/rendezvous.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

#include "src/base/descriptor_limit.h"
#include "src/trust/admission.h"
#include "src/trust/proof.h"
#include "transports/shm/message.h"
#include "transports/shm/rendezvous_tree.h"

namespace shoal::shm {

namespace {

using Clock = std::chrono::steady_clock;

/// Children of a rank. More would mean fewer steps; a rank has so many connections, and one to its parent.
constexpr std::size_t kFanOut = 16;
/// Limit of connections that have not sent a hello. More at once cannot all be ranks of this job.
constexpr std::size_t kMaxUnknown = 64;
/// After the deadline: how much earlier the neighbour of a silent rank names it than the next rank on the way.
constexpr std::chrono::milliseconds kGrace{250};

/// A connection that has not sent a hello. The hello proves the job's secret, so there is no greeting before it.
struct Unknown {
  Descriptor socket;
  [[nodiscard]] static bool greeted() noexcept { return false; }
};

constexpr const char* kOtherUser =
    "; the ranks of one host share memory only as one user: run all as the same user, or set SHOAL_TRANSPORTS=tcp on all ranks";

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

SegmentLayout layout_of(const GroupSettings& settings, std::size_t ranks) {
  return {ranks, settings.ring, settings.window_bytes};
}

/// Whether each rank can open the processes of all others. `own`: ProcessIdentity::space of this rank.
bool share_processes(std::uint64_t own, std::span<const std::string> addresses, const std::vector<int>& ranks,
                     std::size_t position, std::uint64_t job_id) {
  if (own == 0) return false;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == position) continue;
    const auto address = parse_address(addresses[i], ranks[i], job_id);
    if (!address.ok() || address->space != own) return false;
  }
  return true;
}

/// One rank's part. One object lives for one call of meet().
class Meeting {
 public:
  Meeting(Listener& listener, std::span<const std::string> addresses, const GroupSettings& settings,
          const std::vector<int>& ranks, std::size_t position, const RankCard& card, ConnectDeadline time_limit)
      : listener_(listener),
        addresses_(addresses),
        settings_(settings),
        ranks_(ranks),
        position_(position),
        card_(card),
        time_limit_(std::move(time_limit)),
        one_space_(share_processes(card.process.space, addresses, ranks, position, settings.job_id)),
        // Pidfds of foreign processes pass through the root, so there it has to know all ranks.
        tree_{ranks.size(), one_space_ ? kFanOut : ranks.size()},
        children_(tree_.children(position).size()) {
    group_.lives.resize(ranks.size());
  }

  Result<Group> run() {
    Status status = start();
    while (status.ok() && !complete_) status = step();
    if (!status.ok()) {
      tell_all(make_refusal(status));
      listener_.keep(take_sockets());
      return status;
    }
    for (const Child& child : children_) send_message(child.socket.get(), make_message(MessageKind::go));
    return std::move(group_);
  }

 private:
  struct Child {
    Descriptor socket;
    ProcessIdentity process;
    bool welcomed = false;  ///< has the memory
    bool ready = false;     ///< with all ranks below it
  };

  [[nodiscard]] bool is_root() const noexcept { return position_ == 0; }
  [[nodiscard]] int own_rank() const { return ranks_[position_]; }
  [[nodiscard]] std::size_t position_of_child(std::size_t child) const { return tree_.children(position_).first + child; }
  [[nodiscard]] int rank_of_child(std::size_t child) const { return ranks_[position_of_child(child)]; }
  [[nodiscard]] int parent_rank() const { return ranks_[tree_.parent(position_)]; }
  [[nodiscard]] bool has_memory() const noexcept { return group_.segment.mapped() && members_ == 0; }

  template <typename Condition>
  [[nodiscard]] std::vector<int> children_where(Condition condition) const {
    std::vector<int> result;
    for (std::size_t i = 0; i < children_.size(); ++i) {
      if (condition(children_[i])) result.push_back(rank_of_child(i));
    }
    return result;
  }
  [[nodiscard]] std::vector<int> missing() const {
    return children_where([](const Child& child) { return !child.socket.valid(); });
  }
  [[nodiscard]] bool all_joined() const {
    return std::ranges::all_of(children_, [](const Child& child) { return child.socket.valid(); });
  }
  [[nodiscard]] bool all_ready() const { return std::ranges::all_of(children_, &Child::ready); }

  /// A neighbour that has ended is detected when its socket is read.
  void tell_all(const Message& message) {
    if (parent_.valid()) send_message(parent_.get(), message);
    for (const Child& child : children_) {
      if (child.socket.valid()) send_message(child.socket.get(), message);
    }
  }

  std::vector<Descriptor> take_sockets() {
    std::vector<Descriptor> sockets;
    sockets.push_back(std::move(parent_));
    for (Child& child : children_) sockets.push_back(std::move(child.socket));
    for (Unknown& unknown : unknown_.unproven) sockets.push_back(std::move(unknown.socket));
    return sockets;
  }

  Status start() {
    if (is_root()) {
      auto segment = Segment::create(layout_of(settings_, ranks_.size()), settings_.job_id, &file_);
      return segment.ok() ? take_segment(std::move(segment).value()) : segment.status();
    }
    const auto where = parse_address(addresses_[tree_.parent(position_)], parent_rank(), settings_.job_id);
    if (!where.ok()) return where.status();
    auto dialled = dial(*where, parent_rank(), time_limit_.deadline());
    if (!dialled.ok()) return dialled.status();
    if (!same_user(dialled->get())) {
      return {StatusCode::unsupported,
              "shm: the socket of rank " + std::to_string(parent_rank()) + " belongs to another user" + kOtherUser};
    }
    parent_ = std::move(dialled).value();
    return send_hello(where->secret) ? Status() : parent_gone();
  }

  bool send_hello(const std::array<std::byte, 16>& secret) const {
    Message hello = make_message(MessageKind::hello);
    hello.secret = secret;
    hello.rank = own_rank();
    hello.process = card_.process;
    hello.job_id = settings_.job_id;
    hello.ranks_hash = hash_ranks(ranks_);
    hello.tile_bytes = settings_.ring.tile_bytes;
    hello.slots = settings_.ring.slots;
    hello.window_bytes = settings_.window_bytes;
    const Descriptor life = one_space_ ? Descriptor() : open_own_process();
    hello.has_life = life.valid() ? 1 : 0;
    return send_message(parent_.get(), hello, life.get());
  }

  Status take_segment(Segment segment) {
    group_.segment = std::move(segment);
    group_.segment.block(position_).card = card_;
    return {};
  }

  /// Waits for one event, and handles all there are.
  Status step() {
    if (all_joined()) refuse_rest();
    if (Status status = hand_out(); !status.ok()) return status;
    if (Status status = report_ready(); !status.ok() || complete_) return status;
    bool connection_waits = false;
    if (Status status = wait(connection_waits); !status.ok()) return status;
    if (Status status = read_parent(); !status.ok() || complete_) return status;
    if (Status status = read_children(); !status.ok()) return status;
    if (Status status = read_unknown(); !status.ok()) return status;
    if (connection_waits) {
      if (Status status = accept_one(); !status.ok()) return status;
    }
    // Checked in each pass: unauthenticated connections may arrive faster than they are read.
    return check_time();
  }

  Status wait(bool& connection_waits) {
    const bool paused = Clock::now() < unknown_.accept_again();
    items_.assign(1, {listener_.socket(), static_cast<short>(paused || all_joined() ? 0 : POLLIN), 0});
    const auto add = [this](const Descriptor& socket) {
      if (socket.valid()) items_.push_back({socket.get(), POLLIN, 0});
    };
    add(parent_);
    for (const Unknown& unknown : unknown_.unproven) add(unknown.socket);
    for (const Child& child : children_) add(child.socket);
    Clock::time_point until = late_ ? next_verdict() : time_limit_.next();
    if (paused) until = std::min(until, unknown_.accept_again());
    const int count = ::poll(items_.data(), items_.size(), poll_timeout_ms(until));
    if (count < 0 && errno != EINTR) return system_error("shm: poll while waiting for ranks", errno);
    connection_waits = count > 0 && (items_[0].revents & POLLIN) != 0;
    return {};
  }

  Status check_time() {
    if (!late_ && Clock::now() >= time_limit_.deadline()) become_late();
    if (!late_) return time_limit_.check();
    return verdict();
  }

  void become_late() {
    late_ = true;
    late_since_ = Clock::now();
    tell_all(make_message(MessageKind::late));
  }
  /// When this rank names silent children, and when its parent: the neighbours of a silent rank come first.
  [[nodiscard]] Clock::time_point children_are_named() const {
    return late_since_ + kGrace * static_cast<int>(tree_.height(position_));
  }
  [[nodiscard]] Clock::time_point parent_is_named() const {
    return late_since_ + kGrace * static_cast<int>(tree_.height(0) + tree_.depth(position_));
  }
  [[nodiscard]] Clock::time_point next_verdict() const { return all_ready() ? parent_is_named() : children_are_named(); }

  /// After a deadline: the error, where this rank knows which ranks are missing.
  [[nodiscard]] Status verdict() const {
    if (!all_joined()) {
      std::string text =
          "shm: " + list_ranks(missing()) + " did not connect to rank " + std::to_string(own_rank()) + " by the deadline";
      if (other_users_ > 0) text += kOtherUser;
      return {StatusCode::timeout, text + unknown_.to_text()};
    }
    if (Clock::now() < next_verdict()) return {};
    const std::string silent = list_ranks(all_ready() ? std::vector<int>{parent_rank()}
                                                      : children_where([](const Child& child) { return !child.ready; }));
    return {StatusCode::timeout, "shm: " + silent + " did not answer rank " + std::to_string(own_rank()) + " by the deadline"};
  }

  /// All children have joined: drops and counts all other connections, also those that wait to be accepted.
  void refuse_rest() {
    if (std::exchange(rest_refused_, true)) return;
    for (std::size_t i = 0; i < kMaxUnknown && !children_.empty(); ++i) {
      if (!unknown_.accept(listener_.socket()).valid()) break;
      unknown_.refuse("all ranks had joined");
    }
    for (; !unknown_.unproven.empty(); unknown_.unproven.pop_front()) unknown_.refuse("all ranks had joined");
  }

  Status accept_one() {
    Descriptor socket = unknown_.accept(listener_.socket());
    if (unknown_.shortage() != 0) {
      if (unknown_.is_stuck(listener_.socket())) return no_room("accept a connection of " + list_ranks(missing()));
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

  /// The error that this process has no room for descriptors: `what` failed.
  [[nodiscard]] Status no_room(const std::string& what) const {
    return descriptor_error("shm: " + what, EMFILE,
                            ", and rank " + std::to_string(own_rank()) + " needs " + std::to_string(children_.size() + 2) +
                                " in addition to share memory");
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
      if (!whole || hello.kind != MessageKind::hello || !same(hello.secret, listener_.secret()) ||
          hello.job_id != settings_.job_id) {
        unknown_.refuse("it does not know this job's secret");
        continue;
      }
      if (received.outcome == ReceiveOutcome::no_room)
        return no_room("take the descriptors of rank " + std::to_string(hello.rank));
      Child* const child = child_of_rank(hello.rank);
      if (child == nullptr || child->socket.valid() || received.descriptors.size() != (hello.has_life != 0 ? 1U : 0U)) {
        unknown_.refuse("it claims to be a rank that is not expected");
        continue;
      }
      child->socket = std::move(socket);
      child->process = hello.process;
      if (hello.has_life != 0 && !hello.process.is_valid_for(card_.process))
        group_.lives[position_of_child(static_cast<std::size_t>(child - children_.data()))] =
            std::move(received.descriptors[0]);
      if (Status status = check_settings(hello); !status.ok()) return status;
      if (late_) send_message(child->socket.get(), make_message(MessageKind::late));
    }
    return {};
  }

  Child* child_of_rank(int rank) {
    const auto position = static_cast<std::size_t>(std::ranges::lower_bound(ranks_, rank) - ranks_.begin());
    const RendezvousTree::Range below = tree_.children(position_);
    if (!below.contains(position) || ranks_[position] != rank) return nullptr;
    return &children_[position - below.first];
  }

  [[nodiscard]] Status check_settings(const Message& hello) const {
    const auto differ = [&](const char* what, std::uint64_t theirs, std::uint64_t ours) {
      return Status(StatusCode::mismatch, "shm: rank " + std::to_string(hello.rank) + " has " + what + " " +
                                              std::to_string(theirs) + ", rank " + std::to_string(own_rank()) + " has " +
                                              std::to_string(ours) + "; use the same settings on all ranks");
    };
    if (hello.tile_bytes != settings_.ring.tile_bytes) return differ("tile_bytes", hello.tile_bytes, settings_.ring.tile_bytes);
    if (hello.slots != settings_.ring.slots) return differ("slots", hello.slots, settings_.ring.slots);
    if (hello.window_bytes != settings_.window_bytes) return differ("window_bytes", hello.window_bytes, settings_.window_bytes);
    if (hello.ranks_hash != hash_ranks(ranks_)) {
      return {StatusCode::mismatch, "shm: rank " + std::to_string(hello.rank) + " and rank " + std::to_string(own_rank()) +
                                        " name different ranks as their group"};
    }
    return {};
  }

  /// Passes the memory to the children that have joined. Pidfds go with it, so where there are some, all must have joined.
  Status hand_out() {
    if (!has_memory() || (!one_space_ && !all_joined())) return {};
    for (std::size_t i = 0; i < children_.size(); ++i) {
      Child& child = children_[i];
      if (!child.socket.valid() || std::exchange(child.welcomed, true)) continue;
      if (!welcome(child, position_of_child(i))) {
        child.socket = Descriptor();
        return {StatusCode::peer_failed, "shm: rank " + std::to_string(rank_of_child(i)) +
                                             " closed its connection or stopped reading while the ranks were connecting"};
      }
    }
    return {};
  }

  bool welcome(const Child& child, std::size_t position) {
    const std::vector<std::size_t> foreign = one_space_ ? std::vector<std::size_t>() : foreign_to(child, position);
    Message message = make_message(MessageKind::welcome);
    message.members = static_cast<std::uint32_t>(foreign.size());
    const int socket = child.socket.get();
    if (!send_patiently(socket, [&] { return send_message(socket, message, file_.get()); })) return false;
    return std::ranges::all_of(foreign, [&](std::size_t other) {
      Message member = make_message(MessageKind::member);
      member.rank = ranks_[other];
      return send_patiently(socket, [&] { return send_message(socket, member, group_.lives[other].get()); });
    });
  }

  /// The ranks whose processes `child`, at `position`, cannot open itself, and whose pidfds the root has or can open.
  std::vector<std::size_t> foreign_to(const Child& child, std::size_t position) {
    std::vector<std::size_t> foreign;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const ProcessIdentity& process = i == 0 ? card_.process : children_[i - 1].process;
      if (i == position || process.is_valid_for(child.process)) continue;
      Descriptor& life = group_.lives[i];
      if (!life.valid() && i == 0) life = open_own_process();
      if (!life.valid() && process.is_valid_for(card_.process)) static_cast<void>(open_process(process, life));
      if (life.valid()) foreign.push_back(i);
    }
    return foreign;
  }

  /// A Unix socket queues only a few messages: waits for the reader, at most until the deadline.
  template <typename Send>
  bool send_patiently(int socket, Send send) const {
    while (!send()) {
      if ((errno != EAGAIN && errno != EWOULDBLOCK && errno != ETOOMANYREFS) || Clock::now() >= time_limit_.deadline())
        return false;
      pollfd item{socket, POLLOUT, 0};
      ::poll(&item, 1, std::min(poll_timeout_ms(time_limit_.deadline()), 10));
    }
    return true;
  }

  Status report_ready() {
    if (reported_ || !has_memory() || !all_joined() || !all_ready()) return {};
    reported_ = true;
    if (!is_root()) return send_message(parent_.get(), make_message(MessageKind::ready)) ? Status() : parent_gone();
    for (std::size_t i = 0; i < children_.size() && !one_space_; ++i) {
      if (children_[i].process.is_valid_for(card_.process)) group_.lives[i + 1].reset();
    }
    group_.lives[0].reset();
    complete_ = true;
    return {};
  }

  /// Reads the messages of children that have joined: ready, late, refusal, or the end of the connection.
  Status read_children() {
    for (std::size_t i = 0; i < children_.size(); ++i) {
      Child& child = children_[i];
      while (child.socket.valid()) {
        const Received received = receive_message(child.socket.get());
        if (received.outcome == ReceiveOutcome::nothing) break;
        const bool whole = received.outcome == ReceiveOutcome::message;
        if (whole && received.message.kind == MessageKind::refusal) return told_by(rank_of_child(i), received.message);
        if (whole && received.message.kind == MessageKind::late) {
          if (!late_) become_late();
        } else if (whole && received.message.kind == MessageKind::ready && child.welcomed) {
          child.ready = true;
        } else {
          child.socket = Descriptor();
          return {StatusCode::peer_failed,
                  "shm: rank " + std::to_string(rank_of_child(i)) + " closed its connection while connecting"};
        }
      }
    }
    return {};
  }

  [[nodiscard]] Status parent_gone() const {
    return {StatusCode::peer_failed, "shm: rank " + std::to_string(parent_rank()) + " closed its connection while connecting"};
  }

  Status read_parent() {
    while (parent_.valid() && !complete_) {
      Received received = receive_message(parent_.get());
      if (received.outcome == ReceiveOutcome::nothing) return {};
      if (received.outcome == ReceiveOutcome::no_room) return no_room("take the memory of the ranks of this host");
      if (received.outcome != ReceiveOutcome::message) return parent_gone();
      if (Status status = take(received); !status.ok()) return status;
    }
    return {};
  }

  /// A message of the parent.
  Status take(Received& received) {
    switch (received.message.kind) {
      case MessageKind::refusal:
        return told_by(parent_rank(), received.message);
      case MessageKind::late:
        if (!late_) become_late();
        return {};
      case MessageKind::welcome: {
        if (received.descriptors.size() != 1 || group_.segment.mapped()) return parent_gone();
        file_ = std::move(received.descriptors[0]);
        auto segment = Segment::attach(layout_of(settings_, ranks_.size()), settings_.job_id, file_);
        if (!segment.ok()) return segment.status();
        members_ = received.message.members;
        return take_segment(std::move(segment).value());
      }
      case MessageKind::member: {
        const auto position =
            static_cast<std::size_t>(std::ranges::lower_bound(ranks_, received.message.rank) - ranks_.begin());
        if (position == ranks_.size() || ranks_[position] != received.message.rank) return parent_gone();
        if (members_ == 0 || received.descriptors.size() != 1) return parent_gone();
        group_.lives[position] = std::move(received.descriptors[0]);
        --members_;
        return {};
      }
      case MessageKind::go:
        if (!reported_) return parent_gone();
        complete_ = true;
        return {};
      case MessageKind::hello:
      case MessageKind::ready:
        break;
    }
    return parent_gone();
  }

  Listener& listener_;
  std::span<const std::string> addresses_;
  const GroupSettings& settings_;
  const std::vector<int>& ranks_;
  std::size_t position_;
  const RankCard& card_;
  ConnectDeadline time_limit_;
  bool one_space_;  ///< all ranks can open each other's processes
  RendezvousTree tree_;
  std::vector<Child> children_;
  Descriptor parent_;          ///< invalid at the root
  Descriptor file_;            ///< the memory, to be passed on
  std::uint32_t members_ = 0;  ///< pidfds that are still to come
  bool reported_ = false;      ///< ready, with all ranks below
  bool complete_ = false;
  bool late_ = false;  ///< the deadline of a rank has passed
  Clock::time_point late_since_;
  Admission<Unknown> unknown_{"shm", kMaxUnknown};
  bool rest_refused_ = false;
  int other_users_ = 0;  ///< of the refused connections
  std::vector<pollfd> items_;
  Group group_;
};

}  // namespace

Result<Group> meet(Listener& listener, std::span<const std::string> addresses, const GroupSettings& settings,
                   const std::vector<int>& ranks, std::size_t position, const RankCard& card, ConnectDeadline time_limit) {
  return Meeting(listener, addresses, settings, ranks, position, card, std::move(time_limit)).run();
}

}  // namespace shoal::shm
