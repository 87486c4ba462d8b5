// HostBoard: what the ranks of a host tell each other about other hosts, and which of them is the keeper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "src/base/descriptor.h"
#include "src/progress/notice_board.h"
#include "src/progress/overlay/host_table.h"
#include "src/progress/overlay/keeper_role.h"
#include "src/progress/overlay/message.h"
#include "transports/shm/host_memory.h"

namespace shoal {

/// OverlayMessages on a NoticeBoard of their own, in fragments, as they may be longer than a notice. A rank that does not read
/// delays no other: where it is in the way, it misses messages, and returned() names it when it reads again. Ranks are those of
/// the job. Thread rule: one thread at a time.
class HostBoard {
 public:
  struct News {
    std::vector<std::pair<int, OverlayMessage>> messages;  ///< and who has written each
    std::vector<int> malformed;                            ///< ranks that have written something else
    std::vector<int> returned;                             ///< ranks that have missed messages of this one, and read again
  };

  /// Of the rank `own`, on the host of which it is in `table`, which outlives it.
  HostBoard(std::unique_ptr<shm::HostMemory> memory, const HostTable& table, int own);
  /// There is room for messages of the largest size.
  [[nodiscard]] bool usable() const noexcept { return board_.usable(); }

  // The keeper.
  [[nodiscard]] KeeperClaim claim() const noexcept;
  /// Makes this rank the keeper in `term`. False where another rank has claimed.
  bool try_claim(std::uint64_t term) noexcept;
  /// Nothing happens where this rank is not the keeper.
  void beat() noexcept;

  // Messages.
  /// To all other ranks, or to `only`.
  void write(const OverlayMessage& message, std::optional<int> only = std::nullopt);
  [[nodiscard]] bool has_news() const noexcept { return board_.has_news(); }
  void read(News& news);
  /// All that `rank`, whose process has ended, has written.
  void read_from(int rank, News& news);

  // Sleep, and the ends of processes: see HostMemory.
  [[nodiscard]] int wait_fd() const noexcept { return memory_->wait_fd(); }
  void announce_sleep() noexcept { memory_->announce_sleep(); }
  void end_sleep(bool readable) noexcept { memory_->end_sleep(readable); }
  int open_process(int rank, Descriptor& process) const noexcept { return memory_->open_process(position_of(rank), process); }

 private:
  using Word = std::atomic<std::uint64_t>;

  [[nodiscard]] std::size_t position_of(int rank) const noexcept;
  [[nodiscard]] Word& keeper() const noexcept;
  void take(const NoticeBoard::News& found, News& news);

  std::unique_ptr<shm::HostMemory> memory_;
  const HostTable& table_;
  const std::vector<int>& ranks_;  // by position
  NoticeBoard board_;
  std::vector<std::vector<std::byte>> parts_;  // by writer: the fragments of a message that is not whole yet
  std::vector<std::size_t> behind_;            // positions of readers that have been taken back
};

}  // namespace shoal
