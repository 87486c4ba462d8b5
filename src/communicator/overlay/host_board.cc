#include "src/communicator/overlay/host_board.h"

#include <algorithm>

namespace shoal {
namespace {

// The first page of the memory; the board follows.
constexpr std::size_t kPageBytes = 4096;

// The claim in one word, so that it is read and written as one: term, position of the rank, beat.
constexpr unsigned kBeatBits = 16;
constexpr unsigned kPositionBits = 16;
constexpr std::uint64_t kBeatMask = (std::uint64_t{1} << kBeatBits) - 1;
constexpr std::uint64_t kPositionMask = (std::uint64_t{1} << kPositionBits) - 1;

constexpr std::uint64_t claim_word(std::uint64_t term, std::size_t position, std::uint64_t beat) {
  return term << (kBeatBits + kPositionBits) | std::uint64_t{position} << kBeatBits | (beat & kBeatMask);
}

// The kind of a notice: which fragment of its message it is.
constexpr std::uint32_t kFirst = 1;
constexpr std::uint32_t kLast = 2;

}  // namespace

HostBoard::HostBoard(std::unique_ptr<shm::HostMemory> memory, const HostTable& table, int own)
    : memory_(std::move(memory)),
      table_(table),
      ranks_(table.ranks_of(table.host_of(own))),
      board_(memory_->memory().subspan(kPageBytes), ranks_.size(), memory_->own()),
      parts_(ranks_.size()) {}

std::size_t HostBoard::position_of(int rank) const noexcept {
  return static_cast<std::size_t>(std::ranges::lower_bound(ranks_, rank) - ranks_.begin());
}

HostBoard::Word& HostBoard::keeper() const noexcept { return *reinterpret_cast<Word*>(memory_->memory().data()); }

KeeperClaim HostBoard::claim() const noexcept {
  // Acquires nothing: what the keeper has written before is announced by the board.
  const std::uint64_t word = keeper().load(std::memory_order_seq_cst);
  const std::uint64_t term = word >> (kBeatBits + kPositionBits);
  const std::size_t position = word >> kBeatBits & kPositionMask;
  if (term == 0 || position >= ranks_.size()) return {};
  return {term, ranks_[position], word & kBeatMask};
}

bool HostBoard::try_claim(std::uint64_t term) noexcept {
  std::uint64_t before = keeper().load(std::memory_order_seq_cst);
  while (before >> (kBeatBits + kPositionBits) == term - 1) {
    if (!keeper().compare_exchange_strong(before, claim_word(term, memory_->own(), 0), std::memory_order_seq_cst)) continue;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (i != memory_->own()) memory_->wake(i);
    }
    return true;
  }
  return false;
}

void HostBoard::beat() noexcept {
  const KeeperClaim before = claim();
  if (before.rank != ranks_[memory_->own()]) return;
  std::uint64_t word = claim_word(before.term, memory_->own(), before.beat);
  // Fails where another rank has claimed meanwhile.
  keeper().compare_exchange_strong(word, claim_word(before.term, memory_->own(), before.beat + 1), std::memory_order_seq_cst);
}

void HostBoard::write(const OverlayMessage& message, std::optional<int> only) {
  NoticeBoard::Receivers receivers(ranks_.size());
  std::vector<std::size_t> woken;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (i == memory_->own() || (only && ranks_[i] != *only) || board_.is_taken_back(i)) continue;
    receivers.insert(i);
    woken.push_back(i);
  }
  if (woken.empty()) return;
  const std::vector<std::byte> bytes = to_bytes(message);
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t size = std::min(bytes.size() - at, NoticeBoard::kMostBytes);
    const std::uint32_t kind = (at == 0 ? kFirst : 0) | (at + size == bytes.size() ? kLast : 0);
    if (board_.write(kind, {}, receivers, std::span(bytes).subspan(at, size))) {
      at += size;
      continue;
    }
    const auto slow = board_.slowest();
    if (!slow) break;  // a fragment that is larger than the ring: there is none
    static_cast<void>(board_.take_back(*slow));
    behind_.push_back(*slow);
    receivers.erase(*slow);
  }
  for (const std::size_t position : woken) memory_->wake(position);
}

void HostBoard::read(News& news) {
  NoticeBoard::News found;
  board_.read(found);
  take(found, news);
}

void HostBoard::read_from(int rank, News& news) {
  NoticeBoard::News found;
  board_.read_from(position_of(rank), found);
  take(found, news);
}

void HostBoard::take(const NoticeBoard::News& found, News& news) {
  for (const auto& [writer, notice] : found.notices) {
    std::vector<std::byte>& part = parts_[writer];
    if ((notice.kind & kFirst) != 0) part.clear();
    // Of a message whose front this rank has missed there is no use.
    if ((notice.kind & kFirst) == 0 && part.empty()) continue;
    part.insert(part.end(), notice.payload.begin(), notice.payload.end());
    if ((notice.kind & kLast) == 0 && part.size() <= kMostOverlayBytes) continue;
    if (auto message = parse_overlay(part, table_.ranks())) {
      news.messages.emplace_back(ranks_[writer], *std::move(message));
    } else {
      news.malformed.push_back(ranks_[writer]);
    }
    part.clear();
  }
  for (const std::size_t writer : found.malformed) news.malformed.push_back(ranks_[writer]);
  for (const std::size_t writer : found.writers_waiting) {
    parts_[writer].clear();
    memory_->wake(writer);
  }
  std::erase_if(behind_, [&](std::size_t reader) {
    if (!board_.returns(reader)) return false;
    board_.admit(reader);
    news.returned.push_back(ranks_[reader]);
    return true;
  });
}

}  // namespace shoal
