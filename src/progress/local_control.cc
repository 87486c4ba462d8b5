#include "src/progress/local_control.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <poll.h>

#include <fmt/format.h>

namespace shoal {
namespace {

using Kind = ControlMessage::Kind;
static_assert(NoticeBoard::kMostBytes >= kMostControlBytes);

std::vector<int> sorted_with(std::span<const int> peers, int rank) {
  std::vector<int> ranks(peers.begin(), peers.end());
  ranks.push_back(rank);
  std::ranges::sort(ranks);
  return ranks;
}

Status malformed(int rank) {
  return {StatusCode::peer_failed,
          fmt::format("rank {} wrote a malformed control message into the shared memory; its memory is corrupt", rank)};
}

}  // namespace

LocalControl::LocalControl(Transport& transport, int rank, std::span<const int> peers)
    : transport_(transport),
      ranks_(sorted_with(peers, rank)),
      own_(position_of(rank)),
      board_(transport.notice_memory(), ranks_.size(), own_),
      peers_(ranks_.size()) {}

std::size_t LocalControl::position_of(int rank) const noexcept {
  const auto found = std::ranges::lower_bound(ranks_, rank);
  return found != ranks_.end() && *found == rank ? static_cast<std::size_t>(found - ranks_.begin()) : ranks_.size();
}

bool LocalControl::has_news() {
  if (left_to_parent_) return false;
  take_ended(/*look=*/false);
  return due_ || !ended_.empty() || board_.has_news();
}

void LocalControl::take_ended(bool look) {
  ended_links_.clear();
  transport_.take_ended(ended_links_, look);
  for (const Link* link : ended_links_) ended_.push_back({position_of(link->peer()), link->status()});
}

bool LocalControl::poll(std::vector<ControlMessage>& messages) {
  if (left_to_parent_) return false;
  due_ = false;
  const std::size_t before = messages.size();
  take_ended(/*look=*/true);
  NoticeBoard::News news;
  if (board_.has_news()) board_.read(news);
  for (const Ended& ended : ended_) board_.read_from(ended.position, news);
  for (const auto& [writer, notice] : news.notices) {
    Peer& peer = peers_[writer];
    if (peer.failed) continue;
    auto message = ControlMessage::parse(ranks_[writer], notice.kind, notice.group, notice.payload);
    if (!message) continue;
    peer.gone |= message->kind == Kind::goodbye;
    messages.push_back(*std::move(message));
  }
  for (const Ended& ended : std::exchange(ended_, {})) report_end(ended.position, ended.how, messages);
  for (const std::size_t writer : news.malformed) report_end(writer, malformed(ranks_[writer]), messages);
  if (!news.writers_waiting.empty()) wake(news.writers_waiting);
  const bool sent = flush_all();
  for (const std::size_t position : std::exchange(faulty_, {})) report_end(position, peers_[position].problem, messages);
  return sent || messages.size() != before;
}

void LocalControl::report_end(std::size_t position, const Status& how, std::vector<ControlMessage>& messages) {
  Peer& peer = peers_[position];
  if (std::exchange(peer.failed, true)) return;
  peer.queue.clear();
  std::erase(queues_, position);
  if (!peer.gone) messages.push_back({Kind::death, {}, ranks_[position], how, {}});
}

void LocalControl::send(const std::span<const int>* ranks, const OutgoingControl& message) {
  if (left_to_parent_) return;
  NoticeBoard::Receivers receivers(ranks_.size());
  std::vector<std::size_t> woken;
  const auto add = [&](std::size_t position) {
    if (position == own_ || position == ranks_.size() || !peers_[position].reads()) return;
    // In order: after what is queued for it.
    if (board_.is_taken_back(position) || !peers_[position].queue.empty()) return enqueue(position, message);
    receivers.insert(position);
    woken.push_back(position);
  };
  if (ranks == nullptr) {
    for (std::size_t position = 0; position < ranks_.size(); ++position) add(position);
  } else {
    for (const int rank : *ranks) add(position_of(rank));
  }
  if (woken.empty()) return;
  const auto bytes = message.bytes(kMostControlBytes);
  while (!board_.write(static_cast<std::uint32_t>(message.kind), message.group, receivers, bytes)) {
    const auto slow = board_.slowest();
    if (!slow) return;  // a notice that is larger than the ring: there is none
    take_back(*slow);
    if (!receivers.contains(*slow)) continue;
    receivers.erase(*slow);
    enqueue(*slow, message);
  }
  wake(woken);
}

void LocalControl::wake(std::span<const std::size_t> positions) {
  std::vector<int> ranks;
  ranks.reserve(positions.size());
  for (const std::size_t position : positions) ranks.push_back(ranks_[position]);
  transport_.wake(ranks);
}

void LocalControl::enqueue(std::size_t position, OutgoingControl message) {
  Peer& peer = peers_[position];
  if (!peer.reads()) return;
  due_ = true;
  if (peer.queue.empty()) queues_.push_back(position);
  if (peer.queue.push(std::move(message))) return;
  peer.queue.clear();
  std::erase(queues_, position);
  peer.problem = ControlQueue::unread(ranks_[position]);
  faulty_.push_back(position);
}

void LocalControl::take_back(std::size_t position) {
  const auto unread = board_.take_back(position);
  Peer& peer = peers_[position];
  if (!peer.reads()) return;
  ControlQueue newer = std::exchange(peer.queue, {});
  std::erase(queues_, position);
  if (!unread) {
    due_ = true;
    peer.problem = malformed(ranks_[position]);
    return faulty_.push_back(position);
  }
  for (const NoticeBoard::Notice& notice : *unread) {
    enqueue(position,
            {static_cast<Kind>(notice.kind), notice.group, std::make_shared<const std::vector<std::byte>>(notice.payload)});
  }
  for (; !newer.empty(); newer.pop()) enqueue(position, newer.front());
}

bool LocalControl::flush(std::size_t position, bool last) {
  if (board_.is_taken_back(position)) {
    if (!last && !board_.returns(position)) return false;
    board_.admit(position);
  }
  NoticeBoard::Receivers receivers(ranks_.size());
  receivers.insert(position);
  ControlQueue& queue = peers_[position].queue;
  bool any = false;
  while (!queue.empty()) {
    const OutgoingControl& next = queue.front();
    if (board_.write(static_cast<std::uint32_t>(next.kind), next.group, receivers, next.bytes(kMostControlBytes))) {
      queue.pop();
      any = true;
      continue;
    }
    const auto slow = board_.slowest();
    if (last || !slow || *slow == position) break;  // it says when it has read more
    take_back(*slow);
  }
  if (any) wake(std::span(&position, 1));
  return any;
}

bool LocalControl::flush_all(bool last) {
  bool any = false;
  // First, so that a peer that reads from now on says so.
  board_.set_waiting(!queues_.empty());
  for (std::size_t i = 0; i < queues_.size(); ++i) any |= flush(queues_[i], last);  // may append
  std::erase_if(queues_, [&](std::size_t position) { return peers_[position].queue.empty(); });
  board_.set_waiting(!queues_.empty());
  return any;
}

void LocalControl::finish(std::chrono::steady_clock::time_point deadline) {
  if (left_to_parent_) return;
  flush_all(/*last=*/true);
  std::vector<ControlMessage> ignored;
  while (pending() && std::chrono::steady_clock::now() < deadline) {
    if (poll(ignored) || !pending()) continue;
    const bool clear = transport_.prepare_wait() && !has_news();
    pollfd descriptor{transport_.wait_fd(), POLLIN, 0};
    transport_.finish_wait(::poll(&descriptor, 1, clear ? 10 : 1) != 0);
    transport_.progress();
  }
  for (const std::size_t position : std::exchange(queues_, {})) peers_[position].queue.clear();
}

}  // namespace shoal
