#include "src/progress/tile_router.h"

#include <algorithm>
#include <utility>

namespace shoal {
namespace {

// After sending so many tiles on a link whose head is an unclaimed tile, a sender looks behind that tile: the peer may have
// sent a pause there.
constexpr std::uint64_t kTilesUnheard = 32;

void take_spilled(ProgressClient& client, const Wire& wire, SpillQueue& queue) {
  if (ClientLink* const link = client.link_to(wire.link->peer()); link != nullptr) link->spilled = &queue;
}

void set_number(ProgressClient& client, const Wire& wire, std::uint32_t number) {
  if (ClientLink* const link = client.link_to(wire.link->peer()); link != nullptr) link->their_number = number;
}

}  // namespace

TileRouter::TileRouter(std::span<const std::unique_ptr<Transport>> transports, std::span<const std::unique_ptr<Link>> links,
                       std::span<const std::uint32_t> transport_of_link, int ranks, bool spills, ClientDirectory& clients,
                       EarlyRecords& early, ControlMessages& control)
    : transports_(transports),
      spills_(spills),
      clients_(clients),
      early_(early),
      control_(control),
      wires_(links.size()),
      wire_of_rank_(static_cast<std::size_t>(ranks), -1),
      reports_arrivals_(transports.size()) {
  active_.reserve(links.size());
  arrivals_.reserve(links.size());
  for (std::size_t i = 0; i < links.size(); ++i) {
    Wire& wire = wires_[i];
    wire.link = links[i].get();
    wire.transport = transport_of_link[i];
    wire.taken = wire.link->sent_tiles();  // startup may have used the link
    wire.theirs[0];                        // the communicator of all ranks needs no bind()
    wire.unmade[{}] = 0;
    wire_of_rank_[static_cast<std::size_t>(wire.link->peer())] = static_cast<int>(i);
  }
  for (std::size_t t = 0; t < transports.size(); ++t) reports_arrivals_[t] = transports[t]->take_active(arrivals_);
  for (const Link* link : arrivals_) set_active(*wire_to(link->peer()));
  for (Wire& wire : wires_) {
    if (!reports_arrivals(wire)) set_active(wire);
  }
}

Wire* TileRouter::wire_to(int rank) noexcept {
  const int index = wire_of_rank_[static_cast<std::size_t>(rank)];
  return index < 0 ? nullptr : &wires_[static_cast<std::size_t>(index)];
}

inline void TileRouter::set_active(Wire& wire) {
  if (std::exchange(wire.active, true)) return;
  active_.push_back(&wire);
}

void TileRouter::note_arrivals() {
  arrivals_.clear();
  for (const auto& transport : transports_) transport->take_active(arrivals_);
  for (const Link* link : arrivals_) set_active(*wire_to(link->peer()));
}

std::span<Wire* const> TileRouter::active() {
  std::erase_if(active_, [this](Wire* wire) {
    // To peek also tells the transport that the tile has been seen: it is nothing to wake up for.
    wire->active = wire->link->peek() != nullptr || !reports_arrivals(*wire) ||
                   std::ranges::any_of(wire->spills, [](const auto& queue) { return !queue->empty(); });
    wire->stuck &= wire->active;
    return !wire->active;
  });
  return active_;
}

void TileRouter::attach(ProgressClient& client) {
  for (Wire& wire : wires_) take_early_tiles(wire, client);
}

void TileRouter::detach(ProgressClient& client, bool others) {
  for (const int member : client.group().members) {
    const ClientLink* link = client.link_to(member);
    if (link == nullptr) continue;
    if (link->their_number != kCommunicatorLimit) forget_number(*link->wire, link->their_number);
    // A peer without a connection has received no tile with the number.
    if (others && link->bound && link->link->connected()) send_control(*link->wire, client.number(), LinkControl::unbind);
  }
  send_records();
}

bool TileRouter::route(std::span<ProgressClient* const> running, bool quiet) {
  bool moved = send_records();
  stray_ = false;
  for (Wire* each : active()) {
    Wire& wire = *each;
    const Arrival* head = nullptr;
    for (int tiles = 0; tiles < kMostTilesInARow && (head = wire.link->peek()) != nullptr; ++tiles) {
      const std::uint32_t number = head->header.communicator;
      if (number == kControlTile) {
        on_control(wire, head->header);
      } else if (const auto known = wire.theirs.find(number & ~kMessageBit); known != wire.theirs.end()) {
        BoundNumber& bound = known->second;
        ProgressClient* const owner = bound.client;
        if (owner != nullptr && !owner->closed() && (number & kMessageBit) != 0) {
          owner->take_message(wire.link->peer(), *head);
        } else if (owner != nullptr ? !owner->closed() : !bound.over) {
          if (!stands_in_the_way(wire, running, owner, quiet)) break;
          spill(wire, bound, *head);
        }
      }
      // Else no communicator needs the tile any more.
      wire.link->release();
      wire.stuck = false;
      moved = true;
    }
    if (head == nullptr) wire.stuck = false;
  }
  return moved;
}

/// Whether a communicator could use what lies behind the head of `wire`, which `owner` (null: not made here yet) cannot use
/// now.
bool TileRouter::stands_in_the_way(Wire& wire, std::span<ProgressClient* const> running, const ProgressClient* owner,
                                   bool quiet) const {
  if (!wire.stuck) {
    wire.stuck = true;
    wire.taken_when_stuck = wire.taken;
  }
  if (!spills_) return false;
  if (wire.taken - wire.taken_when_stuck > kTilesUnheard) return true;
  return quiet && std::ranges::any_of(running, [&](const ProgressClient* client) {
           return client->use_of(wire.link->peer()) >= (client == owner ? LinkUse::paused : LinkUse::waits);
         });
}

void TileRouter::spill(Wire& wire, BoundNumber& bound, const Arrival& arrival) {
  const std::uint32_t number = arrival.header.communicator;
  ProgressClient* const owner = bound.client;
  if (owner == nullptr) {
    if (!early_.take_room(arrival.data.size())) {
      early_.refuse(wire.link->peer(), bound.name);
      bound.over = true;
      return drop_spills(wire, number & ~kMessageBit);
    }
  }
  auto known =
      std::find_if(wire.spills.begin(), wire.spills.end(), [&](const auto& queue) { return queue->communicator() == number; });
  if (known == wire.spills.end()) {
    known = wire.spills.insert(known, std::make_unique<SpillQueue>(number));
    if (owner != nullptr) take_spilled(*owner, wire, **known);
  }
  const bool full = (*known)->push(arrival);
  if (arrival.lent && !wire.link->intact()) {
    // The sender has closed the communicator, and has sent the cause before it reclaimed the tile.
    control_.poll();
    if (owner != nullptr) owner->lent_tile_reclaimed(wire.link->peer());
  } else if (full) {
    send_control(wire, number, LinkControl::pause);
    send_records();  // at once: the peer goes on sending meanwhile
  }
}

void TileRouter::on_control(Wire& wire, const TileHeader& header) {
  const LinkControl what = link_control_in(header);
  if (what == LinkControl::bind) return on_bind(wire, header.sequence, name_in(header));
  if (what == LinkControl::unbind) return on_unbind(wire, header.sequence);
  ProgressClient* client = clients_.find(header.sequence);
  if (client == nullptr) return;
  ClientLink* const link = client->link_to(wire.link->peer());
  if (link != nullptr && (what == LinkControl::pause || what == LinkControl::resume)) link->paused = what == LinkControl::pause;
}

void TileRouter::on_bind(Wire& wire, std::uint32_t number, const GroupName& name) {
  const auto [known, is_new] = wire.theirs.try_emplace(number);
  if (!is_new) return;  // calls and messages of a communicator both send it
  known->second.name = name;
  if (ProgressClient* const client = clients_.find(name); client != nullptr) {
    known->second.client = client;
    set_number(*client, wire, number);
  } else if (clients_.has_ended(name)) {
    known->second.over = true;
  } else {
    wire.unmade[name] = number;
  }
}

void TileRouter::on_unbind(Wire& wire, std::uint32_t number) {
  const auto known = wire.theirs.find(number);
  if (known == wire.theirs.end()) return;
  known->second.left = true;
  // Tiles that arrived before wait for the communicator, on the link or in a spill queue, until it is closed here.
  if (known->second.over && known->second.client == nullptr && !wire.unmade.contains(known->second.name))
    wire.theirs.erase(known);
}

/// `client` is new: takes the tiles that the peer at the other end of `wire` has sent already.
void TileRouter::take_early_tiles(Wire& wire, ProgressClient& client) {
  const auto unmade = wire.unmade.find(client.group().name);
  if (unmade == wire.unmade.end()) return;
  const std::uint32_t number = unmade->second;
  wire.unmade.erase(unmade);
  BoundNumber& bound = wire.theirs[number];
  bound.client = &client;
  bound.over = false;
  set_number(client, wire, number);
  for (const auto& queue : wire.spills) {
    const bool messages = queue->communicator() == (number | kMessageBit);
    if (!messages && queue->communicator() != number) continue;
    early_.give_room_back(queue->bytes(), queue->size());
    if (!messages) take_spilled(client, wire, *queue);
    for (; messages && !queue->empty(); queue->pop()) client.take_message(wire.link->peer(), *queue->front());
  }
  std::erase_if(wire.spills, [&](const auto& queue) { return queue->communicator() == (number | kMessageBit); });
}

/// The communicator to which the peer gives `number` has ended here.
void TileRouter::forget_number(Wire& wire, std::uint32_t number) {
  const auto known = wire.theirs.find(number);
  if (known == wire.theirs.end()) return;
  std::erase_if(wire.spills, [&](const auto& queue) { return queue->communicator() == number; });
  if (known->second.left) {
    wire.theirs.erase(known);
  } else {
    known->second.client = nullptr;
    known->second.over = true;
  }
}

/// Drops the spilled tiles of a communicator that is not made here and has been refused.
void TileRouter::drop_spills(Wire& wire, std::uint32_t number) {
  std::erase_if(wire.spills, [&](const auto& queue) {
    if ((queue->communicator() & ~kMessageBit) != number) return false;
    early_.give_room_back(queue->bytes(), queue->size());
    return true;
  });
}

bool TileRouter::bind(Wire& wire, std::uint32_t number, const GroupName& name) {
  if (!wire.link->try_send(bind_header(number, name), {})) return false;
  ++wire.taken;
  return true;
}

bool TileRouter::send_records() {
  if (records_.empty()) return false;
  std::vector<const Wire*> full;  // a wire that refuses one takes none after it: the order matters
  const std::size_t before = records_.size();
  std::erase_if(records_, [&](const Record& record) {
    if (!record.wire->link->status().ok()) return true;
    if (std::find(full.begin(), full.end(), record.wire) != full.end()) return false;
    const TileHeader header{kControlTile, record.number, static_cast<std::uint32_t>(record.what), 0, 0};
    if (!record.wire->link->try_send(header, {})) {
      full.push_back(record.wire);
      return false;
    }
    ++record.wire->taken;
    return true;
  });
  if (records_.size() == before) return false;
  // The driver may be about to leave: these records must not wait for more tiles to travel with.
  for (const auto& transport : transports_) transport->progress();
  return true;
}

}  // namespace shoal
