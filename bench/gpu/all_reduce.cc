// Time of StreamCommunicator's all_reduce by size: one line of JSON per size.
//
//   gpu_all_reduce RANKS [--together] [--registered]
#include <string>

#include <shoal/communicator.h>
#include <shoal/cuda.h>

#include "bench/gpu/timed_ranks.h"
#include "tests/gpu/gpu_support.h"

namespace shoal {
namespace {

int run_rank(int rank, int ranks, gpu::SharedPage& page, const std::string& folder, bool together, bool registered) {
  auto store = gpu::must(make_file_store(folder), "store");
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(60);
  auto host = gpu::must(Communicator::create(*store, rank, ranks, options), "communicator");
  gpu::must(gpu::api().use_device(rank % gpu::must(gpu::api().device_count(), "devices")), "use_device");
  StreamOptions streams;
  streams.kernels_run_together = together;
  auto group = gpu::must(StreamCommunicator::create(*host, streams), "stream communicator");
  const std::string how = group->route() + (registered ? "+registered" : "");
  const auto stream = gpu::must(gpu::api().create_stream(true), "stream");
  gpu::DeviceMemory input(gpu::kMeasuredBytes[std::size(gpu::kMeasuredBytes) - 1]);
  gpu::DeviceMemory output(gpu::kMeasuredBytes[std::size(gpu::kMeasuredBytes) - 1]);
  if (registered) gpu::must(group->register_buffer(input.get()), "register_buffer");
  for (const std::size_t bytes : gpu::kMeasuredBytes) {
    const auto call = [&] {
      gpu::must(group->all_reduce(input.get(), output.get(), bytes / 4, DataType::float32, ReduceOp::sum, stream).status(),
                "all_reduce");
    };
    const auto finish = [&] { gpu::must(gpu::api().synchronize(stream), "synchronize"); };
    const double seconds = gpu::time_together(rank, ranks, page, gpu::calls_for(bytes), call, finish);
    if (rank == 0) gpu::print_row("shoal", how.c_str(), ranks, bytes, seconds);
  }
  return group->status().ok() ? 0 : 1;
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  if (argc < 2) return std::printf("usage: gpu_all_reduce RANKS [--together] [--registered]\n"), 2;
  const int ranks = std::atoi(argv[1]);
  bool together = false;
  bool registered = false;
  for (int i = 2; i < argc; ++i) {
    together = together || std::string(argv[i]) == "--together";
    registered = registered || std::string(argv[i]) == "--registered";
  }
  char folder[] = "/tmp/shoal-gpu-XXXXXX";
  if (ranks < 1 || ranks > 16 || ::mkdtemp(folder) == nullptr) return 2;
  const std::string path = folder;
  return shoal::gpu::fork_ranks(ranks, 120, [&](int rank, shoal::gpu::SharedPage& page) {
    return shoal::run_rank(rank, ranks, page, path, together, registered);
  });
}
