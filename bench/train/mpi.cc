#include "bench/train/mpi.h"

#ifdef SHOAL_TRAIN_MPI
#include <mpi.h>

#include <climits>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "torch_plugin/process_group/conversions.h"
#endif

namespace shoal::train {

#ifdef SHOAL_TRAIN_MPI

namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  C10_THROW_ERROR(DistBackendError, std::string("mpi: ") + call + ": " + std::string(text, static_cast<std::size_t>(length)));
}

MPI_Datatype to_mpi(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kInt:
      return MPI_INT32_T;
    case at::kLong:
      return MPI_INT64_T;
    default:
      C10_THROW_ERROR(TypeError, std::string("mpi: no sum of ") + c10::toString(type));
  }
}

int to_count(std::int64_t elements) {
  TORCH_CHECK_VALUE(elements <= INT_MAX, "mpi: ", elements, " elements do not fit into MPI's int");
  return static_cast<int>(elements);
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "mpi: takes one tensor, not ", tensors.size());
  TORCH_CHECK_VALUE(tensors[0].is_contiguous() && tensors[0].is_cpu(), "mpi: takes contiguous CPU tensors");
  return tensors[0];
}

int byte_count(const at::Tensor& tensor) { return to_count(static_cast<std::int64_t>(tensor.nbytes())); }

class MpiWork final : public c10d::Work {
 public:
  MpiWork(int rank, c10d::OpType type, std::vector<at::Tensor> outputs)
      : c10d::Work(rank, type),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  bool isCompleted() override { return future_->completed(); }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    future_->waitAndThrow();
    return true;
  }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  void end(std::exception_ptr failure) {
    if (failure)
      future_->setError(std::move(failure));
    else
      future_->markCompleted(c10::IValue(outputs_));
  }

 private:
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class MpiBackend final : public c10d::Backend {
 public:
  /// Takes ownership of `communicator`.
  MpiBackend(MPI_Comm communicator, int rank, int size)
      : c10d::Backend(rank, size), communicator_(communicator), thread_([this] { run(); }) {}

  ~MpiBackend() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
    MPI_Comm_free(&communicator_);
    MPI_Finalize();
  }

  const std::string getBackendName() const override { return "mpi"; }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    TORCH_CHECK_VALUE(options.reduceOp == c10d::ReduceOp::SUM, "mpi: all_reduce supports only SUM");
    const at::Tensor tensor = only(tensors);
    const MPI_Datatype type = to_mpi(tensor.scalar_type());
    const int count = to_count(tensor.numel());
    return start(c10d::OpType::ALLREDUCE, tensors, [this, tensor, type, count] {
      check(MPI_Allreduce(MPI_IN_PLACE, tensor.data_ptr(), count, type, MPI_SUM, communicator_), "MPI_Allreduce");
    });
  }

  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    const at::Tensor tensor = only(tensors);
    const int root = static_cast<int>(options.rootRank);
    return start(c10d::OpType::BROADCAST, tensors, [this, tensor, root, count = byte_count(tensor)] {
      check(MPI_Bcast(tensor.data_ptr(), count, MPI_BYTE, root, communicator_), "MPI_Bcast");
    });
  }

  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& /*options*/) override {
    const at::Tensor input = only(inputs);
    TORCH_CHECK_VALUE(outputs.size() == 1 && outputs[0].size() == static_cast<std::size_t>(getSize()),
                      "mpi: all_gather takes an output for each rank");
    const std::vector<at::Tensor> parts = outputs[0];
    return start(c10d::OpType::ALLGATHER, parts, [this, input, parts, count = byte_count(input)] {
      const auto share = static_cast<std::int64_t>(input.nbytes());
      const at::Tensor all = at::empty({getSize(), share}, at::kByte);
      check(MPI_Allgather(input.data_ptr(), count, MPI_BYTE, all.data_ptr(), count, MPI_BYTE, communicator_), "MPI_Allgather");
      for (std::size_t rank = 0; rank < parts.size(); ++rank) {
        const at::Tensor part = all[static_cast<std::int64_t>(rank)].view(input.scalar_type()).view(input.sizes());
        at::Tensor(parts[rank]).copy_(part);
      }
    });
  }

  c10::intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions& /*options*/) override {
    return start(c10d::OpType::BARRIER, {}, [this] { check(MPI_Barrier(communicator_), "MPI_Barrier"); });
  }

 private:
  struct Call {
    c10::intrusive_ptr<MpiWork> work;
    std::function<void()> make;
  };

  c10::intrusive_ptr<c10d::Work> start(c10d::OpType type, std::vector<at::Tensor> outputs, std::function<void()> make) {
    auto work = c10::make_intrusive<MpiWork>(getRank(), type, std::move(outputs));
    {
      const std::lock_guard lock(mutex_);
      calls_.push_back({work, std::move(make)});
    }
    changed_.notify_all();
    return work;
  }

  void run() {
    while (true) {
      Call call;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stop_ || !calls_.empty(); });
        if (calls_.empty()) return;
        call = std::move(calls_.front());
        calls_.pop_front();
      }
      std::exception_ptr failure;
      try {
        call.make();
      } catch (...) {
        failure = std::current_exception();
      }
      call.make = {};
      call.work->end(failure);
    }
  }

  MPI_Comm communicator_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace

Result<c10::intrusive_ptr<c10d::Backend>> make_mpi(int rank, int size) {
  if (size > 1 && std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr && std::getenv("PMI_SIZE") == nullptr) {
    return Status(
        StatusCode::invalid_argument,
        "mpi: these processes were not started by mpirun; start shoal_train with mpirun -n RANKS (bench/cluster --mpi)");
  }
  int initialised = 0;
  int provided = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) return Status(StatusCode::unsupported, "mpi: a process can initialise MPI only once");
  try {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED)
      return Status(StatusCode::unsupported, "mpi: this MPI allows calls only from its first thread");
    int world = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (world != size) {
      return Status(StatusCode::invalid_argument,
                    "mpi: mpirun started " + std::to_string(world) + " ranks, but the job has " + std::to_string(size));
    }
    MPI_Comm communicator = MPI_COMM_NULL;  // with the ranks in the job's order
    check(MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &communicator), "MPI_Comm_split");
    MPI_Comm_set_errhandler(communicator, MPI_ERRORS_RETURN);
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<MpiBackend>(communicator, rank, size));
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, torch::plain_message(error));
  }
}

std::string mpi_version() {
  std::string version(MPI_MAX_LIBRARY_VERSION_STRING, '\0');
  int length = 0;
  if (MPI_Get_library_version(version.data(), &length) != MPI_SUCCESS) return {};
  version.resize(static_cast<std::size_t>(length));
  return version.substr(0, version.find(','));  // the rest describes the package
}

#else

std::string mpi_version() { return {}; }

Result<c10::intrusive_ptr<c10d::Backend>> make_mpi(int, int) {
  return Status(StatusCode::unsupported, "mpi: this program was built without MPI (Debian: libopenmpi-dev)");
}

#endif

}  // namespace shoal::train
