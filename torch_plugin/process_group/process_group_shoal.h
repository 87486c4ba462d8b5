// shoal as a backend of c10d, for LibTorch programs and, through torch_plugin/python, for PyTorch.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/communicator.h>

#include "torch_plugin/process_group/work_shoal.h"

namespace shoal::torch {

inline constexpr const char* kBackendName = "shoal";

/// A c10d backend for CPU tensors: allreduce, broadcast, allgather, _allgather_base and barrier. Everything else is answered by
/// c10d's own "Backend shoal does not support ...".
///
/// A tensor may have any strides. One without holes (contiguous, channels_last, transposed) is used where it lies, so it must
/// be laid out alike on all ranks, as Gloo demands too; one with holes is copied. A call takes one tensor per rank.
///
/// Errors: a bad argument throws c10::ValueError at once; whatever shoal reports is thrown as c10::DistBackendError with
/// shoal's message, by the call itself or by Work::wait and the future. Thread rule: as shoal::Communicator: any thread may
/// call, every rank in the same order.
class ProcessGroupShoal final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options(kBackendName, timeout) {}
    std::string algorithm;   ///< force this algorithm ("" = shoal chooses)
    std::string transports;  ///< force these transports ("" = the best that reach)
  };

  /// Joins `size` ranks through `store`. Collective: every rank calls it. `options` may be null.
  /// Throws c10::DistBackendError when a rank does not come within options->timeout.
  ProcessGroupShoal(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                    c10::intrusive_ptr<Options> options = nullptr);
  /// Fails what is in flight.
  ~ProcessGroupShoal() override;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options = {}) override;

  /// A tensor in memory that the ranks of a host share (shoal::mem_alloc): what is reduced there is not copied first. Contents
  /// undefined. torch's Reducer puts its buckets there where DDP_DISABLE_COMM_MEM=0. Throws c10::ValueError for another device.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;  // NOLINT(google-runtime-int): torch's signature
  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }

  /// Every rank counts its own calls from zero, so there is nothing to agree on.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return calls_; }

  /// Fails what is in flight, here and on every other rank, and every later call.
  void abort() override;
  /// Nothing: the destructor gives everything back, and a hard stop here would fail what slower ranks are still finishing.
  void shutdown() override {}
  c10d::ErrorType getError() override;

  /// What shoal tells about itself: nodes, the last call's algorithm and transport, memory held.
  [[nodiscard]] const shoal::Communicator& communicator() const { return *communicator_; }

 private:
  [[nodiscard]] CallOptions call_options(std::chrono::milliseconds timeout) const;
  c10::intrusive_ptr<c10d::Work> start(WorkShoal::Call call, Result<shoal::Work> operation);

  const c10::intrusive_ptr<Options> options_;
  std::atomic<std::uint64_t> calls_{0};
  std::unique_ptr<shoal::Communicator> communicator_;
};

}  // namespace shoal::torch
