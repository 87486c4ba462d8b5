#include "transports/rails/hub.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "src/trust/refusals.h"

namespace shoal::rails {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kBatchesInARow = 4;
constexpr std::size_t kBatch = 32;
constexpr milliseconds kWatchPeriod{50};
// Pause between two polls of rails without a descriptor, and before a post is repeated that a full queue refused.
constexpr microseconds kShortestPause{20};
constexpr microseconds kLongestPause{1000};
constexpr milliseconds kCloseTime{500};
constexpr unsigned kPollsBetweenEvents = 1024;

LinkShape shape_over(const Options& options, const std::vector<std::unique_ptr<Rail>>& rails) {
  std::vector<RailTraits> traits;
  for (const auto& rail : rails) traits.push_back(rail->traits());
  return shape_of(options, traits);
}

}  // namespace

Hub::Hub(const Options& options, std::vector<std::unique_ptr<Rail>> rails)
    : options_(options),
      rails_(std::move(rails)),
      shape_(shape_over(options_, rails_)),
      index_of_rank_(static_cast<std::size_t>(options.size), -1),
      pools_(rails_.size()),
      registered_(rails_.size()),
      checksums_(options.integrity),
      owner_pid_(::getpid()) {}

Result<std::shared_ptr<Hub>> Hub::make(const Options& options, std::vector<std::unique_ptr<Rail>> rails) {
  std::shared_ptr<Hub> hub(new Hub(options, std::move(rails)));
  if (Status status = hub->open(); !status.ok()) return status;
  return hub;
}

Hub::~Hub() {
  close();
  // A child of fork() does not close the parent's rails: that could end connections of the parent.
  for (auto& rail : rails_) static_cast<void>(rail.release());
}

Status Hub::open() {
  for (const auto& rail : rails_) rail_addresses_.push_back(rail->address());
  const LinkShape& shape = shape_;
  if (shape.piece_bytes < kRecordBytes || shape.max_pieces() > kMaxPieces) {
    return {
        StatusCode::unsupported,
        fmt::format("{}: {} takes messages of {} bytes, too small for tiles of {} bytes; use smaller tiles (SHOAL_TILE_BYTES)",
                    options_.transport, rails_[0]->traits().provider, rails_[0]->traits().max_message_bytes, shape.tile_bytes)};
  }
  epoll_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  timer_ = Descriptor(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!epoll_.valid() || !timer_.valid()) return system_error(options_.transport + ": epoll or timerfd", errno);
  const auto add = [&](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = fd;
    return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  };
  bool added = add(timer_.get());
  for (const auto& rail : rails_) added &= rail->wait_fd() < 0 || add(rail->wait_fd());
  if (!added) return system_error(options_.transport + ": epoll_ctl", errno);
  for (std::size_t r = 0; r < rails_.size(); ++r) {
    if (!rails_[r]->traits().local_registration || options_.lasting_memory.empty()) continue;
    registered_[r] = std::make_unique<RegistrationCache>(*rails_[r], options_.lasting_memory, options_.registrations);
  }
  const auto peers = static_cast<std::size_t>(options_.size - 1);
  records_ = Memory(std::max<std::size_t>(peers, 1) * 2 * round_up(kRecordBytes));
  if (records_.data() == nullptr) return {StatusCode::system_error, options_.transport + ": no memory for the handshake"};
  if (Status status = register_memory(records_, false, true); !status.ok()) return status;
  return make_receives(peers);
}

Status Hub::make_receives(std::size_t peers) {
  const LinkShape& shape = shape_;
  // Payloads start on cache lines, so each buffer starts kPacketBytes before one.
  const std::size_t skew = round_up(kPacketBytes) - kPacketBytes;
  const std::size_t stride = round_up(kPacketBytes) + shape.piece_bytes;
  for (std::size_t r = 0; r < rails_.size(); ++r) {
    Pool& pool = pools_[r];
    const std::size_t count = std::max<std::size_t>(peers, 1) * shape.receives(rails_[r]->traits());
    pool.memory = Memory(count * stride);
    if (pool.memory.data() == nullptr)
      return {StatusCode::system_error,
              fmt::format("{}: no memory for {} receives of {} bytes", options_.transport, count, stride)};
    if (rails_[r]->traits().local_registration) {
      pool.memory.registrations.resize(rails_.size());
      auto made = rails_[r]->register_memory({pool.memory.data(), pool.memory.size()}, false);
      if (!made.ok()) return made.status();
      pool.memory.registrations[r] = *made;
    }
    pool.receives = std::vector<Receive>(count);
    pool.unposted.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      Receive& receive = pool.receives[count - 1 - i];
      receive.role = Posted::Role::receive;
      receive.rail = static_cast<std::uint8_t>(r);
      receive.memory = {pool.memory.data() + (count - 1 - i) * stride + skew, kPacketBytes + shape.piece_bytes};
      pool.unposted.push_back(&receive);
    }
    if (const int result = post_receives(r); result != 0 && result != kAgain) {
      return {StatusCode::system_error, fmt::format("{}: {} accepts no receives: {}", options_.transport,
                                                    rails_[r]->traits().provider, describe(r, result))};
    }
  }
  return {};
}

