// shoal as a backend of c10d, for LibTorch programs and, through torch_plugin/python, for PyTorch.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <shoal/communicator.h>
#include <shoal/cuda.h>

#include "torch_plugin/process_group/call_scope.h"
#include "torch_plugin/process_group/capabilities.h"
#include "torch_plugin/process_group/completion_hook.h"
#include "torch_plugin/process_group/flight_recorder.h"
#include "torch_plugin/process_group/shared_allocator.h"
#include "torch_plugin/process_group/start_round.h"
#include "torch_plugin/process_group/work_shoal.h"

namespace shoal::torch {

inline constexpr const char* kBackendName = "shoal";

class DeviceStreams;
class WorkStream;

/// A c10d backend: every collective, point-to-point messages, groups that share their parent's links.
///
/// All tensors of a call lie on the CPU or on one other device ("device tensors"). Sparse tensors are supported only on the
/// CPU.
///
/// On CUDA devices collectives work on device memory, through a StreamCommunicator (<shoal/cuda.h>). As with NCCL's backend
/// they return at once and run in a stream of their own, after the work in the caller's current stream (WorkStream). The
/// first such collective of a group, or eagerConnectSingleDevice(), connects its ranks: in that call all ranks must pass
/// tensors on a CUDA device, and afterwards each rank must keep using the same device. Messages use streams only after
/// eagerConnectSingleDevice(), because two ranks alone cannot connect the group.
///
/// If a rank cannot use CUDA this way, and for all other calls and devices, elements go through host memory. A call then
/// waits in the caller's thread until its inputs have arrived there in the order of the current stream. After that it
/// continues by itself, and its result moves to the device in a separate stream (WorkBase defines what waits for that). Ranks
/// may use different devices in one such call.
///
/// A tensor may have any strides, and the ranks' tensors different ones: elements correspond by their logical index. A
/// contiguous tensor is used in place, every other one (transposed, channels_last, with holes) is copied. A call takes one
/// tensor per rank. SUM and PRODUCT of integers wrap; AVG of integers is exact and rounded toward zero, on CUDA devices
/// through host memory.
///
/// While a call waits for other ranks in the main thread of a Python program, that program's signal handlers run, at most 100
/// ms late. An exception that a handler raises ends the call and aborts the group: the errors of the other ranks name this
/// rank and the exception. (This does not hold for waits inside torch: those for a future, or of DDP's reducer in backward.)
///
/// Errors: a bad argument throws c10::ValueError at once and leaves the group usable. All other errors are thrown as
/// c10::DistBackendError with shoal's message, by the call itself or by Work::wait and the future. Thread rule: as
/// shoal::Communicator: any thread may call, every rank in the same order; one thread must call both startCoalescing and
/// endCoalescing.
class ProcessGroupShoal final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options(kBackendName, timeout) {}
    std::string algorithm;   ///< force this algorithm ("" = shoal chooses)
    std::string transports;  ///< force these transports ("" = the best ones that reach all ranks)
    /// Devices of this type hold CUDA memory. All other devices go through host memory; with CPU, all devices do. Must be
    /// equal on all ranks.
    c10::DeviceType cuda_devices = c10::DeviceType::CUDA;
    /// The communicator options of the environment, overridden by these.
    [[nodiscard]] CommunicatorOptions for_communicator() const;
    c10::intrusive_ptr<c10d::Backend::Options> clone() const SHOAL_C10D_SINCE_2_14 {
      return c10::make_intrusive<Options>(*this);
    }
  };

  /// Joins `size` ranks through `store`. Collective: every rank calls it. `options` may be null. Throws c10::DistBackendError
  /// if a rank does not join within options->timeout.
  ProcessGroupShoal(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                    c10::intrusive_ptr<Options> options = nullptr);
  /// Takes ownership of an existing communicator. monitoredBarrier() and groups made from this one use `store`.
  ProcessGroupShoal(std::unique_ptr<shoal::Communicator> communicator, StartRound round, c10::intrusive_ptr<Options> options);
  /// Fails calls in flight. After calls on a CUDA device, call shutdown() first: otherwise the ranks wait for each other only
  /// for a few seconds.
  ~ProcessGroupShoal() override;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  SHOAL_C10D_CAPABILITIES

  // Reductions. PREMUL_SUM is supported too.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options = {}) override;
  /// The sum of sparse tensors (COO): the result holds the union of the ranks' indices. allreduce calls this for such
  /// tensors. Before it returns, it waits until the other ranks have sent their numbers of indices.
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceCoalescedOptions& options = {}) override;

  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options = {}) override;
  /// Parts may differ in size if every rank passes the same sizes.
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::ReduceScatterOptions& options = {}) override;

  // Movements. The parts of allgather, gather and scatter may differ in size from rank to rank. For allgather every rank must
  // pass the same sizes; for gather and scatter only the root knows them. In a gather or scatter on streams they must be
  // equal.
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors,
                                           const c10d::BroadcastOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::AllgatherOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                                     std::vector<at::Tensor>& inputs,
                                                     const c10d::AllgatherOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::AllgatherOptions& options = {}) override;

  c10::intrusive_ptr<c10d::Work> gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                        const c10d::GatherOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                         const c10d::ScatterOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<std::int64_t>& output_splits,
                                               std::vector<std::int64_t>& input_splits,
                                               const c10d::AllToAllOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> alltoall(std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
                                          const c10d::AllToAllOptions& options = {}) override;

  // Point to point. After `recvAnysource`, Work::sourceRank() is the sender. On streams (above) messages and collectives run
  // one after the other as blocking calls do, including those of other groups if their streams share a queue of the device.
  // Ranks that exchange messages must put them into a block from startCoalescing() to endCoalescing(). The messages of a
  // block start together at its end, at most 32; those beyond SHOAL_CUDA_STAGING / 32 may wait for the receivers of the other
  // messages. Both ends need tensors on the device, and recvAnysource is refused there.
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

  // Barriers.
  /// Before it begins, waits for the work in the current streams of the devices named in `options`, if any.
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options = {}) override;
  /// Waits for every rank through the store, so it also reports a rank that hangs in another call. Rank 0 throws a
  /// c10::DistBackendError that names the first missing rank, or all of them with `wait_all_ranks`; the other ranks receive
  /// the failure. Thread rule: one thread at a time.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks = false) override;

  /// The calls between startCoalescing() and endCoalescing() start at the latter, together, as one work. If an exception
  /// skipped the end of a block, the next block ends it: its calls continue.
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  // Groups.
  /// A group of `ranks` of this one, in the order of their new ranks, over the same threads and links. Only the members call
  /// it. Throws c10::ValueError for a list that contains a rank twice or lacks this one.
  c10::intrusive_ptr<ProcessGroupShoal> subgroup(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                                 c10::intrusive_ptr<Options> options);
  /// The same with c10d's interface: null if this rank is not among `ranks`.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  /// A group of all ranks but these. Only the remaining ranks call it; calls in flight here continue.
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<std::int64_t>& ranks_to_exclude, int flags = 0,
                                           const c10::intrusive_ptr<c10d::Backend::Options>& options = nullptr) override;

  /// A group of members of this one and other processes, `size` in all, that join through `store`; this rank has number
  /// `rank` there. It has links of its own. Collective over the new group.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options, const int& rank,
                                          const int& size) override;

  /// A tensor in memory that the ranks of a host share (shoal::mem_alloc): reductions on it skip the first copy. Contents
  /// undefined. torch's Reducer allocates its buckets there if DDP_DISABLE_COMM_MEM=0. On a device: ordinary memory.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;  // NOLINT(google-runtime-int): torch's signature

  /// The allocator of such memory, for code that makes tensors with at::empty and similar functions.
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return shared_allocator(); }

  /// From here to endTimeEstimate() no call is executed: each is checked, ends at once and does not touch its tensors. A call
  /// that depends on the data of other ranks (a sum of sparse tensors) throws c10::ValueError. One thread must call both, as
  /// with startCoalescing.
  void startTimeEstimate() SHOAL_C10D_SINCE_2_15;  // NOLINT(readability-identifier-naming): torch's name
  /// Microseconds of those calls in sequence, as the Selector predicts them.
  float endTimeEstimate() SHOAL_C10D_SINCE_2_15;  // NOLINT(readability-identifier-naming): torch's name

  /// Creates the state for calls on a CUDA device, and allows messages on streams. Collective, before the first message;
  /// torch calls it if init_process_group() is given a device_id.
  void eagerConnectSingleDevice(at::Device device) override;
  /// Lets the other ranks of this node read the memory behind `tensor`, so that it is not copied before it is sent: for
  /// buffers that are used repeatedly. Keeps the tensor. Collective, every rank with a tensor of its own; the host waits.
  /// Returns whether it was possible; calls work without. Throws c10::ValueError for a tensor that is not on a CUDA device.
  bool registerBuffer(const at::Tensor& tensor);  // NOLINT(readability-identifier-naming): torch's name

  /// Every rank counts its own calls from zero, so the ranks need not agree on a number.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return calls_; }

  /// Durations are always measured.
  void enableCollectivesTiming() override {}
  /// From now on `hook` is called for every call of this group when it has ended or failed, one after the other in a separate
  /// thread. Register it before the calls, and once: a second registration throws c10::ValueError.
  void registerOnCompletionHook(CompletionHook::Function&& hook) override;
  /// Returns when the hook has been called for every call so far. Throws c10::ValueError if there is no hook.
  void waitForPendingWorks() override;

  /// Fails all calls in flight, here and on every other rank, and every later call.
  void abort() override;
  /// Leaves the group. As the destructor, for a process that ends while other objects still refer to the group. Slower ranks
  /// finish calls that do not need this rank; after calls on a CUDA device the ranks wait for each other here, at most the
  /// timeout. Later calls throw c10::DistBackendError. Must not run while another thread makes a call.
  void shutdown() override;
  c10d::ErrorType getError() override;

  /// Information from shoal: nodes, the last call's algorithm and transport, memory held.
  [[nodiscard]] const shoal::Communicator& communicator() const {
    check_alive();
    return *communicator_;
  }

 private:
  [[nodiscard]] c10::intrusive_ptr<Options> options_for(const std::vector<int>& ranks,
                                                        const c10::intrusive_ptr<c10d::Backend::Options>& wanted) const;
  void check_alive() const;
  [[nodiscard]] std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds timeout) const;
  [[nodiscard]] CallOptions call_options(std::chrono::milliseconds timeout);
  /// The work of a call that shoal has accepted or refused.
  c10::intrusive_ptr<c10d::Work> start(WorkShoal::Call call, Result<shoal::Work> operation, const CallOptions& options);
  /// The object that makes a call with `tensor` in device memory; null if the call goes through host memory. May connect the
  /// ranks.
  std::shared_ptr<DeviceStreams> streams_for(const char* call, const at::Tensor& tensor, const CallOptions& options);
  std::shared_ptr<DeviceStreams> streams_on(const char* call, c10::Device device);
  /// The same for a message, but it never connects ranks: non-null only if eagerConnectSingleDevice() has created the
  /// streams.
  std::shared_ptr<DeviceStreams> streams_for_message(const char* call, const at::Tensor& tensor, const CallOptions& options);
  using CallOnStream = std::function<Result<StreamWork>(StreamCommunicator& communicator, void* stream)>;
  /// The work of a call on a stream; `on_stream` makes it.
  c10::intrusive_ptr<c10d::Work> start(const std::shared_ptr<DeviceStreams>& streams, WorkShoal::Call call,
                                       const CallOptions& options, const CallOnStream& on_stream);
  /// A call on a stream, its work and, if it is one of several messages that start together, the message.
  struct OnStream {
    WorkShoal::Call call;
    c10::intrusive_ptr<WorkStream> work;
    StreamMessage message;
  };
  /// Several calls that `on_stream` makes at once; `name` for messages.
  void start(const std::shared_ptr<DeviceStreams>& streams, const char* name, const std::vector<OnStream>& calls,
             const CallOptions& options, const CallOnStream& on_stream);
  /// Makes a call where its tensors can be reached, with the same arguments in both cases: on the StreamCommunicator if there
  /// are streams, else on the Communicator.
  template <typename OfHost, typename OfDevice, typename... Arguments>
  c10::intrusive_ptr<c10d::Work> make(const std::shared_ptr<DeviceStreams>& streams, WorkShoal::Call call,
                                      const CallOptions& how, OfHost of_host, OfDevice of_device,
                                      const Arguments&... arguments) {
    if (streams == nullptr) return start(std::move(call), std::invoke(of_host, *communicator_, arguments..., how), how);
    return start(streams, std::move(call), how, [&](StreamCommunicator& communicator, void* stream) {
      return std::invoke(of_device, communicator, arguments..., stream, how.timeout);
    });
  }
  /// All existing streams.
  [[nodiscard]] std::vector<std::shared_ptr<DeviceStreams>> all_streams() const;
  /// Counts a call, and records it in the flight recorder.
  std::pair<std::uint64_t, RecorderEntry> note(const WorkShoal::Call& call, const CallOptions& options);
  /// Several calls as one work, shown in profiles as `title` with `inputs`.
  c10::intrusive_ptr<c10d::Work> together(const char* name, const char* title, const std::vector<at::Tensor>& inputs,
                                          std::vector<at::Tensor> outputs, std::vector<c10::intrusive_ptr<c10d::Work>> parts);
  /// One call per tensor, make(i, title), as one work. Profiles do not show the parts.
  template <typename Make>
  c10::intrusive_ptr<c10d::Work> all_of(const char* name, const char* title, const std::vector<at::Tensor>& inputs,
                                        std::vector<at::Tensor> outputs, Make make) {
    if (inputs.size() == 1) return make(0, title);
    std::vector<c10::intrusive_ptr<c10d::Work>> parts;
    {
      const CallScope scope;
      for (std::size_t i = 0; i < inputs.size(); ++i) parts.push_back(make(i, nullptr));
    }
    return together(name, title, inputs, std::move(outputs), std::move(parts));
  }

  // The calls of the same names with a title for profiles (null: none). The layout and types of their tensors have been
  // checked.
  c10::intrusive_ptr<c10d::Work> all_reduce(const at::Tensor& tensor, const c10d::AllreduceOptions& options, const char* title);
  c10::intrusive_ptr<c10d::Work> all_gather(const std::vector<at::Tensor>& parts, const at::Tensor& input,
                                            const c10d::AllgatherOptions& options, const char* title);
  c10::intrusive_ptr<c10d::Work> all_gather_into(const at::Tensor& output, const at::Tensor& input,
                                                 const c10d::AllgatherOptions& options, const char* title);
  c10::intrusive_ptr<c10d::Work> receive(std::vector<at::Tensor>& tensors, c10d::OpType type, const char* title, int peer,
                                         int tag);
  /// The work of a message on streams that starts at the end of the block; and the function that starts all of them.
  c10::intrusive_ptr<c10d::Work> start_with_block(const std::shared_ptr<DeviceStreams>& streams, WorkShoal::Call call,
                                                  const StreamMessage& message);
  struct Coalesced;
  void start_messages(const Coalesced& block);
  c10::intrusive_ptr<c10d::Work> reduce_scatter_from(const at::Tensor& output, const at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options, const char* title);

  const c10::intrusive_ptr<Options> options_;
  const StartRound round_;                       ///< of the group of all ranks, from which this group may have been made
  const c10::intrusive_ptr<c10d::Store> store_;  ///< holds keys of this round only
  std::atomic<std::uint64_t> calls_{0};
  std::uint64_t monitored_barriers_ = 0;
  struct Coalesced {
    CallScope scope;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::shared_ptr<DeviceStreams> streams;  ///< of the messages
    std::vector<OnStream> messages;          ///< on streams: they start at the end
  };
  std::unique_ptr<Coalesced> coalesced_;          ///< while coalescing
  std::optional<double> estimate_us_;             ///< between startTimeEstimate() and endTimeEstimate()
  c10::intrusive_ptr<c10d::Store> merged_store_;  ///< the store of the last merge(); null before the first
  c10::weak_intrusive_ptr<c10d::Backend> merged_{c10::intrusive_ptr<c10d::Backend>()};  ///< the group of the last merge()
  std::unique_ptr<const CompletionHook> completion_hook_;
  FlightRecorder recorder_;
  std::shared_ptr<shoal::Communicator> communicator_;  ///< null after shutdown()
  std::mutex meeting_mutex_;                           ///< held while streams are made; before streams_mutex_
  mutable std::mutex streams_mutex_;
  /// Null: tensors of that device go through host memory. After communicator_, which they use. Guarded by streams_mutex_.
  std::map<c10::DeviceIndex, std::shared_ptr<DeviceStreams>> streams_;
  /// The device whose messages use streams_; set on all ranks or on none. Guarded by streams_mutex_.
  std::optional<c10::Device> connected_;
};

}  // namespace shoal::torch
