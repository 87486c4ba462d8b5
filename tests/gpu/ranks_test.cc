// StreamCommunicator on the GPU: 2, 4 and 8 processes, forked before any of them touches CUDA, all on one device or one each.
//
//   gpu_ranks [RANKS...] [--together]     (--together: MPS runs, kernels may wait for each other)
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include <shoal/communicator.h>
#include <shoal/cuda.h>

#include "tests/gpu/gpu_support.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::byte> given(int rank, int call, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank * 1009 + call));
  std::vector<std::byte> data(count * 4);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(random() % 100);
    std::memcpy(data.data() + 4 * i, &value, 4);
  }
  return data;
}

float at(const std::vector<std::byte>& data, std::size_t i) {
  float value = 0;
  std::memcpy(&value, data.data() + 4 * i, 4);
  return value;
}

using Inputs = std::vector<std::vector<std::byte>>;

std::string outcome_of(const std::string& what, Result<StreamWork> work) {
  if (!work.ok()) return what + ": " + work.status().to_string();
  const Status status = work->wait();
  return status.ok() ? "" : what + ": " + status.to_string();
}

/// Whether `got` begins with `count` elements of `wanted` from element `begin` on.
bool equal(const std::vector<std::byte>& got, std::size_t at_element, const std::vector<std::byte>& wanted, std::size_t begin,
           std::size_t count) {
  return std::memcmp(got.data() + at_element * 4, wanted.data() + begin * 4, count * 4) == 0;
}

/// The collectives with a root.
std::string check_roots(StreamCommunicator& group, cuda::Stream stream, gpu::DeviceMemory& input, gpu::DeviceMemory& output,
                        const Inputs& all, std::size_t own, std::size_t count, int root) {
  constexpr DataType kType = DataType::float32;
  const std::size_t n = all.size();
  const bool is_root = static_cast<std::size_t>(root) == own;
  const std::string size = " of " + std::to_string(count);
  std::string error = outcome_of("reduce", group.reduce(input.get(), output.get(), count, kType, ReduceOp::sum, root, stream));
  auto got = output.read(count * 4);
  for (std::size_t i = 0; i < count && is_root && error.empty(); ++i) {
    float wanted = 0;
    for (const auto& each : all) wanted += at(each, i);
    if (at(got, i) != wanted) error = "reduce" + size + ": element " + std::to_string(i);
  }
  if (error.empty()) error = outcome_of("gather", group.gather(input.get(), output.get(), count, kType, root, stream));
  got = output.read(count * 4 * n);
  for (std::size_t rank = 0; rank < n && is_root && error.empty(); ++rank) {
    if (!equal(got, rank * count, all[rank], 0, count)) error = "gather" + size + ": block " + std::to_string(rank);
  }
  if (error.empty()) error = outcome_of("scatter", group.scatter(input.get(), output.get(), count, kType, root, stream));
  got = output.read(count * 4);
  if (error.empty() && !equal(got, 0, all[static_cast<std::size_t>(root)], own * count, count)) error = "scatter" + size;
  return error;
}

