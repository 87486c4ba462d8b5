// Head-of-line handling of a ProgressEngine: see "Several communicators" in README.md.
#include <algorithm>

#include "src/progress/progress_client.h"
#include "src/progress/progress_engine.h"

namespace shoal {
namespace {

// After sending so many tiles on a link whose head is an unclaimed tile, a sender looks behind that tile: the peer may have
// sent a pause there.
constexpr std::uint64_t kTilesUnheard = 32;

}  // namespace

ProgressClient* ProgressEngine::find(std::uint32_t number) const noexcept {
  const auto known = by_number_.find(number);
  return known == by_number_.end() ? nullptr : known->second;
}

ProgressClient* ProgressEngine::find(const GroupName& name) const noexcept {
  const auto known = by_name_.find(name);
  return known == by_name_.end() ? nullptr : known->second;
}

void ProgressEngine::retire(const GroupName& name) {
  retired_.insert(name);
  retired_order_.push_back(name);
  if (retired_order_.size() <= kMaxRetired) return;
  retired_.erase(retired_order_.front());
  retired_order_.pop_front();
}

bool ProgressEngine::route(bool quiet) {
  bool moved = send_words();
  stray_ = false;
  for (Wire& wire : wires_) {
    const Arrival* head = nullptr;
    for (int tiles = 0; tiles < kMostTilesInARow && (head = wire.link->peek()) != nullptr; ++tiles) {
      const std::uint32_t number = head->header.communicator;
      if (number == kControlTile) {
        hear(wire, head->header);
      } else if (const auto known = wire.theirs.find(number & ~kMessageBit); known != wire.theirs.end()) {
        Bound& bound = known->second;
        ProgressClient* const owner = bound.executor;
        if (owner != nullptr && !owner->closed() && (number & kMessageBit) != 0) {
          owner->take_message(wire.link->peer(), *head);
        } else if (owner != nullptr ? !owner->closed() : !bound.over) {
          if (!stands_in_the_way(wire, owner, quiet)) break;
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
bool ProgressEngine::stands_in_the_way(Wire& wire, const ProgressClient* owner, bool quiet) const {
  if (!wire.stuck) {
    wire.stuck = true;
    wire.taken_when_stuck = wire.taken;
  }
  if (!parts_.spills_tiles) return false;
  if (wire.taken - wire.taken_when_stuck > kTilesUnheard) return true;
  return quiet && std::any_of(running_.begin(), running_.end(), [&](const ProgressClient* executor) {
           return executor == owner ? executor->is_paused(wire.link->peer()) : executor->uses(wire.link->peer());
         });
}

void ProgressEngine::spill(Wire& wire, Bound& bound, const Arrival& arrival) {
  const std::uint32_t number = arrival.header.communicator;
  ProgressClient* const owner = bound.executor;
  if (owner == nullptr) {
    const std::size_t bytes = kEarlyRecordBytes + arrival.data.size();
    if (!has_early_room(bytes)) {
      refuse(wire.link->peer(), bound.name);
      bound.over = true;
      return drop_spills(wire, number & ~kMessageBit);
    }
    early_bytes_ += bytes;
  }
  auto known =
      std::find_if(wire.spills.begin(), wire.spills.end(), [&](const auto& aside) { return aside->communicator() == number; });
  if (known == wire.spills.end()) {
    known = wire.spills.insert(known, std::make_unique<SpillQueue>(number));
    if (owner != nullptr) owner->take_spilled(wire.link->peer(), **known);
  }
  const bool full = (*known)->push(arrival);
  if (arrival.lent && !wire.link->intact()) {
    // The sender has closed the communicator, and has sent the cause before it reclaimed the tile.
    poll_control();
    if (owner != nullptr) owner->close(owner->taken_back_by(wire.link->peer()));
  } else if (full) {
    say(wire, number, LinkControl::pause);
    send_words();  // at once: the peer goes on sending meanwhile
  }
}

void ProgressEngine::hear(Wire& wire, const TileHeader& header) {
  const auto word = static_cast<LinkControl>(header.edge & ((1U << kLinkControlBits) - 1));
  if (word == LinkControl::bind)
    return hear_bind(wire, header.sequence, {header.offset_bytes, header.edge >> kLinkControlBits});
  if (word == LinkControl::unbind) return hear_unbind(wire, header.sequence);
  ProgressClient* executor = find(header.sequence);
  if (executor == nullptr) return;
  if (word == LinkControl::pause || word == LinkControl::resume)
    executor->set_paused(wire.link->peer(), word == LinkControl::pause);
}

void ProgressEngine::hear_bind(Wire& wire, std::uint32_t number, const GroupName& name) {
  const auto [known, is_new] = wire.theirs.try_emplace(number);
  if (!is_new) return;  // calls and messages of a communicator both send it
  known->second.name = name;
  if (ProgressClient* const executor = find(name); executor != nullptr) {
    known->second.executor = executor;
    executor->set_number_of(wire.link->peer(), number);
  } else if (is_retired(name)) {
    known->second.over = true;
  } else {
    wire.unmade[name] = number;
  }
}

void ProgressEngine::hear_unbind(Wire& wire, std::uint32_t number) {
  const auto known = wire.theirs.find(number);
  if (known == wire.theirs.end()) return;
  known->second.left = true;
  // Tiles that arrived before wait for the communicator, on the link or in a spill queue, until it is closed here.
  if (known->second.over && known->second.executor == nullptr && !wire.unmade.contains(known->second.name))
    wire.theirs.erase(known);
}

/// `executor` is new: takes the tiles that the peer at the other end of `wire` has sent already.
void ProgressEngine::take_early_tiles(Wire& wire, ProgressClient& executor) {
  const auto unmade = wire.unmade.find(executor.group().name);
  if (unmade == wire.unmade.end()) return;
  const std::uint32_t number = unmade->second;
  wire.unmade.erase(unmade);
  Bound& bound = wire.theirs[number];
  bound.executor = &executor;
  bound.over = false;
  executor.set_number_of(wire.link->peer(), number);
  for (const auto& aside : wire.spills) {
    const bool messages = aside->communicator() == (number | kMessageBit);
    if (!messages && aside->communicator() != number) continue;
    early_bytes_ -= aside->bytes() + aside->size() * kEarlyRecordBytes;
    if (!messages) executor.take_spilled(wire.link->peer(), *aside);
    for (; messages && !aside->empty(); aside->pop()) executor.take_message(wire.link->peer(), *aside->front());
  }
  std::erase_if(wire.spills, [&](const auto& aside) { return aside->communicator() == (number | kMessageBit); });
}

/// The communicator to which the peer gives `number` has ended here.
void ProgressEngine::forget_number(Wire& wire, std::uint32_t number) {
  const auto known = wire.theirs.find(number);
  if (known == wire.theirs.end()) return;
  std::erase_if(wire.spills, [&](const auto& aside) { return aside->communicator() == number; });
  if (known->second.left) {
    wire.theirs.erase(known);
  } else {
    known->second.executor = nullptr;
    known->second.over = true;
  }
}

/// Drops the spilled tiles of a communicator that is not made here and has been refused.
void ProgressEngine::drop_spills(Wire& wire, std::uint32_t number) {
  std::erase_if(wire.spills, [&](const auto& aside) {
    if ((aside->communicator() & ~kMessageBit) != number) return false;
    early_bytes_ -= aside->bytes() + aside->size() * kEarlyRecordBytes;
    return true;
  });
}

bool ProgressEngine::bind(Wire& wire, std::uint32_t number, const GroupName& name) {
  const std::uint32_t word = static_cast<std::uint32_t>(LinkControl::bind) | name.check << kLinkControlBits;
  if (!wire.link->try_send({kControlTile, number, word, 0, name.key}, {})) return false;
  ++wire.taken;
  return true;
}

void ProgressEngine::say(Wire& wire, std::uint32_t number, LinkControl word) { words_.push_back({&wire, number, word}); }

bool ProgressEngine::send_words() {
  if (words_.empty()) return false;
  std::vector<const Wire*> full;  // a wire that refuses one takes none after it: the order matters
  const std::size_t before = words_.size();
  std::erase_if(words_, [&](const Word& word) {
    if (!word.wire->link->status().ok()) return true;
    if (std::find(full.begin(), full.end(), word.wire) != full.end()) return false;
    const TileHeader header{kControlTile, word.number, static_cast<std::uint32_t>(word.word), 0, 0};
    if (!word.wire->link->try_send(header, {})) {
      full.push_back(word.wire);
      return false;
    }
    ++word.wire->taken;
    return true;
  });
  if (words_.size() == before) return false;
  // The driver may be about to leave: these records must not wait for more tiles to travel with.
  for (const auto& transport : parts_.transports) transport->progress();
  return true;
}

}  // namespace shoal