Status Hub::register_memory(Memory& memory, bool for_peers, bool needed_locally) {
  memory.registrations.resize(rails_.size());
  for (std::size_t r = 0; r < rails_.size(); ++r) {
    if (rails_[r] == nullptr || !(for_peers || (needed_locally && rails_[r]->traits().local_registration))) continue;
    auto made = rails_[r]->register_memory({memory.data(), memory.size()}, for_peers);
    if (!made.ok()) return made.status();
    memory.registrations[r] = *made;
  }
  return {};
}

void Hub::deregister(Memory& memory) noexcept {
  for (std::size_t r = 0; r < memory.registrations.size(); ++r) {
    if (rails_[r] != nullptr) rails_[r]->deregister(memory.registrations[r]);
  }
}

std::string Hub::describe(std::size_t rail, const Completion& failed) const {
  return rails_[rail] == nullptr ? "the rail is closed" : rails_[rail]->describe(failed);
}

std::string Hub::describe(std::size_t rail, int result) const {
  Completion failed;
  failed.error = -result;
  return describe(rail, failed);
}

void Hub::deregister_on(Memory& memory, std::size_t rail) noexcept {
  if (rail < memory.registrations.size() && rails_[rail] != nullptr) rails_[rail]->deregister(memory.registrations[rail]);
}

std::size_t Hub::memory_bytes() const noexcept {
  std::size_t sum = records_.size();
  for (const Pool& pool : pools_) sum += pool.memory.size();
  for (const auto& peer : peers_) sum += peer->sender().memory().size() + peer->received().memory_bytes();
  return sum;
}

bool Hub::in_lasting_memory(std::span<const std::byte> data) const noexcept {
  const auto offset = static_cast<std::size_t>(data.data() - options_.lasting_memory.data());  // wraps where data lies before
  return offset < options_.lasting_memory.size() && data.size() <= options_.lasting_memory.size() - offset;
}

// Moving
// -----------------------------------------------------------------------------------------------------------------------

int Hub::post_receives(std::size_t rail) {
  Pool& pool = pools_[rail];
  while (!pool.unposted.empty() && rails_[rail] != nullptr) {
    Receive& receive = *pool.unposted.back();
    const int result = rails_[rail]->post_receive(receive, receive.memory, pool.memory.descriptor(rail));
    if (result != 0) return result;
    receive.in_flight = true;
    pool.unposted.pop_back();
  }
  return 0;
}

void Hub::repost(Receive& receive) {
  if (rails_[receive.rail] == nullptr) return;
  pools_[receive.rail].unposted.push_back(&receive);
  post_receives(receive.rail);
}

void Hub::want_pump(RailsPeer& peer) {
  if (std::exchange(peer.queued_for_pump, true)) return;
  to_pump_.push_back(&peer);
}

void Hub::pump_peers() {
  if (to_pump_.empty()) return;
  pumped_.swap(to_pump_);
  for (RailsPeer* peer : pumped_) {
    peer->queued_for_pump = false;
    if (!peer->pump()) want_pump(*peer);
  }
  pumped_.clear();
}

bool Hub::read_rail(std::size_t index) {
  std::array<Completion, kBatch> batch;
  bool any = false;
  for (int i = 0; i < kBatchesInARow && rails_[index] != nullptr; ++i) {
    const int got = rails_[index]->read(batch);
    if (got < 0) {
      close_rail(index, describe(index, got));
      return true;
    }
    any |= got > 0;
    for (int k = 0; k < got && rails_[index] != nullptr; ++k) handle(index, batch[static_cast<std::size_t>(k)]);
    if (got < static_cast<int>(kBatch)) break;
  }
  if (rails_[index] != nullptr && !pools_[index].unposted.empty()) post_receives(index);
  return any;
}

