// Tiles that were moved off the head of a link, so that other communicators can use what lies behind them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "src/base/ring_queue.h"
#include "src/topology/group_name.h"
#include "transports/transport.h"

namespace shoal {

/// TileHeader::communicator of the tiles by which the ProgressEngines at both ends of a link control its use. They identify a
/// communicator by a number in TileHeader::sequence and have no payload.
inline constexpr std::uint32_t kControlTile = 0xFFFFFFFF;
/// Set in TileHeader::communicator: a tile of the communicator's messages (send and recv), not of its calls.
inline constexpr std::uint32_t kMessageBit = 0x80000000;
/// Numbers of communicators are below this. Each process has a counter of its own, and gives no number out twice.
inline constexpr std::uint32_t kCommunicatorLimit = 0x7FFFFFFF;

/// TileHeader::edge of a ProgressEngine's tile.
enum class LinkControl : std::uint32_t {
  pause = 1,   ///< send no more tiles of this communicator; the number is the one that the receiver of this record gives it
  resume = 2,  ///< send again; the number as for pause
  bind = 3,    ///< tiles with this number, the sender's, belong to the communicator of the GroupName in the other fields
  unbind = 4,  ///< no more tiles with this number, the sender's, will arrive
};
/// The lower bits of TileHeader::edge hold the LinkControl; in a `bind` the others hold GroupName::check, and the offset its
/// key. So a bind carries the whole name, and the other tiles of the communicator need the number only.
inline constexpr std::uint32_t kLinkControlBits = 8;
static_assert(GroupName::kCheckLimit == 1U << (32 - kLinkControlBits));

inline TileHeader bind_header(std::uint32_t number, const GroupName& name) noexcept {
  const std::uint32_t what = static_cast<std::uint32_t>(LinkControl::bind) | name.check << kLinkControlBits;
  return {kControlTile, number, what, 0, name.key};
}
inline LinkControl link_control_in(const TileHeader& header) noexcept {
  return static_cast<LinkControl>(header.edge & ((1U << kLinkControlBits) - 1));
}
/// Of a bind.
inline GroupName name_in(const TileHeader& header) noexcept { return {header.offset_bytes, header.edge >> kLinkControlBits}; }

/// The spilled tiles of one communicator on one link, oldest first.
///
/// Beyond kPauseAt the peer is asked to pause, so at most that many are here, and those in flight when the peer received the
/// pause.
class SpillQueue {
 public:
  static constexpr std::size_t kPauseAt = 4;
  static constexpr std::size_t kResumeAt = 1;

  explicit SpillQueue(std::uint32_t communicator) : communicator_(communicator) {}

  [[nodiscard]] std::uint32_t communicator() const noexcept { return communicator_; }
  [[nodiscard]] bool empty() const noexcept { return tiles_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return tiles_.size(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] const Arrival* front() noexcept { return &tiles_.front().arrival; }

  /// Copies `arrival`. True where the peer must be asked to pause.
  bool push(const Arrival& arrival) {
    Tile tile;
    tile.memory = std::make_unique_for_overwrite<std::byte[]>(arrival.data.size());
    std::copy(arrival.data.begin(), arrival.data.end(), tile.memory.get());
    tile.arrival = {arrival.header, {tile.memory.get(), arrival.data.size()}};
    bytes_ += arrival.data.size();
    tiles_.push(std::move(tile));
    return size() > kPauseAt && !std::exchange(paused_, true);
  }
  /// Removes the oldest. True where the peer must be asked to resume.
  bool pop() {
    bytes_ -= tiles_.front().arrival.data.size();
    tiles_.front().memory.reset();
    tiles_.pop();
    return size() <= kResumeAt && std::exchange(paused_, false);
  }

 private:
  struct Tile {
    std::unique_ptr<std::byte[]> memory;
    Arrival arrival;
  };

  std::uint32_t communicator_;
  RingQueue<Tile> tiles_;
  std::size_t bytes_ = 0;
  bool paused_ = false;
};

}  // namespace shoal
