// The handshake over rails: each rank sends a hello to each peer, and answers the peer's hello. Both records are
// authenticated by the job's key. An answer covers the nonces of both sides, so a recorded one is useless.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>

#include <fmt/format.h>

#include "src/trust/refusals.h"
#include "transports/rails/hub.h"

namespace shoal::rails {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kHelloAgain{3000};  // messages are reliable, but a rail may be silent
constexpr milliseconds kHelloFailed{50};
constexpr std::size_t kNamedRanks = 8;

// Identifies host and process namespace: ranks with the same number see each other's process identifiers. 0: unknown.
std::uint64_t host_number() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat space {};
  if (boot.empty() || ::stat("/proc/self/ns/pid", &space) != 0) return 0;
  return std::hash<std::string>{}(boot) ^ (static_cast<std::uint64_t>(space.st_ino) * 0x9e3779b97f4a7c15);
}

// An address: for each rail its length and its bytes.
Result<std::vector<std::string>> split_address(const std::string& address) {
  std::vector<std::string> rails;
  for (std::size_t at = 0; at < address.size();) {
    const auto low = static_cast<unsigned char>(address[at++]);
    const std::size_t bytes = at == address.size() ? 0 : low + 256U * static_cast<unsigned char>(address[at++]);
    if (bytes == 0 || bytes > address.size() - at) return Status(StatusCode::invalid_argument, "its address is malformed");
    rails.push_back(address.substr(at, bytes));
    at += bytes;
  }
  if (rails.empty()) return Status(StatusCode::invalid_argument, "its address is empty");
  return rails;
}

}  // namespace

std::string Hub::address() const {
  std::string all;
  for (const std::string& rail : rail_addresses_) {
    all += static_cast<char>(static_cast<unsigned char>(rail.size() & 0xff));
    all += static_cast<char>(static_cast<unsigned char>(rail.size() >> 8));
    all += rail;
  }
  return all;
}

Status Hub::add_peer(int rank, const std::string& address) {
  const auto bad = [&](const std::string& what) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: connect: rank {}: {}", options_.transport, rank, what));
  };
  if (rank < 0 || rank >= options_.size || rank == options_.rank) return bad(fmt::format("no peer of rank {}", options_.rank));
  if (index_of_rank_[static_cast<std::size_t>(rank)] >= 0) return bad("named twice");
  const auto rails = split_address(address);
  if (!rails.ok()) return bad(rails.status().message());
  if (rails->size() != rails_.size()) {
    return {StatusCode::mismatch, fmt::format("{}: rank {} has {} rails, rank {} has {}; give all ranks as many (SHOAL_RAILS)",
                                              options_.transport, rank, rails->size(), options_.rank, rails_.size())};
  }
  auto peer = std::make_unique<RailsPeer>(*this, rank, shape_);
  for (std::size_t r = 0; r < rails_.size(); ++r) {
    auto number = rails_[r]->add_peer((*rails)[r]);
    if (!number.ok()) return number.status();
    peer->remote.addresses.push_back(*number);
  }
  if (Status status = peer->prepare(); !status.ok()) return status;
  peer->handshake.nonce = random_nonce();
  std::byte* memory = records_.data() + peers_.size() * 2 * round_up(kRecordBytes);
  for (ShortMessage* record : {&peer->handshake.hello, &peer->handshake.answer}) {
    record->role = Posted::Role::record;
    record->peer = peer.get();
    record->memory = memory;
    record->bytes = kRecordBytes;
    memory += round_up(kRecordBytes);
  }
  index_of_rank_[static_cast<std::size_t>(rank)] = static_cast<int>(peers_.size());
  peers_.push_back(std::move(peer));
  return {};
}

Record Hub::own_record(RailsPeer& peer, RecordKind kind) const {
  const LinkShape& shape = shape_;
  static const std::uint64_t host = host_number();
  Record record;
  record.kind = kind;
  record.from_rank = static_cast<std::uint32_t>(options_.rank);
  record.to_rank = static_cast<std::uint32_t>(peer.remote.rank);
  record.size = static_cast<std::uint32_t>(options_.size);
  record.job_id = options_.job_id;
  record.tile_bytes = static_cast<std::uint32_t>(shape.tile_bytes);
  record.window = static_cast<std::uint32_t>(shape.window);
  record.stripe_bytes = static_cast<std::uint32_t>(shape.stripe_bytes);
  record.piece_bytes = static_cast<std::uint32_t>(shape.piece_bytes);
  record.write_from = static_cast<std::uint32_t>(shape.write_from);
  record.rails = static_cast<std::uint16_t>(shape.rails);
  record.link = static_cast<std::uint16_t>(index_of_rank_[static_cast<std::size_t>(peer.remote.rank)]);
  record.host = host;
  record.process = static_cast<std::uint64_t>(::getpid());
  record.nonce = peer.handshake.nonce;
  if (kind == RecordKind::answer && peer.handshake.peer_nonce) record.peer_nonce = *peer.handshake.peer_nonce;
  const std::vector<Registration>& slots = peer.received().slots().registrations;
  for (std::size_t r = 0; r < slots.size(); ++r) record.slots[r] = {slots[r].base, slots[r].key};
  return record;
}

