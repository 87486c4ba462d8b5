#include "bench/train/job.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "bench/train/gloo.h"
#include "bench/train/machine.h"
#include "bench/train/mpi.h"
#include "bench/train/nccl.h"
#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/join.h"
#include "torch_plugin/process_group/listener.h"
#include "torch_plugin/process_group/process_group_shoal.h"

namespace shoal::train {
namespace {

std::vector<int> all_ranks(const Job& job) {
  std::vector<int> ranks(static_cast<std::size_t>(job.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Over the existing links, whose ends have authenticated each other with the job key; c10d's store authenticates nothing.
Result<c10::intrusive_ptr<c10d::Backend>> make_shoal(const Job& job, const std::vector<int>& ranks,
                                                     const c10::intrusive_ptr<c10d::Store>& store) {
  Result<std::unique_ptr<Communicator>> group = job.control->group(ranks);
  if (!group.ok()) return group.status();
  auto options = c10::make_intrusive<torch::ProcessGroupShoal::Options>(job.timeout);
  return {
      c10::make_intrusive<torch::ProcessGroupShoal>(std::move(group).value(), torch::StartRound{store, 0}, std::move(options))};
}

}  // namespace

Result<Job> join_job(std::chrono::milliseconds timeout, bool needs_store) {
  CommunicatorOptions options = Communicator::options_from_environment();
  options.timeout = timeout;
  Result<std::unique_ptr<Communicator>> control = Communicator::create(options);
  if (!control.ok()) return control.status();
  Job job;
  job.control = std::move(control).value();
  job.timeout = timeout;
  job.place = job.rank();
  job.places = all_ranks(job);
  job.store = c10::make_intrusive<c10d::HashStore>();
  if (!needs_store) return job;
  Result<c10::intrusive_ptr<c10d::Store>> store = torch::open_store(*job.control, timeout);
  if (!store.ok()) return store.status();
  job.store = std::move(store).value();
  return job;
}

Result<std::vector<int>> shrink(Job& job) {
  Result<std::unique_ptr<Communicator>> left = job.control->shrink();
  if (!left.ok()) return left.status();
  job.control = std::move(left).value();
  std::vector<int> places(static_cast<std::size_t>(job.size()));
  std::vector<int> lost;
  if (const Status gathered = job.control->all_gather(&job.place, places.data(), 1, DataType::int32); !gathered.ok())
    return gathered;
  std::ranges::set_difference(job.places, places, std::back_inserter(lost));
  job.places = std::move(places);
  // The old store may have been served by a lost rank. Shoal's groups do not need it.
  job.store = c10::make_intrusive<c10d::HashStore>();
  return lost;
}

Result<int> ranks_on_these_cores(const Job& job) {
  using Identity = std::array<char, 320>;
  Identity own{};
  const std::string identity = kernel_identity() + cores_identity();
  identity.copy(own.data(), own.size());
  std::vector<Identity> all(static_cast<std::size_t>(job.size()));
  const Status gathered = job.control->all_gather(own.data(), all.data(), own.size(), DataType::uint8);
  if (!gathered.ok()) return gathered;
  return static_cast<int>(std::ranges::count(all, own));
}

Status of_rank_0(const Job& job, const Status& own, const std::string& path) {
  auto failure = static_cast<std::int32_t>(own.code());
  const Status told = job.control->broadcast(&failure, 1, DataType::int32, 0);
  if (job.rank() == 0 && !own.ok()) return own;
  if (!told.ok() || failure == 0) return told;
  return {static_cast<StatusCode>(failure), path + ": rank 0 could not write it"};
}

Result<c10::intrusive_ptr<c10d::ProcessGroup>> make_group_of(const Job& job, const std::vector<int>& ranks,
                                                             const std::string& name) {
  auto store = c10::make_intrusive<c10d::PrefixStore>(name, job.store);
  try {
    Result<c10::intrusive_ptr<c10d::Backend>> backend = make_shoal(job, ranks, store);
    if (!backend.ok()) return backend.status();
    const auto rank = static_cast<int>(std::ranges::find(ranks, job.rank()) - ranks.begin());
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, static_cast<int>(ranks.size()));
    for (const at::DeviceType type : std::set<at::DeviceType>{at::kCPU, job.device.type()})
      group->setBackend(type, c10d::ProcessGroup::BackendType::CUSTOM, *backend);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    group->setGroupName(name);
    return group;
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, torch::plain_message(error));
  }
}

Result<c10::intrusive_ptr<c10d::ProcessGroup>> make_group(const Job& job, const std::string& backend, const std::string& name,
                                                          std::shared_ptr<CommClock> clock) {
  auto store = c10::make_intrusive<c10d::PrefixStore>(name, job.store);
  try {
    c10::intrusive_ptr<c10d::Backend> inner;
    if (backend == torch::kBackendName) {
      Result<c10::intrusive_ptr<c10d::Backend>> shoal = make_shoal(job, all_ranks(job), store);
      if (!shoal.ok()) return shoal.status();
      inner = std::move(shoal).value();
    } else if (backend == "gloo") {
      Result<c10::intrusive_ptr<c10d::Backend>> gloo =
          make_gloo(store, job.rank(), job.size(), torch::own_address(*job.control), job.timeout);
      if (!gloo.ok()) return gloo.status();
      inner = std::move(gloo).value();
    } else if (backend == "mpi") {
      Result<c10::intrusive_ptr<c10d::Backend>> mpi = make_mpi(job.rank(), job.size());
      if (!mpi.ok()) return mpi.status();
      inner = std::move(mpi).value();
    } else if (backend == "nccl") {
      Result<c10::intrusive_ptr<c10d::Backend>> nccl =
          make_nccl(store, job.rank(), job.size(), job.device.index(), job.timeout);
      if (!nccl.ok()) return nccl.status();
      inner = std::move(nccl).value();
    } else {
      return Status(StatusCode::invalid_argument, "unknown backend \"" + backend + "\"; known: shoal, gloo, mpi, nccl");
    }
    // The same type for all: the reducer does not use c10d's own names, and only this program uses the clock.
    constexpr auto kType = c10d::ProcessGroup::BackendType::CUSTOM;
    auto group = c10::make_intrusive<c10d::ProcessGroup>(store, job.rank(), job.size());
    group->setBackend(job.device.type(), kType, with_clock(std::move(inner), std::move(clock)));
    group->setDefaultBackend(kType);
    group->setGroupName(name);
    return group;
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, torch::plain_message(error));
  }
}

}  // namespace shoal::train
