#include "src/runtime/messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "src/runtime/link_calls.h"

namespace shoal {

using internal::Message;
using internal::Operation;

namespace {

constexpr int kAny = -1;  // in place of a receive's peer

bool is_later(const Operation* one, const Operation* other) { return one->sequence() > other->sequence(); }

std::string amount(DataType type, std::size_t bytes) {
  const std::size_t element = size_of(type);
  return element == 0 ? fmt::format("{} bytes of an unknown type", bytes)
                      : fmt::format("{} x {}", to_string(type), bytes / element);
}

}  // namespace

Messages::Messages(ProgressEngine& engine, const Group& group, std::uint32_t number, LinkCalls& links)
    : router_(engine.router()),
      device_(*engine.parts().device),
      tile_bytes_(engine.parts().tile_bytes),
      number_(number),
      rank_(group.rank),
      group_(group),
      peers_(group.members.size()) {
  in_use_.reserve(peers_.size());
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) peers_[rank].link = links.of_rank(static_cast<int>(rank));
}

std::optional<Messages::Announcement> Messages::parse_announcement(std::span<const std::byte> tile) noexcept {
  Announcement announcement;
  if (tile.size() < sizeof announcement) return std::nullopt;
  std::memcpy(&announcement, tile.data(), sizeof announcement);
  const std::size_t bytes = tile.size() - sizeof announcement;
  if (bytes != (announcement.eager != 0 ? announcement.size_bytes : 0)) return std::nullopt;
  return announcement;
}

std::string Messages::describe(const Announcement& announcement) {
  return amount(static_cast<DataType>(announcement.type), announcement.size_bytes);
}

std::string Messages::describe(const Operation& operation) {
  const Message& m = operation.message;
  const std::string what = fmt::format("{} of {}", m.is_send ? "send" : "recv", amount(m.type, m.size_bytes));
  if (m.peer < 0) return fmt::format("{} from any rank (tag {})", what, m.tag);
  return fmt::format("{} {} rank {} (tag {})", what, m.is_send ? "to" : "from", m.peer, m.tag);
}

void Messages::enqueue(Operation* operation) {
  waiting_.push_back(operation);
  std::ranges::push_heap(waiting_, is_later);
}

bool Messages::advance() {
  bool any = false;
  while (!waiting_.empty() && waiting_.front()->sequence() == next_start_) {
    std::ranges::pop_heap(waiting_, is_later);
    Operation* operation = waiting_.back();
    waiting_.pop_back();
    ++next_start_;
    if (spare_.empty()) spare_.emplace_back();
    spare_.front() = operation;
    operation->message.place = spare_.begin();
    live_.splice(live_.end(), spare_, spare_.begin());
    start(operation);
    any = true;
  }
  std::erase_if(in_use_, [&](Peer* peer) {
    any |= advance(*peer);
    peer->in_use = peer->has_work();
    return !peer->in_use;
  });
  return any;
}

Messages::Peer& Messages::use(int rank) {
  Peer& used = peer(rank);
  if (!std::exchange(used.in_use, true)) in_use_.push_back(&used);
  return used;
}

void Messages::start(Operation* operation) {
  Message& m = operation->message;
  // A receiver that takes messages of any rank does not know its peer. So the sender does not count on its request.
  if (m.peer >= 0 && m.peer != rank_) peer(m.peer).link->request(/*peer_too=*/false);
  if (!m.is_send) {
    const std::optional<Unexpected> message = take_unexpected(m);
    if (!message) return posted_.push(m.peer < 0 ? kAny : m.peer, m.tag, operation);
    if (Status status = match(operation, *message, message->bytes); !status.ok() && failure_.ok()) failure_ = status;
    return;
  }
  if (m.peer != rank_) return use(m.peer).to_announce.push(operation);
  // To this rank itself: the send is its own announcement.
  Unexpected message{rank_, 0, {m.size_bytes, m.tag, static_cast<std::uint8_t>(m.type), 0, 0}, {}, operation};
  Operation* const receive = take_posted(rank_, m.tag);
  Status status = receive != nullptr ? match(receive, message, {}) : keep(std::move(message));
  if (!status.ok() && failure_.ok()) failure_ = std::move(status);
}

/// Keeps a message until a receive matches it.
Status Messages::keep(Unexpected message) {
  const int from = message.peer;
  if (peer(from).unmatched == kMostUnmatched) {
    return {StatusCode::mismatch,
            fmt::format("{} has sent {} messages without a matching recv on {}, and sends {} with tag {}{}; call recv for them "
                        "before more are sent",
                        group_.name_of(from), kMostUnmatched, group_.name_of(rank_), describe(message.announcement),
                        message.announcement.tag, group_.in_words())};
  }
  ++peer(from).unmatched;
  const int tag = message.announcement.tag;
  unexpected_.push(from, tag, std::move(message));
  return {};
}

