#include "tests/ofi/paced_fabric.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <deque>

namespace shoal::rails::testing {

class PacedRail final : public Rail {
 public:
  PacedRail(std::unique_ptr<Rail> inner, double bytes_per_us, PacedClock clock)
      : inner_(std::move(inner)), bytes_per_us_(bytes_per_us), clock_(std::move(clock)) {}

  [[nodiscard]] const RailTraits& traits() const noexcept override { return inner_->traits(); }
  [[nodiscard]] std::string address() const override { return inner_->address(); }
  Result<std::uint64_t> add_peer(std::string_view address) override { return inner_->add_peer(address); }
  Result<Registration> register_memory(std::span<std::byte> memory, bool for_peers) override {
    return inner_->register_memory(memory, for_peers);
  }
  void deregister(Registration& registration) noexcept override { inner_->deregister(registration); }
  int post_receive(Operation& operation, std::span<std::byte> memory, void* descriptor) override {
    return inner_->post_receive(operation, memory, descriptor);
  }
  int post_send(Operation& operation, std::uint64_t peer, std::span<const Piece> pieces) override {
    Job job;
    job.peer = peer;
    for (const Piece& piece : pieces) job.bytes.insert(job.bytes.end(), piece.data, piece.data + piece.bytes);
    return take(operation, std::move(job));
  }
  int post_write(Operation& operation, std::uint64_t peer, const Piece& piece, std::uint64_t address, std::uint64_t key,
                 std::uint32_t data) override {
    Job job;
    job.peer = peer;
    job.bytes.assign(piece.data, piece.data + piece.bytes);
    job.writes = true;
    job.address = address;
    job.key = key;
    job.data = data;
    return take(operation, std::move(job));
  }

  int read(std::span<Completion> completions) override {
    const auto now = clock_();
    while (!jobs_.empty() && (!now || jobs_.front().arrives <= *now) && pass_on(jobs_.front()) == 0) jobs_.pop_front();
    std::array<Completion, 32> batch;
    const int got = inner_->read(batch);
    if (got < 0) return got;
    for (int i = 0; i < got; ++i) {
      if (batch[static_cast<std::size_t>(i)].operation != &own_) over_.push_back(batch[static_cast<std::size_t>(i)]);
    }
    std::size_t count = 0;
    for (; count < completions.size() && !over_.empty(); ++count) {
      completions[count] = over_.front();
      over_.pop_front();
    }
    return static_cast<int>(count);
  }
  [[nodiscard]] int wait_fd() const noexcept override { return -1; }
  bool may_wait() override { return jobs_.empty() && over_.empty() && inner_->may_wait(); }
  void stop() noexcept override {
    jobs_.clear();
    over_.clear();
    inner_->stop();
  }
  [[nodiscard]] std::string describe(const Completion& failed) const override { return inner_->describe(failed); }

 private:
  struct Job {
    std::uint64_t peer = 0;
    std::vector<std::byte> bytes;
    bool writes = false;
    std::uint64_t address = 0;
    std::uint64_t key = 0;
    std::uint32_t data = 0;
    std::chrono::steady_clock::time_point arrives;
  };

  int take(Operation& operation, Job job) {
    const auto now = clock_();
    if (!now) {
      if (const int posted = pass_on(job); posted != 0) return posted;
    } else {
      const std::chrono::duration<double, std::micro> takes(static_cast<double>(job.bytes.size()) / bytes_per_us_);
      free_at_ = std::max(free_at_, *now) + std::chrono::duration_cast<std::chrono::nanoseconds>(takes);
      job.arrives = free_at_;
      jobs_.push_back(std::move(job));
    }
    over_.push_back({Completion::Kind::sent, &operation, 0, 0, 0, 0});
    return 0;
  }

  int pass_on(const Job& job) {
    const Piece piece{job.bytes.data(), job.bytes.size(), nullptr};
    return job.writes ? inner_->post_write(own_, job.peer, piece, job.address, job.key, job.data)
                      : inner_->post_send(own_, job.peer, {&piece, 1});
  }

  const std::unique_ptr<Rail> inner_;
  const double bytes_per_us_;
  const PacedClock clock_;
  Operation own_;  // of all posts that are passed on to `inner_`
  std::chrono::steady_clock::time_point free_at_{};
  std::deque<Job> jobs_;
  std::deque<Completion> over_;
};

Result<std::vector<std::unique_ptr<Rail>>> PacedFabric::open(const RailRequest& request) {
  auto rails = inner_->open(request);
  if (!rails.ok()) return rails.status();
  assert(rails->size() == bytes_per_us_.size());
  std::vector<std::unique_ptr<Rail>> paced;
  for (auto& rail : *rails) paced.push_back(std::make_unique<PacedRail>(std::move(rail), bytes_per_us_[paced.size()], clock_));
  return paced;
}

}  // namespace shoal::rails::testing