void Hub::send_record(RailsPeer& peer, ShortMessage& record, RecordKind kind) {
  if (record.in_flight) return;
  const RecordBytes bytes = encode(own_record(peer, kind), options_.key);
  std::memcpy(record.memory, bytes.data(), bytes.size());
  const std::size_t first = static_cast<std::size_t>(peer.handshake.tries) % rails_.size();
  for (std::size_t i = 0; i < rails_.size(); ++i) {
    const std::size_t r = (first + i) % rails_.size();
    if (rails_[r] == nullptr) continue;
    const Piece piece{record.memory, record.bytes, records_.descriptor(r)};
    const int result = rails_[r]->post_send(record, peer.remote.addresses[r], {&piece, 1});
    if (result == 0) {
      record.in_flight = true;
      record.rail = static_cast<std::uint8_t>(r);
      return;
    }
    if (result != kAgain) {
      peer.handshake.last_error = describe(r, result);
    }
  }
}

void Hub::send_handshake(RailsPeer& peer, Clock::time_point now) {
  if (peer.handshake.owes_answer) send_record(peer, peer.handshake.answer, RecordKind::answer);
  if (peer.handshake.owes_answer && peer.handshake.answer.in_flight) peer.handshake.owes_answer = false;
  if (peer.handshake.peer_answered || now < peer.handshake.next_hello) return;
  send_record(peer, peer.handshake.hello, RecordKind::hello);
  if (!peer.handshake.hello.in_flight) return;  // the queue is full: again in the next pass
  ++peer.handshake.tries;
  peer.handshake.next_hello = now + kHelloAgain;
}

void Hub::on_record_sent(ShortMessage& record, const Completion& completion) {
  record.in_flight = false;
  RailsPeer& peer = *record.peer;
  const bool is_answer = &record == &peer.handshake.answer;
  if (completion.error == 0) {
    peer.handshake.answer_sent |= is_answer;
    return;
  }
  peer.handshake.last_error = describe(record.rail, completion);
  ++peer.handshake.tries;
  if (is_answer) {
    peer.handshake.owes_answer = true;
  } else {
    peer.handshake.next_hello = Clock::now() + kHelloFailed;
  }
}

void Hub::on_record(std::span<const std::byte, kRecordBytes> bytes) {
  const auto refuse = [&](std::string_view why) {
    ++rejected_;
    count_refusal(options_.transport, why);
  };
  const auto record = decode_record(bytes);
  if (!record) return refuse("a record is malformed");
  if (record->job_id != options_.job_id || record->to_rank != static_cast<std::uint32_t>(options_.rank))
    return refuse("a record is for another job or rank");
  if (!is_proven(bytes, options_.key)) return refuse("the sender of a record does not hold the job's key");
  if (record->from_rank >= index_of_rank_.size() || index_of_rank_[record->from_rank] < 0)
    return refuse("a record is from a rank that is not expected");
  if (!check_settings(*record)) return;
  RailsPeer& peer = *peers_[static_cast<std::size_t>(index_of_rank_[record->from_rank])];
  if (peer.handshake.peer_nonce && *peer.handshake.peer_nonce != record->nonce)
    return refuse("a record has another nonce than the first one of its rank");
  if (record->kind == RecordKind::answer && record->peer_nonce != peer.handshake.nonce)
    return refuse("an answer belongs to an earlier handshake");
  if (!peer.handshake.peer_nonce) {
    peer.handshake.peer_nonce = record->nonce;
    peer.remote.link = record->link;
    for (std::size_t r = 0; r < rails_.size(); ++r) peer.remote.slots[r] = record->slots[r];
    peer.remote.key_out = make_packet_key(options_.key, peer.handshake.nonce, record->nonce);
    peer.remote.key_in = make_packet_key(options_.key, record->nonce, peer.handshake.nonce);
    watch_process(peer, *record);
  }
  if (record->kind == RecordKind::hello) {
    peer.handshake.owes_answer = true;
    send_handshake(peer, Clock::time_point::min());  // after connect() no other code calls send_handshake()
  } else {
    peer.handshake.peer_answered = true;
  }
}

