// Registered buffers: read in place, deregistered, shared by descriptor; and whether kernels run together.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/cuda/collective_checks.h"

namespace shoal {
namespace {

using testing::Bytes;
using testing::DeviceBuffer;
using testing::expect_stream_ranks;
using testing::rank_data;
using testing::StreamCase;
using testing::StreamRank;
using testing::TestCall;
using testing::wanted_of;

constexpr std::size_t kCount = 3000;  // one piece of 16 KiB

/// An all_gather of `count` float32 at `input`, which must take `kernels` kernels: 1 if the input is read in place, else 2.
std::string gather_from(StreamRank& rank, std::byte* input, int call, int kernels, std::size_t count = kCount) {
  const TestCall test{CollectiveKind::all_gather, count, DataType::float32};
  DeviceBuffer output(rank, count * 4 * static_cast<std::size_t>(rank.size()));
  const Bytes mine = rank_data(rank.rank(), call, count, DataType::float32, true);
  std::memcpy(rank.cuda.host_address(input), mine.data(), mine.size());
  const int before = rank.cuda.kernels_run();
  auto work = rank.group.all_gather(input, output.get(), count, DataType::float32, rank.stream);
  if (!work.ok()) return work.status().to_string();
  if (Status status = work->wait(); !status.ok()) return status.to_string();
  const Bytes wanted = wanted_of(test, rank.rank(), rank.size(), call, true);
  if (output.read(wanted.size()) != wanted) return fmt::format("call {} is wrong", call);
  const int ran = rank.cuda.kernels_run() - before;
  return ran == kernels ? "" : fmt::format("call {} took {} kernels", call, ran);
}

StreamCase three_ranks() {
  StreamCase c;
  c.ranks = 3;
  c.cuda.longest_delay_us = 200;
  c.route = "peer";
  return c;
}

TEST(StreamBuffers, DeregisteredBuffersAreCopiedAgain) {
  expect_stream_ranks(three_ranks(), [](StreamRank& rank) -> std::string {
    DeviceBuffer input(rank, kCount * 4);
    std::string error = gather_from(rank, input.get(), 0, 2);
    // Registered twice, so that the first deregistration changes nothing.
    for (int i = 0; i < 2 && error.empty(); ++i) error = rank.group.register_buffer(input.get()).message();
    if (error.empty()) error = gather_from(rank, input.get(), 1, 1);
    if (error.empty()) error = rank.group.deregister_buffer(input.get() + 8).message();
    if (error.empty()) error = gather_from(rank, input.get(), 2, 1);
    if (rank.cuda.imports() != 4) return fmt::format("{} mappings: {}", rank.cuda.imports(), error);
    if (error.empty()) error = rank.group.deregister_buffer(input.get()).message();
    if (rank.cuda.imports() != 2) return "the buffer is still mapped: " + error;
    if (error.empty()) error = gather_from(rank, input.get(), 3, 2);
    const Status again = rank.group.deregister_buffer(input.get());
    if (again.code() != StatusCode::invalid_argument) return "a third deregistration was accepted: " + again.to_string();
    return error.empty() ? rank.group.status().message() : error;
  });
}

/// If one rank names a buffer that is not registered, all ranks get the error, and nothing changes.
TEST(StreamBuffers, UnknownBuffersAreRefusedOnAllRanks) {
  expect_stream_ranks(three_ranks(), [](StreamRank& rank) -> std::string {
    DeviceBuffer input(rank, kCount * 4);
    DeviceBuffer other(rank, kCount * 4);
    if (Status status = rank.group.register_buffer(input.get()); !status.ok()) return status.to_string();
    const Status refused = rank.group.deregister_buffer(rank.rank() == 1 ? other.get() : input.get());
    if (refused.code() != StatusCode::invalid_argument || refused.message().empty()) return refused.to_string();
    if (std::string error = gather_from(rank, input.get(), 0, 1); !error.empty()) return error;
    return rank.group.deregister_buffer(input.get()).message();
  });
}

/// Numbers are reused, the memory may be freed, and deregistration waits for calls in flight.
TEST(StreamBuffers, ManyRegistrationsReuseNumbers) {
  expect_stream_ranks(three_ranks(), [](StreamRank& rank) -> std::string {
    DeviceBuffer output(rank, kCount * 12);
    for (int i = 0; i < 70; ++i) {
      DeviceBuffer input(rank, kCount * 4);
      if (Status status = rank.group.register_buffer(input.get()); !status.ok()) return status.to_string();
      input.set(rank_data(rank.rank(), i, kCount, DataType::float32, true));
      auto work = rank.group.all_gather(input.get(), output.get(), kCount, DataType::float32, rank.stream);
      if (!work.ok()) return work.status().to_string();
      if (Status status = rank.group.deregister_buffer(input.get()); !status.ok()) return status.to_string();
      if (!work->is_completed()) return "the call in flight was not waited for";
      const TestCall test{CollectiveKind::all_gather, kCount, DataType::float32};
      if (output.read(kCount * 12) != wanted_of(test, rank.rank(), 3, i, true)) return fmt::format("call {} is wrong", i);
    }
    return rank.cuda.imports() == 2 ? "" : "a buffer is still mapped";
  });
}

/// Memory of several adjacent mappings, like PyTorch's expandable segments: one buffer for calls; the registered mapping is
/// sent to the peers as a descriptor.
TEST(StreamBuffers, MappedMemoryIsSharedByDescriptor) {
  for (const int ranks : {2, 5}) {
    StreamCase c = three_ranks();
    c.ranks = ranks;
    expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
      constexpr std::size_t kPiece = std::size_t{16} << 10;
      auto* buffer = static_cast<std::byte*>(rank.cuda.allocate_mapped(kPiece, 8));
      std::string error = gather_from(rank, buffer, 0, 4, 2 * kPiece / 4);  // two pieces, each copied in and out of a slot
      if (!error.empty()) return error;
      if (Status status = rank.group.register_buffer(buffer + kPiece + 100); !status.ok()) return status.to_string();
      if (rank.cuda.imports() != 2 * (rank.size() - 1)) return fmt::format("{} mappings", rank.cuda.imports());
      error = gather_from(rank, buffer + kPiece, 1, 1);
      if (error.empty()) error = gather_from(rank, buffer + kPiece + 4 * kCount, 2, 2);  // beyond the mapping's end
      if (error.empty()) error = gather_from(rank, buffer, 3, 2);                        // another mapping
      if (!error.empty()) return error;
      auto refused = rank.group.all_reduce(buffer + 7 * kPiece, buffer + 7 * kPiece, kPiece / 4 + 1, DataType::float32,
                                           ReduceOp::sum, rank.stream);
      if (refused.status().code() != StatusCode::invalid_argument) return "a buffer beyond the last mapping was accepted";
      if (Status status = rank.group.deregister_buffer(buffer + kPiece); !status.ok()) return status.to_string();
      return rank.cuda.imports() == rank.size() - 1 ? "" : "a buffer is still mapped";
    });
  }
}

