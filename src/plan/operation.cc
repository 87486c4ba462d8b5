#include "src/plan/operation.h"

#include <algorithm>
#include <utility>

#include "src/base/futex.h"
#include "src/plan/call_meter.h"

shoal::Plan::~Plan() {
  for (auto& entry : pool) delete entry.load(std::memory_order_relaxed);
}

namespace shoal::internal {

__attribute__((tls_model("initial-exec"))) thread_local int Operation::callbacks_ = 0;

Operation* Operation::acquire(Plan* plan, std::unique_ptr<Plan> owned_plan) {
  if (owned_plan != nullptr) return new Operation(plan, std::move(owned_plan), false);
  for (auto& entry : plan->pool) {
    Operation* operation = entry.load(std::memory_order_acquire);
    if (operation == nullptr) {
      auto fresh = std::make_unique<Operation>(plan, nullptr, true);
      fresh->in_use.store(true, std::memory_order_relaxed);
      // Another thread may have filled the entry meanwhile; then look at the next one.
      if (entry.compare_exchange_strong(operation, fresh.get(), std::memory_order_acq_rel)) return fresh.release();
      continue;
    }
    // acquire: pairs with the release in drop_reference by the last user.
    if (!operation->in_use.load(std::memory_order_relaxed) && !operation->in_use.exchange(true, std::memory_order_acquire)) {
      return operation;
    }
  }
  return new Operation(plan, nullptr, false);
}

Operation::Operation(Plan* the_plan, std::unique_ptr<Plan> owned_plan, bool pooled)
    : plan(the_plan),
      done_bytes(the_plan->instructions.size()),
      links(the_plan->links.size()),
      owned_plan_(std::move(owned_plan)),
      pooled_(pooled) {}

bool Operation::take_scratch() {
  if (plan->scratch_bytes > scratch_.size_bytes) scratch_ = ScratchPool::instance().take(plan->scratch_bytes);
  return scratch_.size_bytes >= plan->scratch_bytes;
}

void Operation::release() noexcept {
  if (pooled_) return in_use.store(false, std::memory_order_release);  // pairs with the acquire in the pool's search
  delete this;
}

void Operation::reset(std::shared_ptr<ProgressClient> client, std::uint64_t sequence,
                      std::chrono::steady_clock::time_point deadline, const void* input, void* output) {
  client_ = std::move(client);
  sequence_ = sequence;
  deadline_ = deadline;
  // Programs never write their input out of place, so casting the const away is safe.
  bases_ = {static_cast<std::byte*>(const_cast<void*>(input)), static_cast<std::byte*>(output), scratch_.memory.get()};
  std::fill(done_bytes.begin(), done_bytes.end(), 0);
  for (std::size_t i = 0; i < links.size(); ++i) {
    links[i] = LinkProgress{};
    links[i].call_sent = links[i].call_gone = !plan->links[i].speaks;
    links[i].call_received = !plan->links[i].hears;
  }
  open_instructions = plan->instructions.size();
  open_links = plan->links.size();
  next_local_step = 0;
  is_message_ = false;
  awaited_.store(false, std::memory_order_relaxed);
  watch = {};
  on_links = false;
  published = false;
  next_in_inbox = nullptr;
  outcome_ = Status();
  callback_ = nullptr;
  last_step_ = nullptr;
  callback_is_given_.store(false, std::memory_order_relaxed);
  callback_state_.store(kNoCallback, std::memory_order_relaxed);
  references_.store(1, std::memory_order_relaxed);
  if (plan->meter != nullptr) started_ = std::chrono::steady_clock::now();
  state_.store(kRunning, std::memory_order_release);
}

void Operation::set_message(const Message& what) {
  std::vector<std::byte> tile = std::move(message.tile);  // keeps its memory
  message = what;
  message.tile = std::move(tile);
  source.store(-1, std::memory_order_relaxed);
  is_message_ = true;
}

void Operation::drop_reference() {
  // acq_rel: the last holder must see what other holders did with the Operation before it is used again.
  if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const std::shared_ptr<ProgressClient> client = std::move(client_);  // keeps the pool alive until the Operation is back in it
  callback_ = nullptr;
  release();
}

void Operation::sleep_until(std::chrono::steady_clock::time_point deadline) noexcept {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);  // before state_ is read: see finish()
  while (!done() && std::chrono::steady_clock::now() < deadline) futex_wait_until(state_, kRunning, deadline);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

Status Operation::set_callback(std::function<void(const Status&)> callback) {
  if (callback_is_given_.exchange(true, std::memory_order_relaxed)) {
    return {StatusCode::invalid_argument, "on_completion: this Work has a callback already"};
  }
  if (done()) {
    callback(outcome_);
    return {};
  }
  callback_ = std::move(callback);  // finish() reads it only after seeing kCallbackSet
  int expected = kNoCallback;
  if (callback_state_.compare_exchange_strong(expected, kCallbackSet, std::memory_order_acq_rel)) return {};
  // finish() ran in between and found no callback, so this thread calls it. Wait until the outcome is published.
  while (!done()) futex_wait_until(state_, kRunning, std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
  std::exchange(callback_, nullptr)(outcome_);
  return {};
}

void Operation::finish(Status outcome) {
  if (scratch_.size_bytes > 0) ScratchPool::instance().give(std::exchange(scratch_, {}));
  outcome_ = std::move(outcome);
  if (last_step_) {
    if (outcome_.ok()) last_step_();
    last_step_ = nullptr;
  }
  if (plan->meter != nullptr && outcome_.ok())
    plan->meter->add(std::chrono::steady_clock::now() - started_, plan->predicted_us);
  const bool has_callback = callback_state_.exchange(kFinished, std::memory_order_acq_rel) == kCallbackSet;
  // seq_cst store and load: either this thread sees the sleeper, or the sleeper sees the state before it sleeps.
  state_.store(kDone, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake_all(state_);
  if (!has_callback) return;
  ++callbacks_;
  std::exchange(callback_, nullptr)(outcome_);
  --callbacks_;
}

std::size_t Operation::allowed_bytes(std::uint32_t index) const noexcept {
  const Instruction& instruction = plan->instructions[index];
  auto allowed = static_cast<std::int64_t>(instruction.size_bytes);
  // The last dependency first: it usually begins last, and while it has done nothing, the others need no look.
  for (std::uint32_t d = instruction.dependency_count; d-- > 0 && allowed > 0;) {
    const PlanDependency& dependency = plan->dependencies[instruction.first_dependency + d];
    const std::size_t done_there = done_bytes[dependency.instruction];
    if (done_there == plan->instructions[dependency.instruction].size_bytes) continue;
    allowed = std::min(allowed, static_cast<std::int64_t>(done_there) - dependency.shift_bytes);
  }
  return allowed > 0 ? static_cast<std::size_t>(allowed) : 0;
}

}  // namespace shoal::internal
