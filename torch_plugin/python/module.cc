// shoal._C: makes the process group known to Python. torch must have been imported before this module.
#include <unistd.h>

#include <atomic>
#include <chrono>

#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "torch_plugin/process_group/calls_in_flight.h"
#include "torch_plugin/process_group/interpreter.h"
#include "torch_plugin/process_group/process_group_shoal.h"
#include "torch_plugin/process_group/work_stream.h"

namespace {

/// As c10::intrusive_ptr, but releases Python's lock while the last reference is dropped: the destructor joins threads that
/// may be waiting for that lock.
template <typename T>
class GilReleasingPtr {
 public:
  GilReleasingPtr() = default;
  explicit GilReleasingPtr(T* raw) : pointer_(c10::intrusive_ptr<T>::unsafe_steal_from_new(raw)) {}
  GilReleasingPtr(c10::intrusive_ptr<T> pointer) : pointer_(std::move(pointer)) {}  // NOLINT(google-explicit-constructor)
  GilReleasingPtr(const GilReleasingPtr&) = default;
  GilReleasingPtr(GilReleasingPtr&&) noexcept = default;
  GilReleasingPtr& operator=(const GilReleasingPtr&) = default;
  GilReleasingPtr& operator=(GilReleasingPtr&&) noexcept = default;
  ~GilReleasingPtr() {
    if (!pointer_) return;
    if (PyGILState_Check() != 0) {
      const pybind11::gil_scoped_release unlocked;
      pointer_.reset();
    } else {
      pointer_.reset();
    }
  }
  T& operator*() const noexcept { return *pointer_; }
  T* operator->() const noexcept { return pointer_.get(); }
  [[nodiscard]] T* get() const noexcept { return pointer_.get(); }
  T* release() noexcept { return pointer_.release(); }
  operator c10::intrusive_ptr<T>() const { return pointer_; }  // NOLINT(google-explicit-constructor)

 private:
  c10::intrusive_ptr<T> pointer_;
};

}  // namespace

PYBIND11_DECLARE_HOLDER_TYPE(T, GilReleasingPtr<T>, true)

namespace {

/// The Python class of a work: c10d's class, except that callbacks attached to its future may wait for other calls.
template <typename T>
void define_work(py::module_& module, const char* name) {
  const py::object base = py::module_::import("torch._C._distributed_c10d").attr("Work");
  py::class_<T, GilReleasingPtr<T>>(module, name, base, "A torch.distributed.Work of the shoal backend.")
      .def(
          "get_future",
          [future_of = base.attr("get_future")](const py::object& self) {
            {
              T& work = self.cast<T&>();
              const py::gil_scoped_release unlocked;
              work.let_callbacks_wait();
            }
            return future_of(self);
          },
          "A torch.futures.Future of the result. Its callbacks may wait for other calls.");
}

}  // namespace

/// The thread in which Python ends, set when its atexit hooks run; 0 before.
std::atomic<pid_t> ending_in{0};

/// Python runs signal handlers only in its main thread, which is that of the process. Other threads need not take its lock.
std::optional<shoal::torch::Interruption> run_signal_handlers() {
  if (::gettid() != ::getpid() || Py_IsInitialized() == 0) return {};
  const py::gil_scoped_acquire locked;
  if (PyErr_CheckSignals() == 0) return {};
  const py::error_already_set error;
  std::string cause = py::cast<std::string>(error.type().attr("__name__"));
  try {
    if (const auto text = py::cast<std::string>(py::str(error.value())); !text.empty()) cause += ": " + text;
  } catch (const std::exception&) {  // the class has a __str__ that fails: only its name is used
  }
  return shoal::torch::Interruption{std::make_exception_ptr(error), cause};
}

/// While Python ends, it also ends a thread that asks for its lock. That would end the process, because C++ code is on that
/// thread's stack. So a thread that has waited in this library sleeps until the process has ended. At that time no other
/// thread can get here with Python's lock.
void stay_out_at_exit() {
  const pid_t ending = ending_in.load();
  if (ending == 0 || ending == ::gettid() || PyGILState_Check() != 0) return;
  for (;;) ::pause();
}

/// Fails all calls in flight. When this returns, all callbacks have run: afterwards Python cannot run any. Returns whether
/// they have run within `limit`.
bool end_calls_at_exit(std::chrono::milliseconds limit) {
  ending_in = ::gettid();
  return shoal::torch::CallsInFlight::end_all("the Python program of this rank ends while calls are in flight", limit);
}