/// The oldest message that matches `receive`; nothing where none has arrived.
std::optional<Messages::Unexpected> Messages::take_unexpected(const Message& receive) {
  int from = receive.peer;
  if (from < 0) {
    std::optional<std::uint64_t> oldest;
    for (int each = 0; unexpected_.size() > 0 && each < static_cast<int>(peers_.size()); ++each) {
      const auto order = unexpected_.oldest(each, receive.tag);
      if (!order || (oldest && *oldest < *order)) continue;
      oldest = order;
      from = each;
    }
    if (!oldest) return std::nullopt;
  } else if (!unexpected_.oldest(from, receive.tag)) {
    return std::nullopt;
  }
  --peer(from).unmatched;
  return unexpected_.take(from, receive.tag);
}

/// The oldest receive that matches a message `from` a rank; null where none waits.
Operation* Messages::take_posted(int from, int tag) {
  const auto of_rank = posted_.oldest(from, tag);
  const auto of_any = posted_.oldest(kAny, tag);
  if (!of_rank && !of_any) return nullptr;
  return posted_.take(of_any && (!of_rank || *of_any < *of_rank) ? kAny : from, tag);
}

bool Messages::advance(Peer& peer) {
  bool any = retire_sent(peer);
  if (!peer.link->bound && !bind(peer)) return any;
  while (!peer.to_clear.empty() && send_word(peer, Kind::clear, peer.to_clear.front())) {
    peer.to_clear.pop();
    any = true;
  }
  if (peer.owes_taken() && send_word(peer, Kind::taken, peer.taken)) {
    peer.taken_said = peer.taken;
    any = true;
  }
  while (!peer.to_announce.empty() && announce(peer)) any = true;
  while (!peer.to_send.empty() && send_data(peer)) any = true;
  return any;
}

/// Before the first tile: sends the peer the number that the tiles of this communicator carry. False where the link has no
/// room for that, or no tile needs it.
bool Messages::bind(Peer& peer) {
  const bool has_tiles = !peer.to_clear.empty() || !peer.to_announce.empty() || peer.owes_taken();
  return has_tiles && (peer.link->bound = router_.bind(*peer.link->wire, number_, group_.name));
}

bool Messages::send_word(Peer& peer, Kind kind, std::uint32_t number) {
  if (!peer.link->link->try_send({number_ | kMessageBit, number, static_cast<std::uint32_t>(kind), 0, 0}, {})) return false;
  ++peer.link->wire->taken;
  return true;
}

bool Messages::announce(Peer& peer) {
  Operation* operation = peer.to_announce.front();
  Message& m = operation->message;
  // A message without bytes is eager: nothing would be left to send after its announcement.
  const bool eager = m.size_bytes == 0 || (m.size_bytes <= kEagerBytes && peer.eager_sent - peer.eager_taken < kEagerWindow);
  const Announcement announcement{m.size_bytes, m.tag, static_cast<std::uint8_t>(m.type),
                                  eager ? std::uint8_t{1} : std::uint8_t{0}, 0};
  m.tile.resize(sizeof announcement + (eager ? m.size_bytes : 0));
  std::memcpy(m.tile.data(), &announcement, sizeof announcement);
  if (eager && m.size_bytes != 0) std::memcpy(m.tile.data() + sizeof announcement, m.data, m.size_bytes);
  const TileHeader header{number_ | kMessageBit, peer.next_number, static_cast<std::uint32_t>(Kind::announce),
                          static_cast<std::uint32_t>(m.tile.size()), 0};
  if (!peer.link->link->try_send(header, m.tile)) return false;
  m.number = peer.next_number++;
  m.open_bytes = m.tile.size() + (eager ? 0 : m.size_bytes);
  if (eager) {
    ++peer.eager_sent;
  } else {
    peer.announced.put(m.number, operation);
  }
  peer.to_announce.pop();
  taken_by_link(peer, operation, m.tile.size());
  return true;
}

bool Messages::send_data(Peer& peer) {
  Operation* operation = peer.to_send.front();
  Message& m = operation->message;
  const std::size_t bytes = std::min({m.size_bytes - m.moved_bytes, peer.link->link->max_tile_bytes(), tile_bytes_});
  const TileHeader header{number_ | kMessageBit, m.number, static_cast<std::uint32_t>(Kind::data),
                          static_cast<std::uint32_t>(bytes), m.moved_bytes};
  if (!peer.link->link->try_send(header, {m.data + m.moved_bytes, bytes})) return false;
  m.moved_bytes += bytes;
  if (m.moved_bytes == m.size_bytes) peer.to_send.pop();
  taken_by_link(peer, operation, bytes);
  return true;
}

void Messages::taken_by_link(Peer& peer, Operation* operation, std::size_t bytes) {
  const std::uint64_t ticket = ++peer.link->wire->taken;
  if (peer.outstanding.empty() && peer.link->link->sent_tiles() >= ticket) return moved(operation, bytes);
  peer.outstanding.push({operation, bytes, ticket});
}

bool Messages::retire_sent(Peer& peer) {
  bool any = false;
  while (!peer.outstanding.empty() && peer.outstanding.front().ticket <= peer.link->link->sent_tiles()) {
    const Outstanding sent = peer.outstanding.front();
    peer.outstanding.pop();
    moved(sent.operation, sent.bytes);
    any = true;
  }
  return any;
}

