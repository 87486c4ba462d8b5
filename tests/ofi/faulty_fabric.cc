#include "tests/ofi/faulty_fabric.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <list>
#include <set>
#include <string>

#include "transports/rails/wire.h"

namespace shoal::rails::testing {

namespace {

constexpr std::uint32_t kRepeated = 0x80000000;  // marks segments that are written a second time

}  // namespace

class FaultyRail final : public Rail {
 public:
  FaultyRail(std::unique_ptr<Rail> inner, std::shared_ptr<FaultState> state, int rank, int number)
      : inner_(std::move(inner)),
        state_(std::move(state)),
        faults_(state_->faults()),
        dies_(faults_.dying_rail == number && faults_.dying_rank == rank),
        draws_(faults_.seed * 0x100 + static_cast<std::uint64_t>(rank) * 0x10 + static_cast<std::uint64_t>(number)),
        traits_(inner_->traits()) {
    if (faults_.max_message_bytes != 0)
      traits_.max_message_bytes = std::min(traits_.max_message_bytes, faults_.max_message_bytes);
    if (faults_.no_writes) traits_.max_write_bytes = 0;
    traits_.emulated_writes |= faults_.emulated_writes;
  }
  void set_queue_size(std::size_t entries) { entries_ = entries; }

  [[nodiscard]] const RailTraits& traits() const noexcept override { return traits_; }
  [[nodiscard]] std::string address() const override { return inner_->address(); }
  Result<std::uint64_t> add_peer(std::string_view address) override {
    auto peer = inner_->add_peer(address);
    if (peer.ok()) addresses_[*peer] = address;
    return peer;
  }
  Result<Registration> register_memory(std::span<std::byte> memory, bool for_peers) override {
    return inner_->register_memory(memory, for_peers);
  }
  void deregister(Registration& registration) noexcept override { inner_->deregister(registration); }

  int post_receive(Operation& operation, std::span<std::byte> memory, void* descriptor) override {
    return refuses() ? kAgain : count(inner_->post_receive(operation, memory, descriptor));
  }

  int post_send(Operation& operation, std::uint64_t peer, std::span<const Piece> pieces) override {
    std::size_t bytes = 0;
    for (const Piece& piece : pieces) bytes += piece.bytes;
    if (bytes > traits_.max_message_bytes) return -EMSGSIZE;
    if (refuses()) return kAgain;
    const Fate fate = this->fate();
    switch (fate) {
      case Fate::lost:
        return count(0);
      case Fate::failed:
      case Fate::swallowed:
        held_.push_back({Completion::Kind::sent, &operation, 0, 0, fate == Fate::failed ? EHOSTUNREACH : 0, 0});
        return count(0);
      case Fate::well:
        break;
      case Fate::done_but_lost:
        vanishing_.insert(&operation);
        break;
      case Fate::done_but_failed:
        failing_.insert(&operation);
        break;
    }
    const int result =
        with_flips(operation, pieces, [&](std::span<const Piece> leave) { return inner_->post_send(operation, peer, leave); });
    if (result != 0) vanishing_.erase(&operation), failing_.erase(&operation);
    return count(result);
  }

  int post_write(Operation& operation, std::uint64_t peer, const Piece& piece, std::uint64_t address, std::uint64_t key,
                 std::uint32_t data) override {
    if (faults_.no_writes) return -EOPNOTSUPP;
    if (refuses()) return kAgain;
    ++state_->posted_writes_;
    const Fate fate = this->fate();
    if (fate == Fate::lost) return count(0);
    if (fate == Fate::failed || fate == Fate::swallowed) {
      held_.push_back({Completion::Kind::sent, &operation, 0, 0, fate == Fate::failed ? EHOSTUNREACH : 0, 0});
      return count(0);
    }
    if (faults_.segment_bytes == 0) {
      const int result = with_flips(operation, {&piece, 1}, [&](std::span<const Piece> leave) {
        return inner_->post_write(operation, peer, leave[0], address, key, data);
      });
      if (result == 0) note_written(peer);
      return count(result);
    }
    note_written(peer);
    Job& job = jobs_.emplace_back();
    job.user = &operation;
    job.vanishes = fate == Fate::done_but_lost;
    job.fails = fate == Fate::done_but_failed;
    for (std::size_t at = 0; at < piece.bytes; at += faults_.segment_bytes) {
      Segment& segment = job.segments.emplace_back();
      segment.job = &job;
      segment.peer = peer;
      segment.piece = {piece.data + at, std::min(faults_.segment_bytes, piece.bytes - at), piece.descriptor};
      segment.address = address + at;
      segment.key = key;
    }
    job.missing = job.segments.size();
    const std::lock_guard lock(state_->mutex_);
    job.number = ++state_->last_write_;
    state_->writes_[job.number] = {data, job.segments.size()};
    ++in_flight_;
    return 0;
  }

