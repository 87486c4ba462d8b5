// shoal as one of the libraries under test.
#include <utility>

#include "bench/perf/library.h"

namespace shoal::perf {
namespace {

class ShoalLibrary final : public Library {
 public:
  ShoalLibrary(Communicator& communicator, bool blocking, std::string algorithm)
      : communicator_(communicator), blocking_(blocking), algorithm_(std::move(algorithm)) {
    if (!algorithm_.empty()) options_.algorithm = algorithm_.c_str();
  }

  [[nodiscard]] std::string name() const override { return "shoal"; }
  [[nodiscard]] std::string version() const override { return SHOAL_PERF_VERSION; }
  [[nodiscard]] std::string why_unsupported(const Call& call) const override {
    static_cast<void>(call);
    return "";
  }
  Status run(const Call& call) override { return blocking_ ? run_blocking(call) : run_async(call); }
  Status barrier() override { return communicator_.barrier(); }
  [[nodiscard]] CallReport last_call() const override { return communicator_.last_call(); }

 private:
  Status run_blocking(const Call& call) {
    switch (call.kind) {
      case CollectiveKind::all_reduce:
        return communicator_.all_reduce(call.input, call.output, call.count, call.type, call.op, options_);
      case CollectiveKind::broadcast:
        return communicator_.broadcast(call.output, call.count, call.type, call.root, options_);
      case CollectiveKind::all_gather:
        return communicator_.all_gather(call.input, call.output, call.count, call.type, options_);
      case CollectiveKind::barrier:
        return communicator_.barrier(options_);
      case CollectiveKind::reduce_scatter:
        return communicator_.reduce_scatter(call.input, call.output, call.count, call.type, call.op, options_);
      case CollectiveKind::reduce:
        return communicator_.reduce(call.input, call.output, call.count, call.type, call.op, call.root, options_);
      case CollectiveKind::gather:
        return communicator_.gather(call.input, call.output, call.count, call.type, call.root, options_);
      case CollectiveKind::scatter:
        return communicator_.scatter(call.input, call.output, call.count, call.type, call.root, options_);
      case CollectiveKind::all_to_all:
        return communicator_.all_to_all(call.input, call.output, call.count, call.type, options_);
      case CollectiveKind::send:
      case CollectiveKind::receive:
        break;
    }
    return Status(StatusCode::invalid_argument, "not a collective");
  }

  Status run_async(const Call& call) {
    Result<Work> work = start(call);
    return work.ok() ? work->wait() : work.status();
  }

  Result<Work> start(const Call& call) {
    switch (call.kind) {
      case CollectiveKind::all_reduce:
        return communicator_.all_reduce_async(call.input, call.output, call.count, call.type, call.op, options_);
      case CollectiveKind::broadcast:
        return communicator_.broadcast_async(call.output, call.count, call.type, call.root, options_);
      case CollectiveKind::all_gather:
        return communicator_.all_gather_async(call.input, call.output, call.count, call.type, options_);
      case CollectiveKind::barrier:
        return communicator_.barrier_async(options_);
      case CollectiveKind::reduce_scatter:
        return communicator_.reduce_scatter_async(call.input, call.output, call.count, call.type, call.op, options_);
      case CollectiveKind::reduce:
        return communicator_.reduce_async(call.input, call.output, call.count, call.type, call.op, call.root, options_);
      case CollectiveKind::gather:
        return communicator_.gather_async(call.input, call.output, call.count, call.type, call.root, options_);
      case CollectiveKind::scatter:
        return communicator_.scatter_async(call.input, call.output, call.count, call.type, call.root, options_);
      case CollectiveKind::all_to_all:
        return communicator_.all_to_all_async(call.input, call.output, call.count, call.type, options_);
      case CollectiveKind::send:
      case CollectiveKind::receive:
        break;
    }
    return Status(StatusCode::invalid_argument, "not a collective");
  }

  Communicator& communicator_;
  bool blocking_;
  std::string algorithm_;
  CallOptions options_;
};

}  // namespace

std::unique_ptr<Library> make_shoal_library(Communicator& communicator, bool blocking, const std::string& algorithm) {
  return std::make_unique<ShoalLibrary>(communicator, blocking, algorithm);
}

}  // namespace shoal::perf
