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

/// A c10d backend: every collective, point to point, groups that share their parent's links.
///
/// Tensors lie on the CPU or, all of a call, on one other device ("device tensors"). Sparse ones are served on the CPU only.
///
/// On CUDA devices collectives work where the tensors lie, by a StreamCommunicator (<shoal/cuda.h>): as with NCCL's backend
/// they return at once and go on in a stream of their own, after what the caller's current stream holds (WorkStream). The first
/// one of a group, or eagerConnectSingleDevice(), is a meeting of its ranks: all of them give tensors on a CUDA device then,
/// and from then on each on the same one. Messages do so after eagerConnectSingleDevice() only, as two ranks cannot hold a
/// meeting. Where some rank cannot, and for all other calls and devices, elements travel by way of host memory: a call waits in
/// the caller's thread until its inputs have come there in the order of the current stream; then it goes on by itself, and its
/// result moves to the device in a stream of its own (WorkBase says what waits for that). Ranks may use different devices in
/// one such call.
///
/// A tensor may have any strides, and the ranks' tensors different ones: elements belong together by their logical index. A
/// contiguous tensor is used where it lies, every other one (transposed, channels_last, with holes) is copied. A call takes one
/// tensor per rank. SUM and PRODUCT of integers wrap; AVG of integers is exact and rounded toward zero, on CUDA devices by way
/// of host memory.
///
/// While a call waits for other ranks in the main thread of a Python program, that program's signal handlers run, at most 100
/// ms late. An exception that one of them raises leaves the call and aborts the group: the other ranks' errors name this rank
/// and the exception. (A wait inside of torch is not one of these: that of a future, or of DDP's reducer in backward.)
///
/// Errors: a bad argument throws c10::ValueError at once and leaves the group usable; whatever shoal reports is thrown as
/// c10::DistBackendError with shoal's message, by the call itself or by Work::wait and the future. Thread rule: as
/// shoal::Communicator: any thread may call, every rank in the same order; startCoalescing to endCoalescing is one thread's.
class ProcessGroupShoal final : public c10d::Backend {
 public:
  struct Options final : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
        : c10d::Backend::Options(kBackendName, timeout) {}
    std::string algorithm;   ///< force this algorithm ("" = shoal chooses)
    std::string transports;  ///< force these transports ("" = the best that reach)
    /// Devices of this type hold CUDA memory; those of others, and with CPU all, are served by way of host memory. The same on
    /// all ranks.
    c10::DeviceType cuda_devices = c10::DeviceType::CUDA;
    /// The environment's options of a communicator with these in their place.
    [[nodiscard]] CommunicatorOptions for_communicator() const;
    c10::intrusive_ptr<c10d::Backend::Options> clone() const SHOAL_C10D_SINCE_2_14 {
      return c10::make_intrusive<Options>(*this);
    }
  };

  /// Joins `size` ranks through `store`. Collective: every rank calls it. `options` may be null.
  /// Throws c10::DistBackendError when a rank does not come within options->timeout.
  ProcessGroupShoal(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                    c10::intrusive_ptr<Options> options = nullptr);
  /// Takes over a communicator that exists. `store` serves monitoredBarrier() and groups made out of this one.
  ProcessGroupShoal(std::unique_ptr<shoal::Communicator> communicator, StartRound round, c10::intrusive_ptr<Options> options);
  /// Fails what is in flight. After calls on a CUDA device, shutdown() should come before: without, the ranks wait for each
  /// other for a few seconds only.
  ~ProcessGroupShoal() override;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override;

  SHOAL_C10D_CAPABILITIES

  // Reductions. PREMUL_SUM is served too.
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options = {}) override;
  /// The sum of sparse tensors (COO): the result holds the union of the ranks' indices. allreduce comes here with such tensors.
  /// Waits for the other ranks' numbers of indices before it returns.
  c10::intrusive_ptr<c10d::Work> allreduce_sparse(std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> allreduce_coalesced(std::vector<at::Tensor>& tensors,
                                                     const c10d::AllreduceCoalescedOptions& options = {}) override;

  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options = {}) override;
  /// Parts may differ in size, where every rank gives the same sizes.
  c10::intrusive_ptr<c10d::Work> reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                                                const c10d::ReduceScatterOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::ReduceScatterOptions& options = {}) override;
  c10::intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(std::vector<at::Tensor>& outputs,
                                                                 std::vector<at::Tensor>& inputs,
                                                                 const c10d::ReduceScatterOptions& options = {}) override;

  // Movements. The parts of allgather, gather and scatter may differ in size from rank to rank. For allgather every rank must
  // give the same sizes; for gather and scatter the root alone knows them. They must be equal in a gather or scatter on
  // streams.
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

  // Point to point. `recvAnysource` tells who sent by Work::sourceRank(). On streams (above) messages follow each other and the
  // collectives as blocking calls would, also those of other groups where their streams share a queue of the device: ranks that
  // exchange make a block of startCoalescing() to endCoalescing(), whose messages go on together from its end, at most 32;
  // those beyond SHOAL_CUDA_STAGING / 32 may wait for the receivers of the others. Both ends have tensors on the device, and
  // recvAnysource is refused there.
  c10::intrusive_ptr<c10d::Work> send(std::vector<at::Tensor>& tensors, int destination, int tag) override;
  c10::intrusive_ptr<c10d::Work> recv(std::vector<at::Tensor>& tensors, int source, int tag) override;
  c10::intrusive_ptr<c10d::Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;

  // Barriers.
  /// Before it begins, waits for what the current streams of the devices named in `options` hold, if any are.
  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& options = {}) override;
  /// Waits for every rank through the store, so it also tells which rank hangs in another call. Rank 0 throws a
  /// c10::DistBackendError that names the first missing rank, or all of them with `wait_all_ranks`; the others learn that it
  /// failed. Thread rule: one thread at a time.
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks = false) override;

  /// What is called between the two starts at the second, together, as one work. A block that an exception left without its
  /// end is ended by the next one: its calls go on.
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;

  // Groups.
  /// A group of `ranks` of this one, in the order of their new ranks, over the same threads and links. Only the members call
  /// it. Throws c10::ValueError for a list that names a rank twice or leaves this one out.
  c10::intrusive_ptr<ProcessGroupShoal> subgroup(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                                 c10::intrusive_ptr<Options> options);
  /// The same as c10d asks for it: null where this rank is not among `ranks`.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  /// A group of all ranks but these. Only those that stay call it; calls in flight here go on.
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<std::int64_t>& ranks_to_exclude, int flags = 0,
                                           const c10::intrusive_ptr<c10d::Backend::Options>& options = nullptr) override;

  /// A group of this one's members and others, `size` in all, that meet at `store`; this rank is number `rank` there. It has
  /// links of its own. Collective over the new group.
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options, const int& rank,
                                          const int& size) override;

  /// A tensor in memory that the ranks of a host share (shoal::mem_alloc): what is reduced there is not copied first. Contents
  /// undefined. torch's Reducer puts its buckets there where DDP_DISABLE_COMM_MEM=0. On a device: ordinary memory.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;  // NOLINT(google-runtime-int): torch's signature

  /// What makes such memory, for those who make tensors in it with at::empty's relatives.
  std::shared_ptr<c10::Allocator> getMemAllocator() override { return shared_allocator(); }

  /// From here to endTimeEstimate() no call is made: each is checked, ends at once and leaves its tensors alone. What depends
  /// on the others' data (a sum of sparse tensors) throws c10::ValueError. Both are one thread's, like startCoalescing.
  void startTimeEstimate() SHOAL_C10D_SINCE_2_15;
  /// Microseconds that those calls take, one after the other, as the Selector predicts them.
  float endTimeEstimate() SHOAL_C10D_SINCE_2_15;

  /// Makes what the calls on a CUDA device need, and lets messages go that way. Collective, before the first message; what
  /// torch calls where init_process_group() is given a device_id.
  void eagerConnectSingleDevice(at::Device device) override;
  /// Lets the other ranks of this node read the memory behind `tensor`, so that it need not be copied before it travels: for
  /// buffers that are used again and again. Keeps the tensor. Collective, every rank with one of its own; the host waits.
  /// Whether it could be done; calls work without. Throws c10::ValueError for a tensor that is not on a CUDA device.
  bool registerBuffer(const at::Tensor& tensor);

  /// Every rank counts its own calls from zero, so there is nothing to agree on.
  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return calls_; }

  /// Every duration is measured anyhow.
  void enableCollectivesTiming() override {}
  /// From now on tells `hook` of every call of this group when it has ended, well or not, one after the other in a thread of
  /// its own. Before the calls, and once: a second one throws c10::ValueError.
  void registerOnCompletionHook(CompletionHook::Function&& hook) override;
  /// Returns when the hook has been told of every call so far. Throws c10::ValueError where there is no hook.
  void waitForPendingWorks() override;

  /// Fails what is in flight, here and on every other rank, and every later call.
  void abort() override;
  /// Leaves the group: as the destructor, for those who end a process while something still refers to the group. Slower ranks
  /// finish what does not need this one; after calls on a CUDA device the ranks wait for each other here, at most the timeout.
  /// Later calls throw c10::DistBackendError. Not while another thread makes a call.
  void shutdown() override;
  c10d::ErrorType getError() override;

  /// What shoal tells about itself: nodes, the last call's algorithm and transport, memory held.
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
  /// What makes a call with `tensor` where it lies; null where that travels by way of host memory. May be a meeting.
  std::shared_ptr<DeviceStreams> streams_for(const char* call, const at::Tensor& tensor, const CallOptions& options);
  std::shared_ptr<DeviceStreams> streams_on(const char* call, c10::Device device);
  /// The same for a message, and never a meeting: on streams where eagerConnectSingleDevice() has made them.
  std::shared_ptr<DeviceStreams> streams_for_message(const char* call, const at::Tensor& tensor, const CallOptions& options);
  using CallOnStream = std::function<Result<StreamWork>(StreamCommunicator& communicator, void* stream)>;
  /// The work of a call on a stream; `on_stream` makes it.
  c10::intrusive_ptr<c10d::Work> start(const std::shared_ptr<DeviceStreams>& streams, WorkShoal::Call call,
                                       const CallOptions& options, const CallOnStream& on_stream);
  /// A call on a stream, its work, and what it is where it is one of several messages that go on together.
  struct OnStream {
    WorkShoal::Call call;
    c10::intrusive_ptr<WorkStream> work;
    StreamMessage message;
  };
  /// Several that `on_stream` makes at once; `name` for messages.
  void start(const std::shared_ptr<DeviceStreams>& streams, const char* name, const std::vector<OnStream>& calls,
             const CallOptions& options, const CallOnStream& on_stream);
  /// A call where its tensors can be reached, with the same arguments on either side: of a StreamCommunicator where there are
  /// streams, else of the Communicator.
  template <typename OfHost, typename OfDevice, typename... Arguments>
  c10::intrusive_ptr<c10d::Work> make(const std::shared_ptr<DeviceStreams>& streams, WorkShoal::Call call,
                                      const CallOptions& how, OfHost of_host, OfDevice of_device,
                                      const Arguments&... arguments) {
    if (streams == nullptr) return start(std::move(call), std::invoke(of_host, *communicator_, arguments..., how), how);
    return start(streams, std::move(call), how, [&](StreamCommunicator& communicator, void* stream) {
      return std::invoke(of_device, communicator, arguments..., stream, how.timeout);
    });
  }
  /// Those that there are.
  [[nodiscard]] std::vector<std::shared_ptr<DeviceStreams>> all_streams() const;
  /// Counts a call, and notes it in the flight recorder.
  std::pair<std::uint64_t, RecorderEntry> note(const WorkShoal::Call& call, const CallOptions& options);
  /// Several calls as one work, which profiles show under `title` with `inputs`.
  c10::intrusive_ptr<c10d::Work> together(const char* name, const char* title, const std::vector<at::Tensor>& inputs,
                                          std::vector<at::Tensor> outputs, std::vector<c10::intrusive_ptr<c10d::Work>> parts);
  /// One call a tensor, make(i, title), as one work. The parts do not show in profiles.
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

  // The calls of the same names with a title for profiles (null: none). Their tensors' layout and types have been checked.
  c10::intrusive_ptr<c10d::Work> all_reduce(const at::Tensor& tensor, const c10d::AllreduceOptions& options, const char* title);
  c10::intrusive_ptr<c10d::Work> all_gather(const std::vector<at::Tensor>& parts, const at::Tensor& input,
                                            const c10d::AllgatherOptions& options, const char* title);
  c10::intrusive_ptr<c10d::Work> all_gather_into(const at::Tensor& output, const at::Tensor& input,
                                                 const c10d::AllgatherOptions& options, const char* title);
  c10::intrusive_ptr<c10d::Work> receive(std::vector<at::Tensor>& tensors, c10d::OpType type, const char* title, int peer,
                                         int tag);
  /// The work of a message on streams that starts at the end of the block; and the start of all of them.
  c10::intrusive_ptr<c10d::Work> start_with_block(const std::shared_ptr<DeviceStreams>& streams, WorkShoal::Call call,
                                                  const StreamMessage& message);
  struct Coalesced;
  void start_messages(const Coalesced& block);
  c10::intrusive_ptr<c10d::Work> reduce_scatter_from(const at::Tensor& output, const at::Tensor& input,
                                                     const c10d::ReduceScatterOptions& options, const char* title);

  const c10::intrusive_ptr<Options> options_;
  const StartRound round_;                       ///< of the group of all ranks, from which this group may be made
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
  c10::intrusive_ptr<c10d::Store> merged_store_;  ///< where the last merge() met; null before the first
  c10::weak_intrusive_ptr<c10d::Backend> merged_{c10::intrusive_ptr<c10d::Backend>()};  ///< what it made
  std::unique_ptr<const CompletionHook> completion_hook_;
  FlightRecorder recorder_;
  std::shared_ptr<shoal::Communicator> communicator_;  ///< null after shutdown()
  std::mutex meeting_mutex_;                           ///< held while streams are made; before streams_mutex_
  mutable std::mutex streams_mutex_;
  /// Null: tensors of that device travel by way of host memory. After communicator_: they use it. Guarded by streams_mutex_.
  std::map<c10::DeviceIndex, std::shared_ptr<DeviceStreams>> streams_;
  /// Where messages go by streams_: all ranks have one or none has. Guarded by streams_mutex_.
  std::optional<c10::Device> connected_;
};

}  // namespace shoal::torch
