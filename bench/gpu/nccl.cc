// The same times of NCCL's all_reduce, whose library is opened at run time (argument 2; else libnccl.so.2 as the loader finds
// it). On one GPU every rank gets its own host identity (NCCL_HOSTID), so data goes through NCCL's socket transport;
// bench/gpu/run sets the needed variables.
//
//   gpu_nccl RANKS [LIBRARY]
#include <dlfcn.h>

#include <string>

#include "bench/gpu/timed_ranks.h"
#include "tests/gpu/gpu_support.h"

namespace shoal {
namespace {

// The part of NCCL's interface that is used here, as in its documentation.
struct UniqueId {
  char bytes[128];
};
using NcclComm = void*;
constexpr int kFloat32 = 7;
constexpr int kSum = 0;

struct Nccl {
  int (*get_unique_id)(UniqueId*) = nullptr;
  int (*init_rank)(NcclComm*, int, UniqueId, int) = nullptr;
  int (*all_reduce)(const void*, void*, std::size_t, int, int, NcclComm, void*) = nullptr;
  int (*get_version)(int*) = nullptr;
  const char* (*error_string)(int) = nullptr;

  bool open(const char* path) {
    void* library = ::dlopen(path, RTLD_NOW);
    if (library == nullptr) {
      std::printf("skipped: no NCCL: %s\n", ::dlerror());
      return false;
    }
    const auto find = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      return function != nullptr;
    };
    return find("ncclGetUniqueId", get_unique_id) && find("ncclCommInitRank", init_rank) && find("ncclAllReduce", all_reduce) &&
           find("ncclGetVersion", get_version) && find("ncclGetErrorString", error_string);
  }
  void must(int code, const char* what) const {
    if (code == 0) return;
    std::printf("FAILED %s: %s\n", what, error_string(code));
    std::fflush(stdout);
    std::_Exit(1);
  }
};

int run_rank(int rank, int ranks, gpu::SharedPage& page, const char* path) {
  const int devices = gpu::must(gpu::api().device_count(), "devices");
  if (devices < ranks) ::setenv("NCCL_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
  gpu::must(gpu::api().use_device(rank % devices), "use_device");
  Nccl nccl;
  if (!nccl.open(path)) return 77;
  auto* id = reinterpret_cast<UniqueId*>(page.text);
  if (rank == 0) nccl.must(nccl.get_unique_id(id), "ncclGetUniqueId");
  pthread_barrier_wait(&page.barrier);
  NcclComm comm = nullptr;
  nccl.must(nccl.init_rank(&comm, ranks, *id, rank), "ncclCommInitRank");
  int version = 0;
  nccl.must(nccl.get_version(&version), "ncclGetVersion");
  const std::string how = std::to_string(version) + (devices < ranks ? " through sockets" : "");
  const auto stream = gpu::must(gpu::api().create_stream(true), "stream");
  gpu::DeviceMemory input(gpu::kMeasuredBytes[std::size(gpu::kMeasuredBytes) - 1]);
  gpu::DeviceMemory output(gpu::kMeasuredBytes[std::size(gpu::kMeasuredBytes) - 1]);
  for (const std::size_t bytes : gpu::kMeasuredBytes) {
    const auto call = [&] {
      nccl.must(nccl.all_reduce(input.get(), output.get(), bytes / 4, kFloat32, kSum, comm, stream), "ncclAllReduce");
    };
    const auto finish = [&] { gpu::must(gpu::api().synchronize(stream), "synchronize"); };
    const double seconds = gpu::time_together(rank, ranks, page, gpu::calls_for(bytes), call, finish);
    if (rank == 0) gpu::print_row("nccl", how.c_str(), ranks, bytes, seconds);
  }
  return 0;  // without ncclCommDestroy, which waits for every other rank
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  if (argc < 2) return std::printf("usage: gpu_nccl RANKS [LIBRARY]\n"), 2;
  const int ranks = std::atoi(argv[1]);
  if (ranks < 2 || ranks > 16) return 2;
  const char* path = argc > 2 ? argv[2] : "libnccl.so.2";
  return shoal::gpu::fork_ranks(
      ranks, 120, [&](int rank, shoal::gpu::SharedPage& page) { return shoal::run_rank(rank, ranks, page, path); });
}
