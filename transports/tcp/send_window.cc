#include "transports/tcp/send_window.h"

#include <utility>

#include "transports/common/checksum.h"

namespace shoal::tcp {

Result<SendWindow> SendWindow::make(std::size_t bytes, LinkRings* rings) {
  auto memory = MirrorRing::make(bytes, rings);
  if (!memory.ok()) return memory.status();
  SendWindow window;
  window.tiles_.resize(kTiles);
  window.memory_ = std::move(*memory);
  return window;
}

void SendWindow::start_resending(SendRange& range) const noexcept {
  range.resend = acknowledged_;
  range.resend_end = pulled_;
}

bool SendWindow::pull_resend(SendRange& range, std::size_t socket) noexcept {
  for (range.resend = std::max(range.resend, acknowledged_); range.resend < range.resend_end; ++range.resend) {
    const Tile& next = tile(range.resend);
    if (next.socket != socket || next.acknowledged) continue;
    range.first = range.resend++;
    range.last = range.resend;
    return true;
  }
  range.resend = range.resend_end = 0;
  return false;
}

std::size_t SendWindow::gather_due(const SendRange& range, std::array<iovec, 2>& parts) noexcept {
  std::uint64_t at = range.first;
  while (at != range.last && tile(at).lent == nullptr) ++at;
  if (at == range.last) {
    const std::span<const std::byte> bytes = due(range);
    parts[0] = {const_cast<std::byte*>(bytes.data()), bytes.size()};
    return 1;
  }
  const Tile& lent = tile(at);
  const std::uint64_t begin = tile(range.first).begin + range.sent_of_first;
  const std::uint64_t payload = lent.begin + kFrameHeaderBytes;
  const std::uint64_t from = std::max(begin, payload);
  std::size_t count = 0;
  if (begin < payload) parts[count++] = {memory_.data() + begin % memory_.size(), payload - begin};
  parts[count++] = {const_cast<std::byte*>(lent.lent + (from - payload)), lent.begin + lent.bytes - from};
  return count;
}

void SendWindow::acknowledge(std::size_t socket, std::uint64_t received) noexcept {
  for (std::uint64_t i = acknowledged_; i < std::min(received, pulled_); ++i) {
    Tile& one = tile(i);
    if (one.socket != socket || !one.in_kernel || one.acknowledged) continue;
    one.acknowledged = true;
    if (one.lent == nullptr) continue;
    one.lent = nullptr;
    --lent_tiles_;
  }
  advance_sent();
  while (acknowledged_ < sent_ && tile(acknowledged_).acknowledged) {
    begin_ = tile(acknowledged_).begin + tile(acknowledged_).bytes;
    ++acknowledged_;
  }
}

void SendWindow::copy_lent(Tile& tile) noexcept {
  if (tile.lent == nullptr) return;
  memory_.touch(tile.begin, tile.bytes);
  copy(memory_.data() + (tile.begin + kFrameHeaderBytes) % memory_.size(), {tile.lent, tile.bytes - kFrameHeaderBytes});
  tile.lent = nullptr;
  --lent_tiles_;
}

bool SendWindow::copy_sent_lent() noexcept {
  const std::uint64_t sent = sent_;
  for (std::uint64_t i = sent_; i < pulled_; ++i) {
    if (tile(i).in_kernel) copy_lent(tile(i));
  }
  advance_sent();
  return sent_ != sent;
}

void SendWindow::copy_all_lent() noexcept {
  for (std::uint64_t i = sent_; i < taken_; ++i) copy_lent(tile(i));
  advance_sent();
}

}  // namespace shoal::tcp
