#include <shoal/communicator.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <shoal/limits.h>

#include "src/base/deadline.h"
#include "src/communicator/communicator_impl.h"
#include "src/communicator/connect_job.h"
#include "src/join/job_key.h"
#include "src/join/launch.h"
#include "src/join/socket.h"
#include "src/join/startup_watch.h"
#include "src/runtime/call_group.h"
#include "src/settings/settings.h"

namespace shoal {

using internal::CommunicatorImpl;
using internal::Operation;

namespace {

Status check(int rank, int size, const CommunicatorOptions& options) {
  if (size < 1 || rank < 0 || rank >= size)
    return {StatusCode::invalid_argument, fmt::format("rank {} of {} is not valid", rank, size)};
  if (size > kMaxJobRanks)
    return {StatusCode::invalid_argument, fmt::format("{} ranks; a job has at most {} (shoal/limits.h)", size, kMaxJobRanks)};
  if (options.timeout.count() <= 0)
    return {StatusCode::invalid_argument, fmt::format("a timeout of {} ms is not positive", options.timeout.count())};
  return {};
}

}  // namespace

Work::Work(const Work& other) noexcept : operation_(other.operation_) {
  if (operation_ != nullptr) operation_->add_reference();
}
Work::Work(Work&& other) noexcept : operation_(std::exchange(other.operation_, nullptr)) {}
Work& Work::operator=(Work other) noexcept {
  std::swap(operation_, other.operation_);
  return *this;
}
Work::~Work() {
  if (operation_ != nullptr) operation_->drop_reference();
}

bool Work::is_completed() const noexcept { return operation_ == nullptr || operation_->done(); }

Status Work::wait() {
  if (operation_ == nullptr) return {};
  // No time limit here: the driver thread ends the operation at its deadline, or a little later where the driver is delayed.
  executor_of(*operation_).wait(operation_, std::chrono::steady_clock::time_point::max());
  if (!operation_->done())
    return Operation::in_callback() ? internal::waits_in_callback("Work::wait") : executor_of(*operation_).status();
  return operation_->outcome();
}

Status Work::wait_for(std::chrono::nanoseconds timeout) {
  if (operation_ == nullptr) return {};
  executor_of(*operation_).wait(operation_, deadline_after(timeout));
  if (operation_->done()) return operation_->outcome();
  if (Operation::in_callback()) return internal::waits_in_callback("Work::wait_for");
  return {StatusCode::timeout, fmt::format("call {} is still in flight after {} ms", operation_->sequence(),
                                           std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count())};
}

Status Work::status() const { return is_completed() && operation_ != nullptr ? operation_->outcome() : Status(); }

Status Work::on_completion(std::function<void(const Status&)> callback) {
  if (operation_ == nullptr) return callback(Status()), Status();
  return operation_->set_callback(std::move(callback));
}

std::uint64_t Work::sequence() const noexcept { return operation_ == nullptr ? 0 : operation_->sequence(); }

int Work::source() const noexcept {
  return operation_ == nullptr || !operation_->done() || !operation_->outcome().ok() ? -1 : operation_->source.load();
}

CommunicatorOptions Communicator::options_from_environment() {
  CommunicatorOptions options;
  options.algorithm = setting("SHOAL_ALGORITHM");
  options.transports = setting("SHOAL_TRANSPORTS");
  if (const auto timeout = time_setting("SHOAL_TIMEOUT"); timeout.ok()) options.timeout = *timeout;
  return options;
}

Result<std::unique_ptr<Communicator>> Communicator::create(CommunicatorOptions options) {
  // Malformed settings are reported here, because options_from_environment() cannot return an error.
  if (const auto timeout = time_setting("SHOAL_TIMEOUT"); !timeout.ok()) return timeout.status();
  const auto launch = detect_launch([](const char* name) { return std::getenv(name); });
  if (!launch.ok()) return launch.status();
  const auto deadline = deadline_after(options.timeout);
  if (launch->size > 1) {
    raise_descriptor_limit();
    const StartupWatch watch(launch->rank, launch->size);
    auto opened = open_store(*launch, deadline);
    if (!opened.ok()) {
      return Status(opened.status().code(),
                    fmt::format("rank {} ({}): {}", launch->rank, launch->launcher, opened.status().message()));
    }
    if (Status status = check(launch->rank, launch->size, options); !status.ok()) return status;
    auto wired = connect_job(opened->store.get(), launch->rank, launch->size, opened->key, launch->job, options);
    if (!wired.ok()) return wired.status();
    return std::unique_ptr<Communicator>(
        new Communicator(std::make_unique<CommunicatorImpl>(std::move(wired).value(), std::move(options))));
  }
  auto wired = connect_job(nullptr, 0, 1, {}, {}, options);
  if (!wired.ok()) return wired.status();
  return std::unique_ptr<Communicator>(
      new Communicator(std::make_unique<CommunicatorImpl>(std::move(wired).value(), std::move(options))));
}

Result<std::unique_ptr<Communicator>> Communicator::create(Store& store, int rank, int size, CommunicatorOptions options) {
  if (Status status = check(rank, size, options); !status.ok()) return status;
  const auto key = job_key();
  if (!key.ok()) return key.status();
  raise_descriptor_limit();
  const StartupWatch watch(rank, size);
  auto wired = connect_job(&store, rank, size, *key, setting("SHOAL_JOB_ID"), options);
  if (!wired.ok()) return wired.status();
  return std::unique_ptr<Communicator>(
      new Communicator(std::make_unique<CommunicatorImpl>(std::move(wired).value(), std::move(options))));
}

Communicator::Communicator(std::unique_ptr<CommunicatorImpl> impl) noexcept : impl_(std::move(impl)) {}
Communicator::~Communicator() = default;

int Communicator::rank() const noexcept { return impl_->executor().rank(); }
int Communicator::size() const noexcept { return impl_->executor().topology().ranks(); }
int Communicator::nodes() const noexcept { return impl_->executor().topology().nodes(); }
int Communicator::local_rank() const noexcept { return impl_->executor().topology().local_rank(rank()); }
int Communicator::local_size() const noexcept {
  const Topology& topology = impl_->executor().topology();
  return static_cast<int>(topology.ranks_of_node(topology.node_of_rank[static_cast<std::size_t>(rank())]).size());
}

namespace {

using Call = CommunicatorImpl::Call;
using Counts = std::span<const std::size_t>;

Call all_reduce_call(const void* input, void* output, std::size_t count, DataType type, ReduceOp op) {
  return {{CollectiveKind::all_reduce, count, type, op, 0}, input, output, false};
}
Call broadcast_call(void* buffer, std::size_t count, DataType type, int root) {
  return {{CollectiveKind::broadcast, count, type, ReduceOp::sum, root}, nullptr, buffer, false};
}
Call all_gather_call(const void* input, void* output, std::size_t count, DataType type) {
  return {{CollectiveKind::all_gather, count, type, ReduceOp::sum, 0}, input, output, false};
}
Call reduce_scatter_call(const void* input, void* output, std::size_t count, DataType type, ReduceOp op) {
  return {{CollectiveKind::reduce_scatter, count, type, op, 0}, input, output, false};
}
Call reduce_call(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, int root) {
  return {{CollectiveKind::reduce, count, type, op, root}, input, output, false};
}
Call gather_call(const void* input, void* output, std::size_t count, DataType type, int root) {
  return {{CollectiveKind::gather, count, type, ReduceOp::sum, root}, input, output, false};
}
Call scatter_call(const void* input, void* output, std::size_t count, DataType type, int root) {
  return {{CollectiveKind::scatter, count, type, ReduceOp::sum, root}, input, output, false};
}
Call all_to_all_call(const void* input, void* output, std::size_t count, DataType type) {
  return {{CollectiveKind::all_to_all, count, type, ReduceOp::sum, 0}, input, output, false};
}

/// The sum, or the largest number if the sum overflows; the check of the call refuses that number.
std::size_t total(Counts counts) {
  std::size_t sum = 0;
  for (const std::size_t count : counts) sum = count > ~sum ? ~std::size_t{0} : sum + count;
  return sum;
}

/// `call` with shares of `counts`, as the public functions get them.
Result<Call> with_counts(Call call, Counts counts, int ranks, const char* name = "counts") {
  if (counts.size() != static_cast<std::size_t>(ranks)) {
    return Status(StatusCode::invalid_argument, fmt::format("{}_v: {} {} for {} ranks; one for each rank is needed",
                                                            to_string(call.collective.kind), counts.size(), name, ranks));
  }
  call.collective.counts = counts;
  call.collective.count = total(counts);
  return call;
}

/// `call` with the counts of an all_to_all_v in the form that a Collective needs; `both` stores them.
Result<Call> with_counts(Call call, Counts send_counts, Counts receive_counts, int ranks, std::vector<std::size_t>& both) {
  if (auto checked = with_counts(call, send_counts, ranks, "send_counts"); !checked.ok()) return checked;
  if (auto checked = with_counts(call, receive_counts, ranks, "receive_counts"); !checked.ok()) return checked;
  both.assign(send_counts.begin(), send_counts.end());
  both.insert(both.end(), receive_counts.begin(), receive_counts.end());
  call.collective.counts = both;
  call.collective.count = total(send_counts);
  return call;
}

/// Keeps its memory, so that a repeated call allocates nothing.
std::vector<std::size_t>& counts_of_this_thread() {
  thread_local std::vector<std::size_t> counts;
  return counts;
}

}  // namespace

Status Communicator::all_reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                CallOptions options) {
  return impl_->run(all_reduce_call(input, output, count, type, op), options);
}
Result<Work> Communicator::all_reduce_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                            CallOptions options) {
  return impl_->start(all_reduce_call(input, output, count, type, op), options);
}
Status Communicator::broadcast(void* buffer, std::size_t count, DataType type, int root, CallOptions options) {
  return impl_->run(broadcast_call(buffer, count, type, root), options);
}
Result<Work> Communicator::broadcast_async(void* buffer, std::size_t count, DataType type, int root, CallOptions options) {
  return impl_->start(broadcast_call(buffer, count, type, root), options);
}
Status Communicator::all_gather(const void* input, void* output, std::size_t count, DataType type, CallOptions options) {
  return impl_->run(all_gather_call(input, output, count, type), options);
}
Result<Work> Communicator::all_gather_async(const void* input, void* output, std::size_t count, DataType type,
                                            CallOptions options) {
  return impl_->start(all_gather_call(input, output, count, type), options);
}
Status Communicator::all_gather_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                                  CallOptions options) {
  const auto call = with_counts(all_gather_call(input, output, 0, type), counts, size());
  return call.ok() ? impl_->run(*call, options) : call.status();
}
Result<Work> Communicator::all_gather_v_async(const void* input, void* output, std::span<const std::size_t> counts,
                                              DataType type, CallOptions options) {
  const auto call = with_counts(all_gather_call(input, output, 0, type), counts, size());
  return call.ok() ? impl_->start(*call, options) : call.status();
}
Status Communicator::reduce_scatter(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                    CallOptions options) {
  return impl_->run(reduce_scatter_call(input, output, count, type, op), options);
}
Result<Work> Communicator::reduce_scatter_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                                CallOptions options) {
  return impl_->start(reduce_scatter_call(input, output, count, type, op), options);
}
Status Communicator::reduce_scatter_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                                      ReduceOp op, CallOptions options) {
  const auto call = with_counts(reduce_scatter_call(input, output, 0, type, op), counts, size());
  return call.ok() ? impl_->run(*call, options) : call.status();
}
Result<Work> Communicator::reduce_scatter_v_async(const void* input, void* output, std::span<const std::size_t> counts,
                                                  DataType type, ReduceOp op, CallOptions options) {
  const auto call = with_counts(reduce_scatter_call(input, output, 0, type, op), counts, size());
  return call.ok() ? impl_->start(*call, options) : call.status();
}
Status Communicator::reduce(const void* input, void* output, std::size_t count, DataType type, ReduceOp op, int root,
                            CallOptions options) {
  return impl_->run(reduce_call(input, output, count, type, op, root), options);
}
Result<Work> Communicator::reduce_async(const void* input, void* output, std::size_t count, DataType type, ReduceOp op,
                                        int root, CallOptions options) {
  return impl_->start(reduce_call(input, output, count, type, op, root), options);
}
Status Communicator::gather(const void* input, void* output, std::size_t count, DataType type, int root, CallOptions options) {
  return impl_->run(gather_call(input, output, count, type, root), options);
}
Result<Work> Communicator::gather_async(const void* input, void* output, std::size_t count, DataType type, int root,
                                        CallOptions options) {
  return impl_->start(gather_call(input, output, count, type, root), options);
}
Status Communicator::gather_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type, int root,
                              CallOptions options) {
  const auto call = with_counts(gather_call(input, output, 0, type, root), counts, size());
  return call.ok() ? impl_->run(*call, options) : call.status();
}
Result<Work> Communicator::gather_v_async(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                                          int root, CallOptions options) {
  const auto call = with_counts(gather_call(input, output, 0, type, root), counts, size());
  return call.ok() ? impl_->start(*call, options) : call.status();
}
Status Communicator::scatter(const void* input, void* output, std::size_t count, DataType type, int root, CallOptions options) {
  return impl_->run(scatter_call(input, output, count, type, root), options);
}
Result<Work> Communicator::scatter_async(const void* input, void* output, std::size_t count, DataType type, int root,
                                         CallOptions options) {
  return impl_->start(scatter_call(input, output, count, type, root), options);
}
Status Communicator::scatter_v(const void* input, void* output, std::span<const std::size_t> counts, DataType type, int root,
                               CallOptions options) {
  const auto call = with_counts(scatter_call(input, output, 0, type, root), counts, size());
  return call.ok() ? impl_->run(*call, options) : call.status();
}
Result<Work> Communicator::scatter_v_async(const void* input, void* output, std::span<const std::size_t> counts, DataType type,
                                           int root, CallOptions options) {
  const auto call = with_counts(scatter_call(input, output, 0, type, root), counts, size());
  return call.ok() ? impl_->start(*call, options) : call.status();
}
Status Communicator::all_to_all(const void* input, void* output, std::size_t count, DataType type, CallOptions options) {
  return impl_->run(all_to_all_call(input, output, count, type), options);
}
Result<Work> Communicator::all_to_all_async(const void* input, void* output, std::size_t count, DataType type,
                                            CallOptions options) {
  return impl_->start(all_to_all_call(input, output, count, type), options);
}
Status Communicator::all_to_all_v(const void* input, std::span<const std::size_t> send_counts, void* output,
                                  std::span<const std::size_t> receive_counts, DataType type, CallOptions options) {
  const auto call =
      with_counts(all_to_all_call(input, output, 0, type), send_counts, receive_counts, size(), counts_of_this_thread());
  return call.ok() ? impl_->run(*call, options) : call.status();
}
Result<Work> Communicator::all_to_all_v_async(const void* input, std::span<const std::size_t> send_counts, void* output,
                                              std::span<const std::size_t> receive_counts, DataType type, CallOptions options) {
  const auto call =
      with_counts(all_to_all_call(input, output, 0, type), send_counts, receive_counts, size(), counts_of_this_thread());
  return call.ok() ? impl_->start(*call, options) : call.status();
}
Status Communicator::barrier(CallOptions options) { return impl_->run(impl_->barrier_call(), options); }
Result<Work> Communicator::barrier_async(CallOptions options) { return impl_->start(impl_->barrier_call(), options); }

