#include "bench/train/comm_clock.h"

#include <algorithm>
#include <utility>

#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::train {
namespace {

using std::chrono::steady_clock;

double seconds(steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

class TimedBackend final : public c10d::Backend {
 public:
  TimedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<CommClock> clock)
      : c10d::Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), clock_(std::move(clock)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return timed(CommClock::Kind::gradients, tensors, [&] { return inner_->allreduce(tensors, options); });
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return timed(CommClock::Kind::blocking, tensors, [&] { return inner_->broadcast(tensors, options); });
  }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    return timed(CommClock::Kind::blocking, inputs, [&] { return inner_->allgather(outputs, inputs, options); });
  }
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options) override { return inner_->barrier(options); }
  void abort() override { inner_->abort(); }

 private:
  template <typename Start>
  c10::intrusive_ptr<c10d::Work> timed(CommClock::Kind kind, const std::vector<at::Tensor>& tensors, Start start) {
    std::size_t bytes = 0;
    for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
    const auto begin = steady_clock::now();
    c10::intrusive_ptr<c10d::Work> work;
    clock_->begin();
    try {
      work = start();
    } catch (...) {
      clock_->give_up();
      throw;
    }
    CommClock::Operation operation{.kind = kind, .start = begin, .end = {}, .bytes = bytes};
    if (!tensors.empty()) operation.memory = tensors.front().storage().data();
    if (numbers_calls_ && !tensors.empty() && tensors.front().is_cpu()) operation.call = work->getSequencenumber();
    work->getFuture()->addCallback([clock = clock_, operation](const c10::ivalue::Future&) mutable {
      operation.end = steady_clock::now();
      clock->record(operation);
    });
    return work;
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::shared_ptr<CommClock> clock_;
  const bool numbers_calls_ = inner_->getBackendName() == torch::kBackendName;
};

}  // namespace

void CommClock::begin() {
  const std::lock_guard lock(mutex_);
  ++under_way_;
}

void CommClock::give_up() {
  const std::lock_guard lock(mutex_);
  --under_way_;
  changed_.notify_all();
}

void CommClock::record(const Operation& operation) {
  const std::lock_guard lock(mutex_);
  operations_.push_back(operation);
  if (observer_) observer_(operation);
  --under_way_;
  changed_.notify_all();
}

void CommClock::settle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return under_way_ == 0; });
}

void CommClock::observe(Observer observer) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

CommTimes CommClock::take_step() {
  const std::lock_guard lock(mutex_);
  std::vector<Operation> step = std::exchange(operations_, {});
  std::ranges::sort(step, {}, &Operation::start);
  CommTimes times;
  Time last_start{};
  Time last_end{};
  for (const Operation& interval : step) {
    const Time from = std::max(interval.start, covered_until_);
    if (interval.end > from) times.busy_s += seconds(interval.end - from);
    covered_until_ = std::max(covered_until_, interval.end);
    if (interval.kind == Kind::blocking) {
      times.exposed_s += seconds(interval.end - interval.start);
    } else {
      times.bytes += interval.bytes;
      last_start = interval.start;
      last_end = std::max(last_end, interval.end);
    }
  }
  times.exposed_s += seconds(last_end - last_start);
  return times;
}

c10::intrusive_ptr<c10d::Backend> with_clock(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<CommClock> clock) {
  return c10::make_intrusive<TimedBackend>(std::move(backend), std::move(clock));
}

}  // namespace shoal::train