PYBIND11_MODULE(_C, module) {
  shoal::torch::install_interpreter({&run_signal_handlers, &stay_out_at_exit});
  using shoal::torch::ProcessGroupShoal;
  using Options = ProcessGroupShoal::Options;

  module.doc() = "The shoal backend of torch.distributed; import shoal instead.";

  py::class_<ProcessGroupShoal, GilReleasingPtr<ProcessGroupShoal>>(
      module, "ProcessGroupShoal", py::module_::import("torch._C._distributed_c10d").attr("Backend"),
      "A torch.distributed backend for tensors on the CPU and on other devices; made by init_process_group(\"shoal\").")
      .def(
          "perform_nocolor_split", [](const ProcessGroupShoal&, const py::object&) {}, py::arg("device"),
          "Called by torch on the ranks that a split leaves out; does nothing.")
      .def("_start_time_estimate", &ProcessGroupShoal::startTimeEstimate, "Called by torch.distributed._time_estimator.")
      .def("_end_time_estimate", &ProcessGroupShoal::endTimeEstimate, "Predicted microseconds of the calls since then.")
      .def(
          "register_buffer", &ProcessGroupShoal::registerBuffer, py::arg("tensor"), py::call_guard<py::gil_scoped_release>(),
          "Lets the other ranks of this node read the memory behind a CUDA tensor, so that it is not copied before it is sent. "
          "Keeps the tensor. Collective; returns whether it was possible.")
      .def(
          "is_open", [](ProcessGroupShoal& self) { return self.getError() == c10d::ErrorType::SUCCESS; },
          "Whether the group is open: it has neither failed nor been aborted.");

  define_work<shoal::torch::WorkShoal>(module, "Work");
  define_work<shoal::torch::WorkStream>(module, "StreamWork");
  define_work<shoal::torch::WorkTogether>(module, "CoalescedWork");

  py::class_<Options, c10::intrusive_ptr<Options>>(
      module, "Options", py::module_::import("torch._C._distributed_c10d").attr("Backend").attr("Options"),
      "pg_options of init_process_group and new_group.")
      .def(py::init([](std::string algorithm, std::string transports) {
             auto options = c10::make_intrusive<Options>();
             options->algorithm = std::move(algorithm);
             options->transports = std::move(transports);
             return options;
           }),
           py::kw_only(), py::arg("algorithm") = "", py::arg("transports") = "")
      .def_readwrite("algorithm", &Options::algorithm, "Force this algorithm; empty: shoal chooses.")
      .def_readwrite("transports", &Options::transports,
                     "Force these transports, such as \"shm,tcp\"; empty: the best ones that reach all ranks.")
      .def("__deepcopy__", [](const Options& self, const py::object&) { return c10::make_intrusive<Options>(self); });

  module.def(
      "create",
      [](const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
         const std::string& group_id, std::vector<std::uint64_t> global_ranks, const c10::intrusive_ptr<Options>& options,
         const c10::intrusive_ptr<ProcessGroupShoal>& parent) -> GilReleasingPtr<ProcessGroupShoal> {
        auto own = c10::make_intrusive<Options>(timeout);
        own->group_name = group_id;
        own->global_ranks_in_group = std::move(global_ranks);
        if (options) {
          own->algorithm = options->algorithm;
          own->transports = options->transports;
        }
        if (!parent) return c10::make_intrusive<ProcessGroupShoal>(store, rank, size, own);
        const std::vector<int> ranks(own->global_ranks_in_group.begin(), own->global_ranks_in_group.end());
        return parent->subgroup(store, ranks, own);
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("group_id"), py::arg("global_ranks"),
      py::arg("options") = py::none(), py::arg("parent") = py::none(), py::call_guard<py::gil_scoped_release>(),
      "Joins the ranks of a group: through its store, or over the links of `parent`, the group of all ranks. Collective.");

  module.def("end_calls_at_exit", &end_calls_at_exit, py::arg("limit"), py::call_guard<py::gil_scoped_release>(),
             "Ends the calls that are in flight, and waits for their callbacks. For atexit: no call can be made after it.");

  module.def(
      "dump_flight_recorder",
      [](bool stacks, bool only_active) {
        std::string trace;
        {
          const py::gil_scoped_release unlocked;  // formatting the stacks takes Python's lock
          trace = shoal::torch::FlightRecorder::dump(stacks, only_active);
        }
        return py::bytes(trace);
      },
      py::arg("stacks") = true, py::arg("only_active") = false,
      "The last calls of this process, pickled as PyTorch's flight recorder writes them (TORCH_FR_BUFFER_SIZE: how many).");
}
