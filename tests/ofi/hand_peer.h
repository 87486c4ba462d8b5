// A peer that the test controls: the test is the other end of a transport's rails; it sees what was sent and decides what
// arrives.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transports/rails/rail.h"
#include "transports/rails/rails.h"
#include "transports/rails/wire.h"

namespace shoal::rails::testing {

/// The other rank of a job of two. It answers the transport's hello record, unless `answers` is false, and holds the job's
/// key: the transport authenticates what it sends, even where the contents are wrong. Thread rule: that of the transport.
class HandPeer {
 public:
  /// A posted operation; its bytes are read from the transport's memory when it completes.
  struct Held {
    Operation* operation = nullptr;
    std::vector<Piece> pieces;
    bool is_write = false;
  };
  struct Wire {
    std::deque<std::pair<Operation*, std::span<std::byte>>> receives;
    std::deque<Completion> over;
    std::deque<Held> held;
    std::span<std::byte> slots;  ///< memory into which the transport lets its peer write
    bool holds = false;          ///< posts on this rail do not complete before complete(), or before `reads` reads
    int reads = 0;
    bool refuses = false;  ///< posts on this rail find its queue full
    bool open = true;
  };

  /// `options`: those of the transport, which is made with rails().
  HandPeer(const Options& options, RailTraits traits, std::size_t rails) : options_(options), traits_(std::move(traits)) {
    for (std::size_t r = 0; r < rails; ++r) wires.push_back(std::make_shared<Wire>());
  }
  std::vector<std::unique_ptr<Rail>> rails();
  /// The peer's address, as connect() takes it.
  [[nodiscard]] std::string address() const {
    std::string all;
    for (std::size_t r = 0; r < wires.size(); ++r) all += std::string("\1\0", 2) + static_cast<char>('a' + r);
    return all;
  }

  /// Delivers a message; false where no receive is posted.
  bool deliver(std::size_t rail, std::span<const std::byte> message) {
    Wire& wire = *wires[rail];
    if (!wire.open || wire.receives.empty()) return false;
    const auto [operation, memory] = wire.receives.front();
    wire.receives.pop_front();
    const bool fits = message.size() <= memory.size();
    if (fits) std::copy(message.begin(), message.end(), memory.begin());
    wire.over.push_back({Completion::Kind::received, operation, message.size(), 0, fits ? 0 : EMSGSIZE, 0});
    return true;
  }
  /// The bytes of a packet of this link, authenticated with its key.
  [[nodiscard]] std::vector<std::byte> encoded(Packet packet, std::size_t payload_bytes = 0) const {
    std::vector<std::byte> message(kPacketBytes + payload_bytes, std::byte{7});
    packet.link = hello_ ? hello_->link : 0;
    packet.token = key.token;
    encode(packet, key, std::span<std::byte, kPacketBytes>(message.data(), kPacketBytes));
    return message;
  }
  bool send(std::size_t rail, const Packet& packet, std::size_t payload_bytes = 0) {
    return deliver(rail, encoded(packet, payload_bytes));
  }
  /// Sends a handshake record of this rank, proven with the job's key.
  void send_handshake(std::size_t rail, const Record& record) { deliver(rail, encode(record, options_.key)); }
  [[nodiscard]] bool has_hello() const { return hello_.has_value(); }
  /// A valid record of this kind; only after the transport's hello.
  [[nodiscard]] Record record(RecordKind kind) const {
    Record made = *hello_;
    made.kind = kind;
    std::swap(made.from_rank, made.to_rank);
    made.link = 0;
    made.host = made.process = 0;
    if (on_same_host) made.host = hello_->host, made.process = static_cast<std::uint64_t>(::getppid());
    made.nonce = nonce;
    made.peer_nonce = hello_->nonce;
    return made;
  }
  /// A write arrives. Without bytes it is a mark alone, for which cards need no key.
  void write(std::size_t rail, const Immediate& mark, std::size_t offset = 0, std::size_t bytes = 0) {
    Wire& wire = *wires[rail];
    if (!wire.open || bytes > wire.slots.size() || offset > wire.slots.size() - bytes) return;
    if (bytes > 0) std::memset(wire.slots.data() + offset, 7, bytes);
    Operation* operation = nullptr;
    if (traits_.writes_take_receives && !wire.receives.empty()) {
      operation = wire.receives.front().first;
      wire.receives.pop_front();
    }
    wire.over.push_back({Completion::Kind::written, operation, bytes, to_bits(mark), 0, 0});
  }