/// all_to_all, the calls with counts, and messages.
std::string check_blocks(StreamCommunicator& group, cuda::Stream stream, gpu::DeviceMemory& input, gpu::DeviceMemory& output,
                         const Inputs& all, std::size_t own, std::size_t count) {
  constexpr DataType kType = DataType::float32;
  const std::size_t n = all.size();
  const std::string size = " of " + std::to_string(count);
  std::string error = outcome_of("all_to_all", group.all_to_all(input.get(), output.get(), count, kType, stream));
  auto got = output.read(count * 4 * n);
  for (std::size_t rank = 0; rank < n && error.empty(); ++rank) {
    if (!equal(got, rank * count, all[rank], own * count, count)) error = "all_to_all" + size;
  }
  // Rank r gives and gets a share of (r + 1) / n.
  std::vector<std::size_t> counts;
  for (std::size_t rank = 0; rank < n; ++rank) counts.push_back(count * (rank + 1) / n);
  if (error.empty()) error = outcome_of("all_gather_v", group.all_gather_v(input.get(), output.get(), counts, kType, stream));
  got = output.read(count * 4 * n);
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < n && error.empty(); ++rank) {
    if (!equal(got, begin, all[rank], 0, counts[rank])) error = "all_gather_v" + size + ": block " + std::to_string(rank);
    begin += counts[rank];
  }
  // Block of a to b: that of the larger of the two.
  std::vector<std::size_t> both;
  for (std::size_t rank = 0; rank < n; ++rank) both.push_back(counts[std::max(rank, own)]);
  if (error.empty())
    error = outcome_of("all_to_all_v", group.all_to_all_v(input.get(), both, output.get(), both, kType, stream));
  got = output.read(count * 4 * n);
  begin = 0;
  for (std::size_t rank = 0; rank < n && error.empty(); ++rank) {
    std::size_t before = 0;
    for (std::size_t other = 0; other < own; ++other) before += counts[std::max(rank, other)];
    if (!equal(got, begin, all[rank], before, both[rank])) error = "all_to_all_v" + size + ": block " + std::to_string(rank);
    begin += both[rank];
  }
  if (error.empty()) error = outcome_of("barrier", group.barrier(stream));
  const int next = static_cast<int>((own + 1) % n);
  const auto before = static_cast<int>((own + n - 1) % n);
  const std::vector<StreamMessage> ring{StreamMessage::recv(output.get(), count, kType, before, 7),
                                        StreamMessage::send(input.get(), count, kType, next, 7)};
  if (error.empty()) error = outcome_of("exchange", group.exchange(ring, stream));
  got = output.read(count * 4);
  if (error.empty() && !equal(got, 0, all[static_cast<std::size_t>(before)], 0, count)) error = "exchange" + size;
  if (n < 2 || own > 1 || !error.empty()) return error;
  if (own == 0) return outcome_of("send", group.send(input.get(), count, kType, 1, 8, stream));
  error = outcome_of("recv", group.recv(output.get(), count, kType, 0, 8, stream));
  got = output.read(count * 4);
  return error.empty() && !equal(got, 0, all[0], 0, count) ? "recv" + size : error;
}

/// Makes one call of each kind on `count` float32. Empty if all results are right.
std::string check_calls(Communicator& host, StreamCommunicator& group, cuda::Stream stream, std::size_t count, int call,
                        bool registers) {
  const int ranks = host.size();
  const auto n = static_cast<std::size_t>(ranks);
  const auto own = static_cast<std::size_t>(host.rank());
  gpu::DeviceMemory input(count * 4 * n + 64);
  gpu::DeviceMemory output(count * 4 * n + 64);
  if (registers) {
    if (Status status = group.register_buffer(input.get()); !status.ok()) return "register_buffer: " + status.to_string();
  }
  std::vector<std::vector<std::byte>> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(given(rank, call, count * n));
  const auto finish = [&](const char* what, Result<StreamWork> work) -> std::string {
    if (!work.ok()) return std::string(what) + ": " + work.status().to_string();
    const Status status = work->wait();
    return status.ok() ? "" : std::string(what) + ": " + status.to_string();
  };
  input.write(all[own]);
  if (auto error =
          finish("all_reduce", group.all_reduce(input.get(), output.get(), count, DataType::float32, ReduceOp::sum, stream));
      !error.empty())
    return error;
  auto got = output.read(count * 4);
  for (std::size_t i = 0; i < count; ++i) {
    float wanted = 0;
    for (const auto& each : all) wanted += at(each, i);
    if (at(got, i) != wanted) return "all_reduce of " + std::to_string(count) + ": element " + std::to_string(i);
  }
  if (auto error = finish("reduce_scatter",
                          group.reduce_scatter(input.get(), output.get(), count, DataType::float32, ReduceOp::sum, stream));
      !error.empty())
    return error;
  got = output.read(count * 4);
  for (std::size_t i = 0; i < count; ++i) {
    float wanted = 0;
    for (const auto& each : all) wanted += at(each, own * count + i);
    if (at(got, i) != wanted) return "reduce_scatter of " + std::to_string(count) + ": element " + std::to_string(i);
  }
  if (auto error = finish("all_gather", group.all_gather(input.get(), output.get(), count, DataType::float32, stream));
      !error.empty())
    return error;
  got = output.read(count * 4 * n);
  for (std::size_t rank = 0; rank < n; ++rank) {
    for (std::size_t i = 0; i < count; ++i) {
      if (at(got, rank * count + i) != at(all[rank], i))
        return "all_gather of " + std::to_string(count) + ": block " + std::to_string(rank);
    }
  }
  const int root = call % ranks;
  if (auto error = finish("broadcast", group.broadcast(input.get(), count, DataType::float32, root, stream)); !error.empty())
    return error;
  got = input.read(count * 4);
  if (!std::equal(got.begin(), got.end(), all[static_cast<std::size_t>(root)].begin()))
    return "broadcast of " + std::to_string(count);
  input.write(all[own]);
  if (auto error = check_roots(group, stream, input, output, all, own, count, root); !error.empty()) return error;
  if (auto error = check_blocks(group, stream, input, output, all, own, count); !error.empty()) return error;
  if (registers) {
    if (Status status = group.deregister_buffer(input.get()); !status.ok()) return "deregister_buffer: " + status.to_string();
  }
  return "";
}

