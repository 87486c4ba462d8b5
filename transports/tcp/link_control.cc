// TcpLink: control records.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "transports/tcp/link_sockets.h"
#include "transports/tcp/reactor.h"

namespace shoal::tcp {

bool TcpLink::receive_words(Flow& flow) {
  bool moved = false;
  const std::uint64_t sent = sent_;
  while (!flow.ended && !flow.down) {
    const std::size_t room = words_in_.size() - words_got_;
    const ssize_t got = read(flow, words_in_.data() + words_got_, room, room);
    flow.readable = false;
    if (got < 0 && errno == EBADMSG) {
      distrust(flow, "sent control records that were damaged in transit");
      return true;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got < 0 && (errno == ENOBUFS || errno == ENOMEM)) {
      flow.readable = true;  // no event will report these bytes again
      break;
    }
    if (got <= 0) {
      end_flow(flow, got == 0 ? 0 : errno);
      return true;
    }
    words_got_ += static_cast<std::size_t>(got);
    std::size_t read = 0;
    for (; words_got_ - read >= kControlRecordBytes; read += kControlRecordBytes) {
      const auto word =
          decode_control_record(std::span<const std::byte, kControlRecordBytes>(words_in_.data() + read, kControlRecordBytes));
      if (!word) {
        distrust(flow, "sent a corrupt control record");
        return true;
      }
      hear(*word);
    }
    flow.distrusted = 0;
    words_got_ -= read;
    std::memmove(words_in_.data(), words_in_.data() + read, words_got_);
    moved |= std::exchange(refused_, false) || closing_ || sent_ != sent;
  }
  return moved;
}

void TcpLink::hear(const ControlRecord& word) {
  if (word.kind == ControlRecord::Kind::goodbye) {
    left_ = true;
    if (is_ending()) start_closing();
  } else if (word.kind == ControlRecord::Kind::asks) {
    asked_ = true;
    tell_received();
  } else if (word.socket < tile_flows().size()) {
    acknowledge(word.socket, word.position);
    if (!closing_ && pulled_ < taken_) pull_tiles();
  }
}

// Acknowledges what has arrived, so that the peer can free its memory.
void TcpLink::tell_received() {
  for (std::size_t i = 0; i < tile_flows().size(); ++i) {
    Flow& flow = flows_[i];
    if (flow.told == flow.received) continue;
    if (word_flow().down || word_flow().ended || words_due_ + kControlRecordBytes > words_out_.size()) return;
    flow.told = flow.received;
    say({ControlRecord::Kind::received, static_cast<std::uint32_t>(i), flow.received});
  }
  untold_bytes_ = untold_tiles_ = 0;
  flush_words();
}

void TcpLink::say(const ControlRecord& word) {
  encode(word, std::span<std::byte, kControlRecordBytes>(words_out_.data() + words_due_, kControlRecordBytes));
  words_due_ += kControlRecordBytes;
}

void TcpLink::flush_words() {
  Flow& flow = word_flow();
  std::size_t taken = 0;
  if (flow.down || flow.ended) return;
  flow.blocked = false;
  if (flow.cipher != nullptr) {
    RecordCipher& cipher = *flow.cipher;
    for (bool all = true; all && (words_due_ > 0 || !cipher.outgoing().empty());) {
      if (cipher.outgoing().empty()) {
        const std::size_t bytes = std::min(words_due_, cipher.most_bytes() / kControlRecordBytes * kControlRecordBytes);
        cipher.seal(std::span(words_out_).first(bytes));
        forget_words(bytes);
      }
      all = send_some(flow, cipher.outgoing(), taken);
      cipher.sent(taken);
    }
  } else if (words_due_ > 0) {
    send_some(flow, std::span(words_out_).first(words_due_), taken);
    forget_words(taken);
  }
}

void TcpLink::forget_words(std::size_t bytes) noexcept {
  words_due_ -= bytes;
  std::memmove(words_out_.data(), words_out_.data() + bytes, words_due_);
}

}  // namespace shoal::tcp
