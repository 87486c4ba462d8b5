// How a Mesh deals with tiles that stand in the way: see "Several communicators" in README.md.
#include <algorithm>

#include "src/engine/executor.h"
#include "src/engine/mesh.h"

namespace shoal {
namespace {

// A sender looks behind a tile that its communicator cannot use when it has sent so many more: the peer may have told it to
// pause.
constexpr std::uint64_t kTilesUnheard = 32;

}  // namespace

Executor* Mesh::find(std::uint32_t communicator) const noexcept {
  const auto known = by_number_.find(communicator);
  return known == by_number_.end() ? nullptr : known->second;
}

void Mesh::retire(std::uint32_t communicator) {
  retired_.insert(communicator);
  retired_order_.push_back(communicator);
  if (retired_order_.size() <= kMaxRetired) return;
  retired_.erase(retired_order_.front());
  retired_order_.pop_front();
}

bool Mesh::route(bool quiet) {
  bool moved = send_words();
  stray_ = false;
  for (Wire& wire : wires_) {
    const Arrival* head = nullptr;
    for (int tiles = 0; tiles < kMostTilesInARow && (head = wire.link->peek()) != nullptr; ++tiles) {
      const std::uint32_t number = head->header.communicator;
      if (number == kMeshTile) {
        hear(wire, head->header);
      } else if (Executor* owner = find(number & ~kMessageBit);
                 owner != nullptr && !owner->closed() && (number & kMessageBit) != 0) {
        owner->take_message(wire.link->peer(), *head);
      } else if (owner != nullptr ? !owner->closed() : !is_retired(number & ~kMessageBit)) {
        if (!stands_in_the_way(wire, owner, quiet) || !set_aside(wire, owner, *head)) break;
      }
      // Else nobody wants it any more.
      wire.link->release();
      wire.stuck = false;
      moved = true;
    }
    if (head == nullptr) wire.stuck = false;
  }
  return moved;
}

/// Whether somebody could use what lies behind the head of `wire`, which `owner` (null: not made here yet) cannot use now.
bool Mesh::stands_in_the_way(Wire& wire, const Executor* owner, bool quiet) const {
  if (!wire.stuck) {
    wire.stuck = true;
    wire.taken_when_stuck = wire.taken;
  }
  if (!parts_.moves_aside) return false;
  if (wire.taken - wire.taken_when_stuck > kTilesUnheard) return true;
  return quiet && std::any_of(running_.begin(), running_.end(), [&](const Executor* executor) {
           return executor == owner ? executor->is_paused(wire.link->peer()) : executor->uses(wire.link->peer());
         });
}

bool Mesh::set_aside(Wire& wire, Executor* owner, const Arrival& arrival) {
  const std::uint32_t number = arrival.header.communicator;
  auto known =
      std::find_if(wire.asides.begin(), wire.asides.end(), [&](const auto& aside) { return aside->communicator() == number; });
  if (known == wire.asides.end()) {
    if (owner == nullptr && foreign_asides_++ == kMaxForeign) return --foreign_asides_, false;
    known = wire.asides.insert(known, std::make_unique<Aside>(number));
    if (owner != nullptr) owner->take_aside(wire.link->peer(), **known);
  }
  const bool full = (*known)->push(arrival);
  if (arrival.lent && !wire.link->intact()) {
    // Its sender has closed the communicator, and said so before it took the tile back.
    poll_control();
    if (owner != nullptr) owner->close(owner->taken_back_by(wire.link->peer()));
  } else if (full) {
    say(wire, number, MeshWord::pause);
    send_words();  // now: the peer sends on meanwhile
  }
  return true;
}

void Mesh::hear(const Wire& wire, const TileHeader& header) {
  Executor* executor = find(header.sequence);
  if (executor == nullptr) return;
  const auto word = static_cast<MeshWord>(header.edge);
  if (word == MeshWord::pause || word == MeshWord::resume) executor->set_paused(wire.link->peer(), word == MeshWord::pause);
}

void Mesh::say(Wire& wire, std::uint32_t communicator, MeshWord word) { words_.push_back({&wire, communicator, word}); }

bool Mesh::send_words() {
  if (words_.empty()) return false;
  std::vector<const Wire*> full;  // a wire that refuses one takes none after it: order counts
  const std::size_t before = words_.size();
  std::erase_if(words_, [&](const Word& word) {
    if (!word.wire->link->status().ok()) return true;
    if (std::find(full.begin(), full.end(), word.wire) != full.end()) return false;
    const TileHeader header{kMeshTile, word.communicator, static_cast<std::uint32_t>(word.word), 0, 0};
    if (!word.wire->link->try_send(header, {})) {
      full.push_back(word.wire);
      return false;
    }
    ++word.wire->taken;
    return true;
  });
  if (words_.size() == before) return false;
  // The driver may be about to leave: they must not wait for company.
  for (const auto& transport : parts_.transports) transport->progress();
  return true;
}

}  // namespace shoal