void Hub::handle(std::size_t rail, const Completion& completion) {
  auto* const posted = static_cast<Posted*>(completion.operation);
  if (completion.kind == Completion::Kind::written && completion.error == 0) {
    const Immediate immediate = to_immediate(completion.data);
    RailsPeer* const peer = authenticated_peer(immediate.link);
    if (peer == nullptr || !peer->on_written(immediate, rail)) {
      ++rejected_;
      count_refusal(options_.transport,
                    peer == nullptr ? "a write names a link that does not exist" : "a write was not expected");
    }
    if (!rails_[rail]->traits().writes_take_receives || posted == nullptr || posted->role != Posted::Role::receive) return;
    posted->in_flight = false;
    return repost(*static_cast<Receive*>(posted));
  }
  if (posted == nullptr) return;
  switch (posted->role) {
    case Posted::Role::receive: {
      auto& receive = *static_cast<Receive*>(posted);
      receive.in_flight = false;
      if (completion.error == 0) return on_message(receive, completion.bytes);
      count_refusal(options_.transport, "a message is not one of this job: " + rails_[rail]->describe(completion));
      return repost(receive);
    }
    case Posted::Role::part:
      return posted->peer->on_part_sent(*static_cast<Part*>(posted), completion);
    case Posted::Role::control:
      return posted->peer->on_control_sent(*static_cast<ControlRecord*>(posted), completion);
    case Posted::Role::record:
      return on_record_sent(*static_cast<ShortMessage*>(posted), completion);
  }
}

void Hub::on_message(Receive& receive, std::size_t bytes) {
  const std::span<const std::byte> message = receive.memory.first(std::min(bytes, receive.memory.size()));
  bool held = false;
  const auto [peer, packet] = read_packet(message);
  if (packet) {
    held = peer->on_packet(*packet, receive, message.subspan(kPacketBytes));
  } else if (looks_like_record(message)) {
    on_record(message.first<kRecordBytes>());
  } else {
    ++rejected_;
    count_refusal(options_.transport, peer == nullptr ? "a message is malformed" : "a message is not authenticated");
  }
  if (!held) repost(receive);
}

RailsPeer* Hub::authenticated_peer(std::size_t index) const noexcept {
  return index < peers_.size() && peers_[index]->handshake.authenticated() ? peers_[index].get() : nullptr;
}

// With checksums, a packet header in which one bit was flipped is repaired. With more flipped bits the link ends, because the
// tile would never arrive. This applies only to packets that carry the token of a link, except for one bit: messages of
// unauthenticated peers cost no time.
std::pair<RailsPeer*, std::optional<Packet>> Hub::read_packet(std::span<const std::byte> message) {
  if (message.size() < kPacketBytes) return {};
  const auto front = message.first<kPacketBytes>();
  RailsPeer* const named = authenticated_peer(link_in(front));
  auto packet = named == nullptr ? std::nullopt : decode_packet(front, named->remote.key_in, options_.tile_bytes);
  if (packet || !checksums_) return {named, packet};
  const std::uint64_t token = token_in(front);
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [token](const auto& each) {
    return each->handshake.authenticated() && std::popcount(each->remote.key_in.token ^ token) <= 1;
  });
  if (peer == peers_.end()) return {named, {}};
  packet = repair_packet(front, (*peer)->remote.key_in, options_.tile_bytes);
  if (!packet) {
    (*peer)->fail(
        {StatusCode::peer_failed,
         fmt::format("rank {} sent a message that was damaged in transit and cannot be repaired", (*peer)->remote.rank)});
  }
  return {peer->get(), packet};
}

bool Hub::progress() {
  for (std::size_t r = 0; r < rails_.size(); ++r) {
    if (rails_[r] != nullptr) read_rail(r);
  }
  pump_peers();
  check_timeouts();
  if (progressed_) pause_ = {};
  return std::exchange(progressed_, false);
}

// Detects what no completion reports: links that end, silent rails, processes that have ended.
void Hub::check_timeouts() {
  if (++polls_ % kPollsBetweenEvents == 0) serve_events();
  if (!watching_ && rails_.size() == 1) return;
  const Clock::time_point now = this->now();
  if (now - last_watch_ < kWatchPeriod) return;
  last_watch_ = now;
  watching_ = false;
  for (const auto& peer : peers_) watching_ |= peer->watch(now);
}

