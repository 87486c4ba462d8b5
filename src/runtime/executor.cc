#include "src/runtime/executor.h"

#include <algorithm>
#include <iterator>
#include <thread>
#include <utility>

#include "src/base/deadline.h"
#include "src/progress/driver_lock.h"
#include "src/progress/progress_thread.h"
#include "src/runtime/call_group.h"

namespace shoal {

using internal::Operation;

namespace {
using Clock = std::chrono::steady_clock;
}  // namespace

Result<std::shared_ptr<Executor>> Executor::create(std::shared_ptr<ProgressEngine> engine, const Group& group) {
  std::shared_ptr<Executor> executor(new Executor(std::move(engine), group));
  if (Status status = executor->engine()->attach(*executor); !status.ok()) return status;
  return executor;
}

Executor::Executor(std::shared_ptr<ProgressEngine> engine, const Group& group) : CallRunner(std::move(engine), group) {
  plan_context_.topology = &group_.topology;
  plan_context_.rank = group_.rank;
  plan_context_.window_room = peer_memory().room();
  links().describe(plan_context_);
}

Executor::~Executor() = default;

Operation* Executor::acquire(Plan* plan, std::unique_ptr<Plan> owned, Clock::time_point deadline, const void* input,
                             void* output) {
  Operation* operation = Operation::acquire(plan, std::move(owned));
  // Before the call has a number: all later calls would wait for a numbered call that never starts.
  if (!operation->take_scratch()) {
    operation->release();
    return nullptr;
  }
  operation->reset(shared_from_this(), next_sequence_.fetch_add(1, std::memory_order_relaxed), deadline, input, output);
  return operation;
}

Operation* Executor::acquire_message(const internal::Message& message, Clock::time_point deadline) {
  Operation* operation = Operation::acquire(&message_plan_, nullptr);
  operation->reset(shared_from_this(), next_message_.fetch_add(1, std::memory_order_relaxed), deadline, nullptr, nullptr);
  operation->set_message(message);
  return operation;
}

void Executor::post(Operation* operation) {
  if (CallGroup::open()) return CallGroup::add(operation, false);
  operation->add_reference();
  engine()->post({&operation, 1});
}

void Executor::post_late(Operation* operation) {
  const auto executor = std::static_pointer_cast<Executor>(operation->client());  // `operation` may hold the last reference
  if (!executor->closed()) return executor->engine()->post({&operation, 1});
  operation->finish(executor->status());
  operation->drop_reference();
}

void Executor::run(Operation* operation) {
  if (CallGroup::open()) return CallGroup::add(operation, true);
  operation->add_reference();
  operation->set_awaited();
  if (!engine()->try_run(operation)) engine()->post({&operation, 1});
  wait_to_the_end(operation);
}

std::optional<Status> Executor::try_express(Plan& plan, std::chrono::milliseconds timeout, const void* input, void* output) {
  if ((plan.ranks != 1 && (!plan.one_shot_window || !peer_memory().available())) || plan.meter != nullptr || CallGroup::open())
    return std::nullopt;
  DriverLock lock(*engine(), std::try_to_lock);
  if (!lock.owns()) return std::nullopt;
  std::uint64_t sequence = monitor().next_call();
  // The number is taken last: other threads number their calls without the lock.
  if (engine()->busy() || closed() ||
      !next_sequence_.compare_exchange_strong(sequence, sequence + 1, std::memory_order_relaxed))
    return std::nullopt;
  const CallChain before = monitor().chain();
  const auto attempt = run_at_once(plan, input, output);
  if (attempt == PeerMemoryCalls::Attempt::ended) return Status();
  // A peer is late: from here on this is an ordinary call.
  Operation* operation = Operation::acquire(&plan, nullptr);  // without scratch: calls over windows use none
  operation->reset(shared_from_this(), sequence, deadline_after(timeout), input, output);
  continue_with(operation, before, attempt == PeerMemoryCalls::Attempt::published);
  engine()->drive_started(lock, *this, *operation);
  lock.unlock();
  wait_to_the_end(operation);
  Status outcome = operation->outcome();
  operation->drop_reference();
  return outcome;
}

// The driver ends the call at its deadline, or a little later where the driver itself is delayed. The call's buffers are in
// use until then.
void Executor::wait_to_the_end(Operation* operation) {
  if (!operation->done()) wait(operation, Clock::time_point::max());
}

void Executor::wait(Operation* operation, Clock::time_point deadline) {
  if (CallGroup::open()) CallGroup::flush();
  if (Operation::in_callback()) return;    // the callback would wait for itself
  if (engine()->left_to_parent()) return;  // no thread of this process ends the call
  // Another thread may keep the call in an open group without end. Once posted, it ends by its deadline or abort() at the
  // latest. It still starts in its turn.
  if (operation->take_from_group()) post_late(operation);
  operation->set_awaited();
  while (!operation->done() && Clock::now() < deadline) {
    if (engine()->driver_wanted()) {
      std::this_thread::yield();
    } else if (!engine()->try_drive(*operation, deadline)) {
      operation->sleep_until(deadline);
    }
  }
}

void Executor::on_close(const void* owner, std::function<void(const Status&)> hook) {
  closing().set_hook(owner, std::move(hook), [this] { return closed(); });
}

Status Executor::status() const { return closed() ? closing().get() : Status(); }

void Executor::shut_down() {
  if (engine()->left_to_parent()) return;
  DriverLock lock(*engine());
  const bool last = leave();
  // The connections end later, so that the peers read the close notice first.
  lock.unlock();
  if (last) ProgressThread::instance().remove(engine().get());
}

std::string Executor::transports_of(const Plan& plan) const {
  if (plan.one_shot_window && peer_memory().available()) return std::string(peer_memory().transport_name());
  return names_of_transports(&plan);
}

std::string Executor::transports() const { return names_of_transports(nullptr); }

std::string Executor::names_of_transports(const Plan* plan) const {
  const auto transports = std::span(engine()->parts().transports);
  std::string names;
  for (std::uint32_t t = 0; t < transports.size(); ++t) {
    if (links().uses_transport(t, plan)) names += (names.empty() ? "" : "+") + std::string(transports[t]->name());
  }
  return names.empty() ? "local" : names;
}

std::vector<int> Executor::present() const {
  const std::vector<int> there = engine()->present();
  std::vector<int> members;
  std::ranges::copy_if(group_.members, std::back_inserter(members),
                       [&](int job_rank) { return std::ranges::binary_search(there, job_rank); });
  return members;
}

std::size_t Executor::spilled_bytes() const {
  // A callback's thread holds a driver lock already, and in a child of fork() the thread that holds it may not exist.
  if (Operation::in_callback() || engine()->left_to_parent()) return 0;
  const DriverLock lock(*engine());
  return links().spilled_bytes();
}

}  // namespace shoal
