#include <shoal/communicator.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/bootstrap/launch.h"
#include "src/communicator/communicator_impl.h"
#include "src/communicator/wire_up.h"
#include "src/settings/settings.h"

namespace shoal {

using internal::CommunicatorImpl;
using internal::Operation;

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
  // The deadline ends the operation through whoever drives it; the bound below is for a driver that is itself held up.
  operation_->executor()->wait(operation_, std::chrono::steady_clock::time_point::max());
  return operation_->outcome();
}

Status Work::wait_for(std::chrono::nanoseconds timeout) {
  if (operation_ == nullptr) return {};
  operation_->executor()->wait(operation_, std::chrono::steady_clock::now() + timeout);
  if (operation_->done()) return operation_->outcome();
  return {StatusCode::timeout, fmt::format("call {} is still in flight after {} ms", operation_->sequence(),
                                           std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count())};
}

Status Work::status() const { return is_completed() && operation_ != nullptr ? operation_->outcome() : Status(); }

Status Work::on_completion(std::function<void(const Status&)> callback) {
  if (operation_ == nullptr) return callback(Status()), Status();
  return operation_->set_callback(std::move(callback));
}

std::uint64_t Work::sequence() const noexcept { return operation_ == nullptr ? 0 : operation_->sequence(); }

CommunicatorOptions Communicator::options_from_environment() {
  CommunicatorOptions options;
  options.algorithm = setting("SHOAL_ALGORITHM");
  options.transports = setting("SHOAL_TRANSPORTS");
  if (const auto seconds = seconds_setting("SHOAL_TIMEOUT"); seconds.ok()) {
    options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
  }
  return options;
}

Result<std::unique_ptr<Communicator>> Communicator::create(CommunicatorOptions options) {
  // Malformed settings are reported here, where there is a Result to do it with.
  if (const auto seconds = seconds_setting("SHOAL_TIMEOUT"); !seconds.ok()) return seconds.status();
  const auto launch = detect_launch([](const char* name) { return std::getenv(name); });
  if (!launch.ok()) return launch.status();
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  std::unique_ptr<Store> store;
  if (launch->size > 1) {
    auto opened = open_store(*launch, deadline);
    if (!opened.ok()) {
      return Status(opened.status().code(),
                    fmt::format("rank {} ({}): {}", launch->rank, launch->launcher, opened.status().message()));
    }
    store = std::move(opened).value();
    return create(*store, launch->rank, launch->size, std::move(options));
  }
  auto wired = wire_up(nullptr, 0, 1, options);
  if (!wired.ok()) return wired.status();
  return std::unique_ptr<Communicator>(
      new Communicator(std::make_unique<CommunicatorImpl>(std::move(wired).value(), std::move(options))));
}

Result<std::unique_ptr<Communicator>> Communicator::create(Store& store, int rank, int size, CommunicatorOptions options) {
  if (size < 1 || rank < 0 || rank >= size) {
    return Status(StatusCode::invalid_argument, fmt::format("rank {} of {} makes no sense", rank, size));
  }
  if (options.timeout.count() <= 0) {
    return Status(StatusCode::invalid_argument, fmt::format("a timeout of {} ms is not positive", options.timeout.count()));
  }
  auto wired = wire_up(&store, rank, size, options);
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

CommunicatorImpl::Call all_reduce_call(const void* input, void* output, std::size_t count, DataType type, ReduceOp op) {
  return {{CollectiveKind::all_reduce, count, type, op, 0}, input, output, false};
}
CommunicatorImpl::Call broadcast_call(void* buffer, std::size_t count, DataType type, int root) {
  return {{CollectiveKind::broadcast, count, type, ReduceOp::sum, root}, nullptr, buffer, false};
}
CommunicatorImpl::Call all_gather_call(const void* input, void* output, std::size_t count, DataType type) {
  return {{CollectiveKind::all_gather, count, type, ReduceOp::sum, 0}, input, output, false};
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
Status Communicator::barrier(CallOptions options) { return impl_->run(impl_->barrier_call(), options); }
Result<Work> Communicator::barrier_async(CallOptions options) { return impl_->start(impl_->barrier_call(), options); }

Result<std::unique_ptr<Communicator>> Communicator::split(int color, int key) {
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

void Communicator::abort(const std::string& reason) {
  impl_->executor().close({StatusCode::aborted, fmt::format("rank {} aborted: {}", rank(), reason)});
}
Status Communicator::status() const { return impl_->executor().status(); }
CallReport Communicator::last_call() const { return impl_->last_call(); }
std::size_t Communicator::memory_bytes() const noexcept {
  const Executor& executor = impl_->executor();
  return executor.aside_bytes() + (executor.group().id == 0 ? executor.mesh()->memory_bytes() : 0);
}

}  // namespace shoal