/// Many calls without waits in between, then a call that one rank does not make.
std::string check_series(Communicator& host, StreamCommunicator& group, cuda::Stream stream) {
  constexpr std::size_t kCount = 100000;
  gpu::DeviceMemory memory(kCount * 4);
  memory.write(std::vector<std::byte>(kCount * 4));
  Result<StreamWork> last(Status(StatusCode::internal, "no call"));
  for (int i = 0; i < 200; ++i) {
    last = group.all_reduce(memory.get(), memory.get(), kCount, DataType::int32, ReduceOp::sum, stream);
    if (!last.ok()) return last.status().to_string();
  }
  if (Status status = last->wait(); !status.ok()) return "200 calls: " + status.to_string();
  if (host.rank() == 1) {
    for (int i = 0; i < 1000 && group.status().ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return group.status().ok() ? "rank 1 does not know of the failure" : "";
  }
  const auto start = Clock::now();
  auto late = group.all_reduce(memory.get(), memory.get(), kCount, DataType::int32, ReduceOp::sum, stream,
                               std::chrono::milliseconds(500));
  if (!late.ok()) return late.status().to_string();
  const Status status = late->wait();
  if (status.ok()) return "a call without rank 1 went well";
  gpu::must(gpu::api().synchronize(stream), "the stream after a failure");
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return seconds < 10 ? "" : "the failure took " + std::to_string(seconds) + " s";
}

int run_rank(int rank, int ranks, const std::string& folder, bool together) {
  auto store = make_file_store(folder);
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(60);
  auto host =
      store.ok() ? Communicator::create(**store, rank, ranks, options) : Result<std::unique_ptr<Communicator>>(store.status());
  if (!host.ok()) return std::printf("rank %d: %s\n", rank, host.status().to_string().c_str()), 1;
  const int devices = gpu::must(gpu::api().device_count(), "devices");
  gpu::must(gpu::api().use_device(rank % devices), "use_device");
  StreamOptions streams;
  streams.staging_bytes = std::size_t{8} << 20;
  streams.kernels_run_together = together;
  auto group = StreamCommunicator::create(**host, streams);
  if (!group.ok()) return std::printf("rank %d: %s\n", rank, group.status().to_string().c_str()), 1;
  if (rank == 0) std::printf("  %d ranks on %d devices, route %s\n", ranks, devices, (*group)->route().c_str());
  std::fflush(stdout);
  const auto stream = gpu::must(gpu::api().create_stream(true), "stream");
  std::string error;
  int call = 0;
  for (const std::size_t count : {1U, 1000U, 33333U, 1000001U, 5000003U}) {
    for (const bool registers : {false, true}) {
      if (registers && (count != 1000001U || (*group)->route() == "host")) continue;
      if (error.empty()) error = check_calls(**host, **group, stream, count, call++, registers);
    }
  }
  if (error.empty() && ranks > 1) error = check_series(**host, **group, stream);
  if (error.empty()) return 0;
  std::printf("WRONG rank %d of %d: %s\n", rank, ranks, error.c_str());
  return 1;
}

/// 0 on success, 77 if there is no GPU.
int run_ranks(int ranks, bool together) {
  char folder[] = "/tmp/shoal-gpu-XXXXXX";
  if (::mkdtemp(folder) == nullptr) return 1;
  std::vector<pid_t> children;
  std::fflush(stdout);
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(150);  // nothing may hang
      const int code = run_rank(rank, ranks, folder, together);
      std::fflush(stdout);
      ::_exit(code);
    }
    children.push_back(child);
  }
  int worst = 0;
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    ::waitpid(children[rank], &status, 0);
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    if (code != 0 && code != 77) std::printf("WRONG rank %zu of %d ended with status %d\n", rank, ranks, status);
    worst = code == 0 || worst == 77 ? worst : code == 77 ? 77 : 1;
  }
  return worst;
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  std::vector<int> sizes;
  bool together = false;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--together") {
      together = true;
    } else {
      sizes.push_back(std::atoi(argv[i]));
    }
  }
  if (sizes.empty()) sizes = {1, 2, 4, 8};
  int worst = 0;
  for (const int ranks : sizes) {
    const int code = shoal::run_ranks(ranks, together);
    worst = worst == 77 || code == 0 ? worst : code;
  }
  std::printf("%s\n", worst == 0 ? "passed" : worst == 77 ? "skipped" : "FAILED");
  return worst;
}
