// Start and end of a group, and the code shared by all its calls. The calls are in reductions.cc, movements.cc, barriers.cc,
// point_to_point.cc and groups.cc.
#include "torch_plugin/process_group/process_group_shoal.h"

#include <algorithm>
#include <utility>

#include <shoal/memory.h>

#include "torch_plugin/process_group/arguments.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/device_streams.h"
#include "torch_plugin/process_group/interpreter.h"
#include "torch_plugin/process_group/store_adapter.h"
#include "torch_plugin/process_group/work_stream.h"

namespace shoal::torch {

using at::Tensor;
using std::chrono::milliseconds;

namespace {
StartRound join_or_throw(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, milliseconds timeout) {
  const InterpreterExit leaving;
  Result<StartRound> round = join_start_round(store, rank, size, timeout);
  if (!round.ok()) throw_status("init_process_group", round.status());
  return std::move(round).value();
}

/// Destruction without shutdown(): a rank that ends because of an error must not delay the other ranks, which must learn of
/// the error.
constexpr std::chrono::seconds kFarewell{10};
}  // namespace

CommunicatorOptions ProcessGroupShoal::Options::for_communicator() const {
  CommunicatorOptions wanted = Communicator::options_from_environment();
  wanted.timeout = timeout;
  if (!algorithm.empty()) wanted.algorithm = algorithm;
  if (!transports.empty()) wanted.transports = transports;
  return wanted;
}

ProcessGroupShoal::ProcessGroupShoal(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                     c10::intrusive_ptr<Options> options)
    : c10d::Backend(rank, size),
      options_(options ? std::move(options) : c10::make_intrusive<Options>()),
      round_(join_or_throw(store, rank, size, options_->timeout)),
      store_(round_.store),
      recorder_(rank, size) {
  const InterpreterExit leaving;
  StoreAdapter adapter(store_);
  Result<std::unique_ptr<Communicator>> made = Communicator::create(adapter, rank, size, options_->for_communicator());
  if (adapter.interruption()) std::rethrow_exception(adapter.interruption());
  if (!made.ok()) throw_status("init_process_group", made.status());
  communicator_ = std::move(made).value();
}

ProcessGroupShoal::ProcessGroupShoal(std::unique_ptr<Communicator> communicator, StartRound round,
                                     c10::intrusive_ptr<Options> options)
    : c10d::Backend(communicator->rank(), communicator->size()),
      options_(std::move(options)),
      round_(std::move(round)),
      store_(round_.store),
      recorder_(communicator->rank(), communicator->size()),
      communicator_(std::move(communicator)) {}

ProcessGroupShoal::~ProcessGroupShoal() {
  for (const auto& streams : all_streams()) {
    if (streams->busy()) streams->abort("the process group was destroyed before its calls had ended");
    streams->leave_within(std::min<milliseconds>(options_->timeout, kFarewell));
  }
}

void ProcessGroupShoal::setTimeout(milliseconds timeout) {
  if (timeout <= milliseconds(0)) refuse("set_timeout", "a timeout of " + std::to_string(timeout.count()) + " ms");
  options_->timeout = timeout;
}

milliseconds ProcessGroupShoal::timeout_or_default(milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
}

void ProcessGroupShoal::check_alive() const {
  // Starts no call while the interpreter ends: if the call failed, its exception would return the thread to the interpreter.
  const InterpreterExit leaving;
  if (communicator_ == nullptr) C10_THROW_ERROR(DistBackendError, "shoal: the process group has been destroyed");
}

CallOptions ProcessGroupShoal::call_options(milliseconds timeout) {
  check_alive();
  CallOptions options;
  options.timeout = timeout_or_default(timeout);
  if (estimate_us_) options.estimate_us = &*estimate_us_;
  return options;
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::start(WorkShoal::Call call, Result<shoal::Work> operation,
                                                        const CallOptions& options) {
  if (!operation.ok()) throw_status(call.name, operation.status());
  if (options.estimate_us != nullptr) {  // the call only made an estimate and changed nothing
    call.unpack = nullptr;
    auto estimated = c10::make_intrusive<WorkShoal>(getRank(), std::move(call), communicator_);
    estimated->follow(std::move(operation).value(), {});
    if (coalesced_) coalesced_->works.push_back(estimated);
    return estimated;
  }
  const c10d::OpType type = call.type;
  std::uint64_t sequence = 0;
  c10::intrusive_ptr<WorkShoal> work;
  try {
    auto [number, entry] = note(call, options);
    sequence = number;
    work = c10::make_intrusive<WorkShoal>(getRank(), std::move(call), communicator_);
    work->follow(*operation, std::move(entry));
  } catch (...) {
    // The call moves bytes of tensors that may have no other owner: those in `call`, or by now in `work`.
    communicator_->abort("an exception while " + c10d::opTypeToString(type) + " was started");
    (void)operation->wait();
    throw;
  }
  if (completion_hook_) completion_hook_->follow(*work->getFuture(), type, sequence);
  if (coalesced_) coalesced_->works.push_back(work);
  return work;
}

std::pair<std::uint64_t, RecorderEntry> ProcessGroupShoal::note(const WorkShoal::Call& call, const CallOptions& options) {
  const std::uint64_t sequence = ++calls_;
  if (!recorder_.recording()) return {sequence, {}};
  recorder_.name_group(getGroupUid(), getGroupDesc(), options_->global_ranks_in_group);
  return {sequence, recorder_.record({call.profiling_title != nullptr ? call.profiling_title : call.name, call.peer.rank,
                                      call.peer.sending, sequence, call.inputs, call.outputs,
                                      options.timeout.value_or(options_->timeout)})};
}

void ProcessGroupShoal::startCoalescing() {
  if (coalesced_) endCoalescing();
  coalesced_ = std::make_unique<Coalesced>();
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::endCoalescing() {
  TORCH_CHECK(coalesced_, "shoal: endCoalescing() without startCoalescing()");
  std::unique_ptr<Coalesced> block = std::move(coalesced_);
  if (!block->messages.empty()) start_messages(*block);
  std::vector<c10::intrusive_ptr<c10d::Work>> parts = std::move(block->works);
  block.reset();
  return together("coalesced", "shoal:coalesced", {}, {}, std::move(parts));
}

c10::intrusive_ptr<c10d::Work> ProcessGroupShoal::together(const char* name, const char* title,
                                                           const std::vector<Tensor>& inputs, std::vector<Tensor> outputs,
                                                           std::vector<c10::intrusive_ptr<c10d::Work>> parts) {
  auto work = c10::make_intrusive<WorkTogether>(getRank(), name, title, inputs, std::move(outputs), std::move(parts));
  work->follow();
  return work;
}

Tensor ProcessGroupShoal::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(size >= 0, "shoal allocate_tensor: ", size, " elements");
  if (!options.device().is_cpu()) return at::empty({size}, options);
  const std::size_t bytes = static_cast<std::size_t>(size) * options.dtype().itemsize();
  Result<void*> memory = mem_alloc(std::max<std::size_t>(bytes, 1));
  if (!memory.ok()) C10_THROW_ERROR(DistBackendError, "shoal allocate_tensor: " + memory.status().message());
  return at::from_blob(
      *memory, {size}, [](void* piece) { static_cast<void>(mem_free(piece)); }, options);
}

void ProcessGroupShoal::startTimeEstimate() { estimate_us_ = 0; }

float ProcessGroupShoal::endTimeEstimate() {
  TORCH_CHECK(estimate_us_, "shoal: endTimeEstimate() without startTimeEstimate()");
  return static_cast<float>(*std::exchange(estimate_us_, std::nullopt));
}

void ProcessGroupShoal::registerOnCompletionHook(CompletionHook::Function&& hook) {
  if (completion_hook_) refuse("registerOnCompletionHook", "there is a hook already");
  onCompletionHook_ = hook;  // read by hasHooks()
  completion_hook_ = std::make_unique<CompletionHook>(std::move(hook));
}

void ProcessGroupShoal::waitForPendingWorks() {
  if (!completion_hook_) refuse("waitForPendingWorks", "no hook has been registered");
  completion_hook_->wait([this](const std::string& reason) { communicator_->abort(reason); });
}

void ProcessGroupShoal::abort() {
  constexpr const char* kReason = "abort of the process group";
  for (const auto& streams : all_streams()) streams->abort(kReason);
  if (communicator_ != nullptr) communicator_->abort(kReason);
}

void ProcessGroupShoal::shutdown() {
  std::map<c10::DeviceIndex, std::shared_ptr<DeviceStreams>> streams;
  {
    const std::lock_guard<std::mutex> lock(streams_mutex_);
    std::swap(streams, streams_);
    connected_.reset();
  }
  streams.clear();  // before the communicator, which the streams use
  communicator_.reset();
}

c10d::ErrorType ProcessGroupShoal::getError() {
  check_alive();
  StatusCode code = communicator_->status().code();
  for (const auto& streams : all_streams()) {  // the original cause, if the communicator was closed because of it
    if (!streams->status().ok()) code = streams->status().code();
  }
  switch (code) {
    case StatusCode::ok:
      return c10d::ErrorType::SUCCESS;
    case StatusCode::timeout:
      return c10d::ErrorType::TIMEOUT;
    case StatusCode::peer_failed:
    case StatusCode::aborted:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

}  // namespace shoal::torch