bool Hub::check_settings(const Record& record) {
  const auto differ = [&](std::string_view what, auto theirs, auto ours) {
    if (theirs == ours) return false;
    failure_ = Status(StatusCode::mismatch,
                      fmt::format("{}: rank {} of this job has {} {}, rank {} has {}; start all ranks with the same settings",
                                  options_.transport, record.from_rank, what, theirs, options_.rank, ours));
    return true;
  };
  const LinkShape& shape = shape_;
  return !differ("wire version", record.version, kWireVersion) && !differ("a job size of", record.size, options_.size + 0U) &&
         !differ("rails:", record.rails, shape.rails + 0U) && !differ("a tile size of", record.tile_bytes, shape.tile_bytes) &&
         !differ("tiles per peer:", record.window, shape.window) &&
         !differ("stripes of", record.stripe_bytes, shape.stripe_bytes) &&
         !differ("messages of", record.piece_bytes, shape.piece_bytes) &&
         !differ("writes from", record.write_from, shape.write_from);
}

void Hub::watch_process(RailsPeer& peer, const Record& record) {
  const Record own = own_record(peer, RecordKind::hello);
  peer.remote.on_this_host = record.host == own.host;
  if (own.host == 0 || record.host != own.host || record.process == own.process) return;
#ifdef SYS_pidfd_open
  Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(record.process), 0)));
  if (!process.valid()) return;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = process.get();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, process.get(), &event) != 0) return;
  peer.remote.pidfd = process.get();
  pidfds_.push_back(std::move(process));
#endif
}

Result<std::vector<RailsPeer*>> Hub::connect(std::span<const int> peers, std::span<const std::string> addresses,
                                             ConnectDeadline time_limit) {
  const auto bad = [&](const std::string& text) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: connect: {}", options_.transport, text));
  };
  if (!peers_.empty()) return bad("was called before");
  if (peers.size() != addresses.size()) return bad(fmt::format("{} peers but {} addresses", peers.size(), addresses.size()));
  const Clock::time_point start = Clock::now();
  to_pump_.reserve(peers.size());
  pumped_.reserve(peers.size());
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (Status status = add_peer(peers[i], addresses[i]); !status.ok()) return status;
  }
  const auto all_connected = [&] {
    return std::all_of(peers_.begin(), peers_.end(), [](const auto& peer) { return peer->handshake.done(); });
  };
  while (!all_connected()) {
    const Clock::time_point now = Clock::now();
    if (now >= time_limit.deadline()) return timeout_status(start, time_limit.deadline());
    if (Status status = time_limit.check(); !status.ok()) return status;
    Clock::time_point next = time_limit.next();
    for (const auto& peer : peers_) {
      send_handshake(*peer, now);
      const bool refused =
          !peer->handshake.hello.in_flight && !peer->handshake.peer_answered && peer->handshake.next_hello <= now;
      next = std::min(
          next, refused || peer->handshake.owes_answer ? now + milliseconds(2) : std::max(now, peer->handshake.next_hello));
    }
    progress();
    if (!failure_.ok()) return failure_;
    if (all_connected()) break;
    const bool sleeps = prepare_wait();
    const auto pause = std::chrono::duration_cast<milliseconds>(next - Clock::now()).count();
    pollfd item{epoll_.get(), POLLIN, 0};
    // A peer that ends during the handshake may only fall silent, so each wait is short.
    finish_wait(!sleeps || ::poll(&item, 1, static_cast<int>(std::clamp<std::int64_t>(pause, 1, 200))) != 0);
    if (!failure_.ok()) return failure_;
  }
  std::vector<RailsPeer*> made;
  for (const auto& peer : peers_) made.push_back(peer.get());
  return made;
}

Status Hub::timeout_status(Clock::time_point start, Clock::time_point deadline) const {
  const double seconds = std::chrono::duration<double>(deadline - start).count();
  std::string text;
  std::size_t missing = 0;
  for (const auto& peer : peers_) {
    if (peer->handshake.done() || ++missing > kNamedRanks) continue;
    text += fmt::format("{}rank {} did not connect within {:.1f} s", text.empty() ? "" : "; ", peer->remote.rank, seconds);
    if (peer->handshake.peer_nonce)
      text += peer->handshake.peer_answered ? " (it answered, but our answer did not leave)"
                                            : " (its hello arrived, but no answer)";
    if (!peer->handshake.last_error.empty()) text += fmt::format(": {}", peer->handshake.last_error);
  }
  if (missing > kNamedRanks) text += fmt::format("; and {} more ranks", missing - kNamedRanks);
  if (rejected_ > 0) text += fmt::format("; dropped {} unauthenticated or unexpected messages", rejected_);
  return {StatusCode::timeout,
          fmt::format("{}: {} ({})", options_.transport, text, rails_[0] == nullptr ? "closed" : rails_[0]->traits().provider)};
}

}  // namespace shoal::rails