namespace {

internal::Message send_of(const void* buffer, std::size_t count, DataType type, int peer, int tag) {
  // A send only reads the buffer.
  return {true, peer, tag, type, count * size_of(type), static_cast<std::byte*>(const_cast<void*>(buffer)), 0, 0, 0, {}};
}
internal::Message recv_of(void* buffer, std::size_t count, DataType type, int peer, int tag) {
  return {false, peer, tag, type, count * size_of(type), static_cast<std::byte*>(buffer), 0, 0, 0, {}};
}

}  // namespace

Status Communicator::send(const void* buffer, std::size_t count, DataType type, int peer, int tag, CallOptions options) {
  return impl_->run_message(send_of(buffer, count, type, peer, tag), count, options);
}
Result<Work> Communicator::send_async(const void* buffer, std::size_t count, DataType type, int peer, int tag,
                                      CallOptions options) {
  return impl_->start_message(send_of(buffer, count, type, peer, tag), count, options);
}
Status Communicator::recv(void* buffer, std::size_t count, DataType type, int peer, int tag, CallOptions options) {
  return impl_->run_message(recv_of(buffer, count, type, peer, tag), count, options);
}
Result<Work> Communicator::recv_async(void* buffer, std::size_t count, DataType type, int peer, int tag, CallOptions options) {
  return impl_->start_message(recv_of(buffer, count, type, peer, tag), count, options);
}
void Communicator::group_begin() { CallGroup::begin(); }
Status Communicator::group_end() { return CallGroup::end(); }