void Hub::close_rail(std::size_t index, const std::string& why) {
  if (rails_[index] == nullptr) return;
  Rail& closing = *rails_[index];
  if (closing.wait_fd() >= 0) static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, closing.wait_fd(), nullptr));
  closing.stop();
  const auto deregister_here = [&](Memory& memory) {
    if (index < memory.registrations.size()) closing.deregister(memory.registrations[index]);
  };
  for (const auto& peer : peers_) {
    deregister_here(peer->sender().memory());
    deregister_here(peer->received().slots());
  }
  deregister_here(records_);
  deregister_here(pools_[index].memory);
  if (registered_[index] != nullptr) registered_[index]->clear();
  rails_[index].reset();
  for (const auto& peer : peers_) peer->on_rail_closed(index, why);
  progressed_ = true;
}

// By the system's clock, not by options_.clock: the loop must end.
void Hub::progress_until(const std::function<bool()>& done, milliseconds limit) {
  const Clock::time_point until = Clock::now() + limit;
  while (!done() && Clock::now() < until) {
    if (progress() || done()) continue;
    const bool sleeps = prepare_wait();
    pollfd item{epoll_.get(), POLLIN, 0};
    finish_wait(!sleeps || ::poll(&item, 1, 10) != 0);
  }
  progressed_ = true;
}

void Hub::close() {
  if (left_to_parent_ || !in_owner()) return;
  for (const auto& peer : peers_) peer->leave();
  const auto none = [&](auto... states) {
    return std::none_of(peers_.begin(), peers_.end(),
                        [&](const auto& peer) { return ((peer->flush_state() == states) || ...); });
  };
  using Flush = RailsPeer::Flush;
  const Clock::time_point until = Clock::now() + kCloseTime;
  progress_until([&] { return none(Flush::waiting, Flush::repairing) || (Clock::now() >= until && none(Flush::repairing)); },
                 kRepairTime);
  for (const auto& rail : rails_) {
    if (rail != nullptr) rail->stop();
  }
  for (const auto& peer : peers_) {
    deregister(peer->sender().memory());
    deregister(peer->received().slots());
  }
  deregister(records_);
  for (auto& cache : registered_) {
    if (cache != nullptr) cache->clear();
  }
  for (std::size_t r = 0; r < rails_.size(); ++r) {
    if (rails_[r] != nullptr && r < pools_[r].memory.registrations.size())
      rails_[r]->deregister(pools_[r].memory.registrations[r]);
    rails_[r].reset();
  }
  for (const auto& peer : peers_) peer->fail({StatusCode::aborted, "this rank closed the transport"});
}

bool Hub::in_owner() const noexcept { return ::getpid() == owner_pid_; }

void Hub::leave_to_parent() noexcept {
  left_to_parent_ = true;
  epoll_.reset();
  timer_.reset();
  pidfds_.clear();
}

// Waiting
// -----------------------------------------------------------------------------------------------------------------------

void Hub::set_timer(microseconds delay) {
  if (delay.count() == 0 && !timer_set_) return;
  timer_set_ = delay.count() != 0;
  itimerspec when{};
  when.it_value.tv_sec = delay.count() / 1'000'000;
  when.it_value.tv_nsec = delay.count() % 1'000'000 * 1000;
  static_cast<void>(::timerfd_settime(timer_.get(), 0, &when, nullptr));
}

bool Hub::prepare_wait() {
  if (progress()) return false;
  for (const auto& peer : peers_) {
    if (peer->received().has_unseen()) return false;
  }
  bool wakes = true;  // all rails have a descriptor to wait on
  for (const auto& rail : rails_) {
    if (rail == nullptr) continue;
    if (rail->wait_fd() < 0) {
      wakes = false;
    } else if (!rail->may_wait()) {
      return false;
    }
  }
  if (!wakes || !to_pump_.empty()) {
    pause_ = std::clamp(2 * pause_, kShortestPause, kLongestPause);
    set_timer(pause_);
  } else if (watching_ || (rails_.size() > 1 && !peers_.empty())) {
    set_timer(kWatchPeriod);
  } else {
    set_timer({});
  }
  return true;
}

void Hub::finish_wait(bool readable) {
  if (readable) serve_events();
}

void Hub::serve_events() {
  std::array<epoll_event, 16> events{};
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const int fd = events[static_cast<std::size_t>(i)].data.fd;
    if (fd == timer_.get()) {
      std::uint64_t expired = 0;
      static_cast<void>(!::read(fd, &expired, sizeof expired));
      timer_set_ = false;
      continue;
    }
    for (const auto& peer : peers_) {
      if (peer->remote.pidfd != fd) continue;
      static_cast<void>(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr));
      peer->remote.pidfd = -1;
      peer->on_process_ended("its process exited or was killed");
    }
  }
}

}  // namespace shoal::rails