  int read(std::span<Completion> completions) override {
    const int shown = show(completions);
    const std::lock_guard lock(state_->mutex_);
    std::size_t& written = state_->written_to_[own_address_];
    const std::size_t waiting = in_flight_ + written;
    auto& [most, room] = state_->fullest_;
    if (waiting * room > most * entries_) state_->fullest_ = {waiting, entries_};
    if (waiting > entries_ && state_->overrun_.empty()) {
      state_->overrun_ = "a completion queue of " + std::to_string(entries_) + " entries overran: " + std::to_string(waiting) +
                         " operations were in flight";
    }
    for (int i = 0; i < shown; ++i) {
      const Completion& each = completions[static_cast<std::size_t>(i)];
      std::size_t& ended = each.kind == Completion::Kind::written && each.operation == nullptr ? written : in_flight_;
      ended -= std::min<std::size_t>(ended, 1);  // segments of a write may fail one by one
    }
    return shown;
  }

  [[nodiscard]] int wait_fd() const noexcept override { return inner_->wait_fd(); }
  // No event would wake the caller for completions that are held back here.
  bool may_wait() override { return held_.empty() && jobs_.empty() && inner_->may_wait(); }
  void stop() noexcept override {
    inner_->stop();
    held_.clear();
    jobs_.clear();
    while (!copies_.empty()) forget_copy(copies_.begin()->first);
  }
  [[nodiscard]] std::string describe(const Completion& failed) const override { return inner_->describe(failed); }

 private:
  enum class Fate { well, lost, failed, swallowed, done_but_lost, done_but_failed };
  struct Job;
  struct Segment : Operation {
    Job* job = nullptr;
    std::uint64_t peer = 0;
    Piece piece;
    std::uint64_t address = 0;
    std::uint64_t key = 0;
    bool posted = false;
  };
  struct Job {
    Operation* user = nullptr;
    std::list<Segment> segments;
    std::size_t missing = 0;
    std::uint32_t number = 0;
    bool repeats = false;
    bool vanishes = false;
    bool fails = false;
  };

  /// A changed copy, sent instead of the posted bytes.
  struct Copy {
    std::vector<std::byte> bytes;
    Registration registration;
  };

  bool refuses() {
    if (!state_->started()) return false;
    if (storm_left_ == 0 && draws_.chance(faults_.again)) storm_left_ = 1 + faults_.storm;
    if (storm_left_ == 0) return false;
    --storm_left_;
    ++state_->injected_;
    return true;
  }

  /// Posts the pieces or, with probability `flip`, a copy of them with flipped bits.
  template <typename Post>
  int with_flips(Operation& operation, std::span<const Piece> pieces, Post post) {
    if (faults_.flip == 0 || !state_->started() || !draws_.chance(faults_.flip)) return post(pieces);
    std::vector<std::byte> bytes;
    for (const Piece& piece : pieces) bytes.insert(bytes.end(), piece.data, piece.data + piece.bytes);
    if (bytes.empty() || looks_like_record(bytes)) return post(pieces);
    for (int i = 0; i < faults_.flipped_bits; ++i) {
      const auto bit = draws_.below(8 * bytes.size());
      bytes[bit / 8] ^= std::byte{1} << bit % 8;
    }
    auto registration = inner_->register_memory(bytes, false);
    if (!registration.ok()) return -ENOMEM;
    const Piece changed{bytes.data(), bytes.size(), registration->descriptor};
    copies_.emplace(&operation, Copy{std::move(bytes), *registration});
    const int result = post(std::span(&changed, 1));
    if (result == 0) ++state_->flips_;
    if (result != 0) forget_copy(&operation);
    return result;
  }

  void forget_copy(Operation* operation) {
    const auto copy = copies_.find(operation);
    if (copy == copies_.end()) return;
    inner_->deregister(copy->second.registration);
    copies_.erase(copy);
  }

  Fate fate() {
    if (!dies_ || !state_->started() || posts_++ < faults_.dies_after) return Fate::well;
    ++state_->injected_;
    if (faults_.swallows) return Fate::swallowed;
    if (draws_.chance(faults_.silent)) return draws_.chance(0.5) ? Fate::lost : Fate::done_but_lost;
    return draws_.chance(0.5) ? Fate::failed : Fate::done_but_failed;
  }