void Messages::moved(Operation* operation, std::size_t bytes) {
  operation->message.open_bytes -= bytes;
  if (operation->message.open_bytes == 0) end(operation);
}

void Messages::end(Operation* operation) {
  spare_.splice(spare_.begin(), live_, operation->message.place);
  ended_.push_back(operation);
}

// Completes `receive` with `message`, or starts its transfer. `bytes`: the data of an eager message.
Status Messages::match(Operation* receive, const Unexpected& message, std::span<const std::byte> bytes) {
  Message& m = receive->message;
  const Announcement& theirs = message.announcement;
  if (theirs.size_bytes != m.size_bytes || theirs.type != static_cast<std::uint8_t>(m.type)) {
    // Both calls end with the communicator.
    return {StatusCode::mismatch,
            fmt::format("{} sent {} with tag {}, but {} expects {}, in a message{}; both must use the same type and count",
                        group_.name_of(message.peer), describe(theirs), theirs.tag, group_.name_of(rank_),
                        amount(m.type, m.size_bytes), group_.in_words())};
  }
  receive->source.store(message.peer, std::memory_order_relaxed);
  if (message.local != nullptr) {
    if (m.size_bytes != 0) std::memmove(m.data, message.local->message.data, m.size_bytes);
    end(message.local);
    end(receive);
  } else if (theirs.eager != 0) {
    if (m.size_bytes != 0) std::memcpy(m.data, bytes.data(), m.size_bytes);
    Peer& sender = peer(message.peer);
    ++sender.taken;
    if (sender.owes_taken()) use(message.peer);
    end(receive);
  } else {
    m.number = message.number;
    m.open_bytes = m.size_bytes;
    Peer& sender = use(message.peer);
    sender.receiving.put(message.number, receive);
    sender.to_clear.push(message.number);
  }
  return {};
}

Status Messages::take(int from, const Arrival& arrival) {
  Peer& sender = peer(from);
  const std::uint32_t number = arrival.header.sequence;
  const auto nonsense = [&] {
    return Status(StatusCode::internal,
                  fmt::format("{} sent an unexpected tile of message {}{}", group_.name_of(from), number, group_.in_words()));
  };
  switch (static_cast<Kind>(arrival.header.edge)) {
    case Kind::announce: {
      Unexpected message{from, number, {}, {}, nullptr};
      const auto announcement = parse_announcement(arrival.data);
      if (!announcement) return nonsense();
      message.announcement = *announcement;
      const auto bytes = arrival.data.subspan(sizeof message.announcement);
      if (Operation* const receive = take_posted(from, announcement->tag); receive != nullptr)
        return match(receive, message, bytes);
      message.bytes.assign(bytes.begin(), bytes.end());
      return keep(std::move(message));
    }
    case Kind::clear: {
      Operation* const* const send = sender.announced.find(number);
      if (send == nullptr) return nonsense();
      use(from).to_send.push(*send);
      sender.announced.erase(number);
      return {};
    }
    case Kind::data: {
      Operation* const* const receive = sender.receiving.find(number);
      if (receive == nullptr) return nonsense();
      Operation* operation = *receive;
      Message& m = operation->message;
      if (arrival.header.offset_bytes != m.moved_bytes || arrival.data.size() > m.size_bytes - m.moved_bytes) return nonsense();
      device_.copy(m.data + m.moved_bytes, arrival.data.data(), arrival.data.size());
      m.moved_bytes += arrival.data.size();
      if (m.moved_bytes == m.size_bytes) sender.receiving.erase(number);
      moved(operation, arrival.data.size());
      return {};
    }
    case Kind::taken:
      sender.eager_taken = number;
      return {};
  }
  return nonsense();
}

Status Messages::take_failure() { return std::exchange(failure_, Status()); }

const Operation* Messages::awaited() const noexcept {
  const auto found = std::find_if(live_.begin(), live_.end(), [](const Operation* message) { return message->awaited(); });
  return found == live_.end() ? nullptr : *found;
}

void Messages::give_up() {
  for (Peer& peer : peers_) {
    if (!peer.outstanding.empty()) peer.link->link->keep_copies();
    peer.to_announce.clear();
    peer.announced.clear();
    peer.to_send.clear();
    peer.outstanding.clear();
    peer.to_clear.clear();
    peer.receiving.clear();
    peer.unmatched = 0;
  }
  posted_.clear();
  unexpected_.clear();
  ended_.insert(ended_.end(), live_.begin(), live_.end());
  ended_.insert(ended_.end(), waiting_.begin(), waiting_.end());
  spare_.splice(spare_.begin(), live_);
  waiting_.clear();
}

bool Messages::wants(int rank) const noexcept {
  return std::any_of(live_.begin(), live_.end(),
                     [&](const Operation* each) { return each->message.peer == rank || each->message.peer < 0; });
}

bool Messages::needs(int rank) const noexcept {
  return std::any_of(live_.begin(), live_.end(), [&](const Operation* each) { return each->message.peer == rank; });
}

}  // namespace shoal