  std::vector<std::shared_ptr<Wire>> wires;
  bool answers = true;        ///< answers the transport's hello
  bool holds = false;         ///< as Wire::holds, for all rails
  int refuses = 0;            ///< result of all posts; 0 = they are accepted
  bool on_same_host = false;  ///< its records name another process of this host, one that outlives the test
  bool redirects = false;     ///< result of Rail::redirects()
  bool remembers = false;     ///< records payloads
  Nonce nonce{};
  PacketKey key;  ///< of what this rank sends
  std::uint64_t sent = 0;
  std::vector<std::vector<std::byte>> payloads;  ///< with `remembers`: non-empty payloads, sent and written
  void complete(int error = 0) {
    for (std::size_t r = 0; r < wires.size(); ++r) {
      for (const Held& each : std::exchange(wires[r]->held, {})) {
        wires[r]->over.push_back({Completion::Kind::sent, each.operation, 0, 0, error, 0});
        if (error == 0) take(r, each);
      }
    }
  }

 private:
  friend class HandRail;
  void take(std::size_t rail, const Held& what) {
    std::vector<std::byte> message;
    for (const Piece& piece : what.pieces) message.insert(message.end(), piece.data, piece.data + piece.bytes);
    const std::size_t front = what.is_write ? 0 : kPacketBytes;
    if (remembers && message.size() > front && !looks_like_record(message))
      payloads.emplace_back(message.begin() + static_cast<std::ptrdiff_t>(front), message.end());
    if (what.is_write) return;
    ++sent;
    if (!looks_like_record(message)) return;
    const auto said = decode_record(std::span(message).first<kRecordBytes>());
    if (!said || said->kind != RecordKind::hello) return;
    hello_ = said;
    key = make_packet_key(options_.key, nonce, said->nonce);
    if (!answers) return;
    send_handshake(rail, record(RecordKind::hello));
    send_handshake(rail, record(RecordKind::answer));
  }

  const Options& options_;
  const RailTraits traits_;
  std::optional<Record> hello_;
};

/// The transport's end of a rail.
class HandRail final : public Rail {
 public:
  HandRail(HandPeer& peer, std::size_t number) : peer_(peer), number_(number), wire_(peer.wires[number]) {}
  ~HandRail() override { stop(); }

  [[nodiscard]] const RailTraits& traits() const noexcept override { return peer_.traits_; }
  [[nodiscard]] std::string address() const override { return std::to_string(number_); }
  Result<std::uint64_t> add_peer(std::string_view) override { return std::uint64_t{0}; }
  Result<Registration> register_memory(std::span<std::byte> memory, bool for_peers) override {
    if (for_peers) wire_->slots = memory;
    return Registration{memory.data(), nullptr, 1, 0};
  }
  void deregister(Registration& registration) noexcept override {
    if (registration.handle != nullptr && registration.handle == wire_->slots.data()) wire_->slots = {};
    registration = {};
  }
  int post_receive(Operation& operation, std::span<std::byte> memory, void*) override {
    if (peer_.refuses == kAgain) return kAgain;
    wire_->receives.emplace_back(&operation, memory);
    return 0;
  }
  int post_send(Operation& operation, std::uint64_t, std::span<const Piece> pieces) override {
    if (wire_->refuses) return kAgain;
    if (peer_.refuses != 0) return peer_.refuses;
    finish({&operation, {pieces.begin(), pieces.end()}});
    return 0;
  }
  [[nodiscard]] bool redirects(std::uint64_t) const noexcept override { return peer_.redirects; }
  void redirect(Operation& operation, const std::byte* data) noexcept override {
    for (HandPeer::Held& each : wire_->held) {
      if (each.operation == &operation) each.pieces.at(1).data = data;
    }
  }
  int post_write(Operation& operation, std::uint64_t, const Piece& piece, std::uint64_t, std::uint64_t,
                 std::uint32_t) override {
    if (wire_->refuses) return kAgain;
    if (peer_.refuses != 0) return peer_.refuses;
    finish({&operation, {piece}, true});
    return 0;
  }
  int read(std::span<Completion> completions) override {
    if (wire_->reads > 0 && --wire_->reads == 0) peer_.complete();
    const std::size_t count = std::min(completions.size(), wire_->over.size());
    std::copy_n(wire_->over.begin(), count, completions.begin());
    wire_->over.erase(wire_->over.begin(), wire_->over.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<int>(count);
  }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  bool may_wait() override { return true; }
  void stop() noexcept override {
    wire_->open = false;
    wire_->receives.clear();
    wire_->over.clear();
    wire_->held.clear();
    wire_->slots = {};
  }
  [[nodiscard]] std::string describe(const Completion& failed) const override { return std::strerror(failed.error); }

 private:
  void finish(const HandPeer::Held& posted) {
    if (peer_.holds || wire_->holds) return wire_->held.push_back(posted);
    wire_->over.push_back({Completion::Kind::sent, posted.operation, 0, 0, 0, 0});
    peer_.take(number_, posted);
  }

  HandPeer& peer_;
  const std::size_t number_;
  const std::shared_ptr<HandPeer::Wire> wire_;
};

inline std::vector<std::unique_ptr<Rail>> HandPeer::rails() {
  std::vector<std::unique_ptr<Rail>> made;
  for (std::size_t r = 0; r < wires.size(); ++r) made.push_back(std::make_unique<HandRail>(*this, r));
  return made;
}

}  // namespace shoal::rails::testing