  int show(std::span<Completion> completions) {
    std::array<Completion, 32> batch;
    const int got = inner_->read(batch);
    if (got < 0) return got;
    for (int i = 0; i < got; ++i) take(batch[static_cast<std::size_t>(i)]);
    post_segments();
    if (!state_->started()) return show_all(completions);
    if (held_.empty()) return 0;
    if (draws_.chance(faults_.blank)) {
      ++state_->injected_;
      return 0;
    }
    if (faults_.show >= 1) return show_all(completions);
    std::size_t count = 0;
    for (std::size_t looks = held_.size(); looks > 0 && count < completions.size() && !held_.empty(); --looks) {
      const auto at = draws_.below(held_.size());
      if (!draws_.chance(faults_.show)) {
        ++state_->injected_;
        continue;
      }
      completions[count++] = held_[at];
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return static_cast<int>(count);
  }

  void note_written(std::uint64_t peer) {
    if (traits_.writes_take_receives) return;
    const std::lock_guard lock(state_->mutex_);
    ++state_->written_to_[addresses_[peer]];
  }

  int count(int result) {
    if (result == 0) ++in_flight_;
    return result;
  }

  int show_all(std::span<Completion> completions) {
    const std::size_t count = std::min(held_.size(), completions.size());
    std::copy_n(held_.begin(), count, completions.begin());
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
    return static_cast<int>(count);
  }

  void take(Completion completion) {
    if (completion.kind == Completion::Kind::written && completion.error == 0 && faults_.segment_bytes != 0) {
      if ((completion.data & kRepeated) != 0) return;
      const std::lock_guard lock(state_->mutex_);
      auto& write = state_->writes_[completion.data];
      if (--write.missing != 0) return;
      const std::uint32_t number = completion.data;
      completion.data = write.data;
      state_->writes_.erase(number);
    } else if (completion.kind == Completion::Kind::sent) {
      forget_copy(completion.operation);
      for (auto job = jobs_.begin(); job != jobs_.end(); ++job) {
        const bool its = std::any_of(job->segments.begin(), job->segments.end(),
                                     [&](const Segment& s) { return &s == completion.operation; });
        if (!its) continue;
        if (--job->missing == 0) finish(job);
        return;
      }
      if (vanishing_.erase(completion.operation) != 0) return;
      if (failing_.erase(completion.operation) != 0) completion.error = EHOSTUNREACH;
    }
    held_.push_back(completion);
  }

  void finish(std::list<Job>::iterator job) {
    if (!job->repeats && draws_.chance(faults_.twice)) {
      ++state_->injected_;
      job->repeats = true;
      job->missing = job->segments.size();
      for (Segment& segment : job->segments) segment.posted = false;
      return;
    }
    if (!job->vanishes) held_.push_back({Completion::Kind::sent, job->user, 0, 0, job->fails ? EHOSTUNREACH : 0, 0});
    jobs_.erase(job);
  }

  // Posts a few segments of random writes in each call, so that segments of several writes interleave.
  void post_segments() {
    std::vector<Segment*> waiting;
    for (Job& job : jobs_) {
      for (Segment& segment : job.segments) {
        if (!segment.posted) waiting.push_back(&segment);
      }
    }
    for (int i = 0; i < 4 && !waiting.empty(); ++i) {
      const auto at = draws_.below(waiting.size());
      Segment& segment = *waiting[at];
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
      const std::uint32_t data = segment.job->number | (segment.job->repeats ? kRepeated : 0);
      const int result = with_flips(segment, {&segment.piece, 1}, [&](std::span<const Piece> leave) {
        return inner_->post_write(segment, segment.peer, leave[0], segment.address, segment.key, data);
      });
      segment.posted = result == 0;
    }
  }

  const std::unique_ptr<Rail> inner_;
  const std::shared_ptr<FaultState> state_;
  const Faults& faults_;
  const bool dies_;
  const std::string own_address_ = inner_->address();
  std::map<std::uint64_t, std::string> addresses_;  // addresses of the peers
  std::size_t entries_ = 1;                         // size of the completion queue
  std::size_t in_flight_ = 0;                       // operations that occupy, or will occupy, an entry of it
  Draws draws_;
  RailTraits traits_;
  std::vector<Completion> held_;
  std::list<Job> jobs_;
  std::map<Operation*, Copy> copies_;
  std::set<Operation*> vanishing_;
  std::set<Operation*> failing_;
  int storm_left_ = 0;
  std::uint64_t posts_ = 0;
};

Result<std::vector<std::unique_ptr<Rail>>> FaultyFabric::open(const RailRequest& request) {
  auto rails = inner_->open(request);
  if (!rails.ok()) return rails.status();
  std::vector<std::unique_ptr<Rail>> faulty;
  std::vector<RailTraits> traits;
  for (auto& rail : *rails) {
    const int number = static_cast<int>(faulty.size());
    faulty.push_back(std::make_unique<FaultyRail>(std::move(rail), state_, rank_, number));
    traits.push_back(faulty.back()->traits());
  }
  const std::size_t entries = request.operations ? request.operations(traits) : std::size_t{1} << 40;
  for (auto& rail : faulty) static_cast<FaultyRail&>(*rail).set_queue_size(entries);
  return faulty;
}

std::string FaultState::overrun() {
  const std::lock_guard lock(mutex_);
  return overrun_;
}

std::pair<std::size_t, std::size_t> FaultState::fullest() {
  const std::lock_guard lock(mutex_);
  return fullest_;
}

}  // namespace shoal::rails::testing