Result<std::unique_ptr<Communicator>> Communicator::split(int color, int key) {
  if (CallGroup::open()) return internal::waits_in_group("split");
  const std::array<std::int32_t, 2> mine{color, key};
  std::vector<std::array<std::int32_t, 2>> all(static_cast<std::size_t>(size()));
  if (Status status = all_gather(mine.data(), all.data(), mine.size(), DataType::int32); !status.ok()) return status;
  if (color < 0) return std::unique_ptr<Communicator>();
  std::vector<int> members;
  for (int other = 0; other < size(); ++other) {
    if (all[static_cast<std::size_t>(other)][0] == color) members.push_back(other);
  }
  std::ranges::stable_sort(members, {}, [&](int other) { return all[static_cast<std::size_t>(other)][1]; });
  return group(members);
}

Result<std::unique_ptr<Communicator>> Communicator::group(std::span<const int> ranks) {
  auto wired = impl_->make_group(ranks);
  if (!wired.ok()) return wired.status();
  return std::unique_ptr<Communicator>(
      new Communicator(std::make_unique<CommunicatorImpl>(std::move(wired).value(), impl_->options())));
}

Result<std::unique_ptr<Communicator>> Communicator::shrink(std::span<const int> without,
                                                           std::optional<std::chrono::milliseconds> timeout) {
  auto left = impl_->shrink(without, timeout.value_or(impl_->options().timeout));
  if (!left.ok()) return left.status();
  return std::unique_ptr<Communicator>(new Communicator(std::move(left).value()));
}

void Communicator::abort(const std::string& reason) { impl_->abort(reason); }
Status Communicator::status() const { return impl_->executor().status(); }
CallReport Communicator::last_call() const { return impl_->last_call(); }
std::size_t Communicator::memory_bytes() const noexcept {
  const Executor& executor = impl_->executor();
  return executor.spilled_bytes() + (executor.group().name.is_whole() ? executor.engine()->memory_bytes() : 0);
}

}  // namespace shoal