/// Sets an environment variable for the ranks that a test forks.
class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~Environment() { ::unsetenv(name_); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
};

/// Expects `route` for two ranks on one device: "peer+fused" if their kernels run together.
void expect_route(const StreamCase& c, const std::string& route) {
  StreamCase expected = c;
  expected.route = route;
  expect_stream_ranks(expected, [](StreamRank& rank) {
    return check(rank, {CollectiveKind::all_reduce, 5000, DataType::int32}, 0, true);
  });
}

TEST(StreamBuffers, KernelsRunTogetherUnderOneMpsServer) {
  std::string folder = ::testing::TempDir() + "mps-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const Environment pipes("CUDA_MPS_PIPE_DIRECTORY", folder);
  StreamCase c;
  c.cuda.mps = true;
  c.streams.max_processors = 2;  // of the 4 of the fake
  expect_route(c, "peer");       // without a pipe the server is unknown
  std::ofstream(folder + "/control") << "";
  expect_route(c, "peer+fused");
  c.streams.max_processors = 3;  // too many for both ranks
  expect_route(c, "peer");
  c.streams.max_processors = 2;
  c.cuda.mps = false;
  expect_route(c, "peer");
  c.cuda.mps_of_rank = 0;  // only one rank has the server
  expect_route(c, "peer");
  c.cuda.mps_of_rank = -1;
  {
    const Environment yes("SHOAL_CUDA_TOGETHER", "1");
    expect_route(c, "peer+fused");
  }
  c.cuda.mps = true;
  {
    const Environment no("SHOAL_CUDA_TOGETHER", "0");
    expect_route(c, "peer");
  }
  std::filesystem::remove_all(folder);
}

// Refused rather than ignored, for sums of floating-point numbers, which depend on the order.
TEST(StreamBuffers, StrictNumericsAreRefused) {
  const Environment strict("SHOAL_NUMERICS", "strict");
  StreamCase c;
  testing::expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
    auto memory = rank.cuda.allocate(1024);
    if (!memory.ok()) return memory.status().to_string();
    const auto sum = [&](DataType type) {
      auto work = rank.group.all_reduce(*memory, *memory, 16, type, ReduceOp::sum, rank.stream);
      return work.ok() ? work->wait() : work.status();
    };
    const Status refused = sum(DataType::float32);
    if (refused.code() != StatusCode::unsupported || refused.message().find("SHOAL_NUMERICS=strict") == std::string::npos)
      return "float32: " + refused.to_string();
    const Status whole = sum(DataType::int32);
    if (!whole.ok()) return "int32: " + whole.to_string();
    const Status freed = rank.cuda.release(*memory);
    return freed.ok() ? "" : freed.to_string();
  });
}

TEST(StreamBuffers, DifferentOptionsAreAMismatch) {
  const auto outcomes = testing::run_ranks(2, [](int rank, int ranks, const std::string& directory) -> std::string {
    auto host = testing::join(directory, rank, ranks, {});
    if (!host.ok()) return host.status().to_string();
    testing::FakeCuda cuda({});
    StreamOptions options{std::size_t{64} << (10 + rank), 4, false};
    auto group = cuda::DeviceGroup::create(cuda, **host, options);
    if (group.ok()) return "different options were accepted";
    if (group.status().code() != StatusCode::mismatch) return group.status().to_string();
    ::setenv("SHOAL_CUDA_TOGETHER", "perhaps", 1);
    group = cuda::DeviceGroup::create(cuda, **host, {});
    return group.status().code() == StatusCode::invalid_argument ? "" : group.status().to_string();
  });
  testing::expect_all_well(outcomes);
}

}  // namespace
}  // namespace shoal
