#include <shoal/communicator.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <shoal/limits.h>

#include "src/base/deadline.h"
#include "src/base/descriptor_limit.h"
#include "src/communicator/communicator_impl.h"
#include "src/communicator/connect_job.h"
#include "src/join/job_key.h"
#include "src/join/launch.h"
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
    auto wired = connect_job(opened->store.get(), launch->rank, launch->size, opened->key, launch->job, deadline, options);
    if (!wired.ok()) return wired.status();
    return std::unique_ptr<Communicator>(
        new Communicator(std::make_unique<CommunicatorImpl>(std::move(wired).value(), std::move(options))));
  }
  auto wired = connect_job(nullptr, 0, 1, {}, {}, deadline, options);
  if (!wired.ok()) return wired.status();
  return std::unique_ptr<Communicator>(
      new Communicator(std::make_unique<CommunicatorImpl>(std::move(wired).value(), std::move(options))));
}

Result<std::unique_ptr<Communicator>> Communicator::create(Store& store, int rank, int size, CommunicatorOptions options) {
  if (Status status = check(rank, size, options); !status.ok()) return status;
  const auto deadline = deadline_after(options.timeout);
  const auto key = job_key();
  if (!key.ok()) return key.status();
  raise_descriptor_limit();
  const StartupWatch watch(rank, size);
  auto wired = connect_job(&store, rank, size, *key, setting("SHOAL_JOB_ID"), deadline, options);
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

Status Communicator::submit(const Request& request, const CallOptions& options) { return impl_->run(request, options); }
Result<Work> Communicator::submit_async(const Request& request, const CallOptions& options) {
  return impl_->start(request, options);
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
