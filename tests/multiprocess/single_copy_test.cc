// Calls that copy data between the memories of the ranks' processes (process_vm_readv and process_vm_writev): right results,
// every fallback to the links, and no access to buffers after a failure.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/peer_memory/moves.h"
#include "tests/multiprocess/call_model.h"
#include "tests/multiprocess/ranks.h"
#include "tests/multiprocess/shared_buffer.h"
#include "transports/shm/process_memory.h"

namespace {

/// How the interposed system calls behave in this process.
struct System {
  bool denies = false;
  bool skips_reads = false;  // reports success without reading
  std::chrono::milliseconds read_takes{0};
  std::chrono::milliseconds write_takes{0};
  std::atomic<int> copies{0};
};
System shared_system;

ssize_t copy(long number, pid_t pid, const iovec* local, unsigned long local_count, const iovec* remote,
             unsigned long remote_count) {
  if (shared_system.denies) {
    errno = EPERM;
    return -1;
  }
  ++shared_system.copies;
  return ::syscall(number, pid, local, local_count, remote, remote_count, 0UL);
}

}  // namespace

// Interposed functions of the C library.
extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long local_count, const iovec* remote,
                                    unsigned long remote_count, unsigned long) {
  if (shared_system.skips_reads && local->iov_len > sizeof(std::uint64_t)) return static_cast<ssize_t>(local->iov_len);
  std::this_thread::sleep_for(shared_system.read_takes);
  return copy(SYS_process_vm_readv, pid, local, local_count, remote, remote_count);
}
extern "C" ssize_t process_vm_writev(pid_t pid, const iovec* local, unsigned long local_count, const iovec* remote,
                                     unsigned long remote_count, unsigned long) {
  std::this_thread::sleep_for(shared_system.write_takes);
  return copy(SYS_process_vm_writev, pid, local, local_count, remote, remote_count);
}

namespace shoal {
namespace {

using testing::expect_ranks;
using testing::ModelBuffers;
using testing::ModelCall;
using testing::TestBuffer;

/// Whether this machine lets a process access the memory of another one.
bool permitted() {
  const shm::ProcessMark mark = shm::own_mark();
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(shm::reaches(mark) ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0;
}

#define SKIP_UNLESS_PERMITTED() \
  if (!permitted()) GTEST_SKIP() << "this system does not let processes copy from each other's memory"

CommunicatorOptions over_shm() {
  CommunicatorOptions options;
  options.transports = "shm";
  options.timeout = std::chrono::seconds(50);
  return options;
}

constexpr CollectiveKind kMovingKinds[] = {CollectiveKind::broadcast, CollectiveKind::all_gather, CollectiveKind::gather,
                                           CollectiveKind::scatter, CollectiveKind::all_to_all};

constexpr CollectiveKind kAllKinds[] = {CollectiveKind::all_reduce, CollectiveKind::broadcast, CollectiveKind::all_gather,
                                        CollectiveKind::gather,     CollectiveKind::scatter,   CollectiveKind::all_to_all};

/// Makes calls of all kinds with sizes around the threshold of single copies, and far above it. Returns what is wrong; empty:
/// nothing.
std::string make_calls(Communicator& c) {
  std::mt19937_64 random(11);  // all ranks draw the same
  const auto ranks = static_cast<std::size_t>(c.size());
  std::uint64_t id = 0;
  for (const std::size_t share : {std::size_t{4095}, std::size_t{9'001}, std::size_t{16'384}, std::size_t{90'000}}) {
    for (const CollectiveKind kind : kAllKinds) {
      for (const bool in_place : {false, true}) {
        if (in_place && (kind == CollectiveKind::all_to_all || kind == CollectiveKind::broadcast)) continue;
        ModelCall call;
        call.id = ++id;
        call.kind = kind;
        call.root = static_cast<int>(random() % ranks);
        call.ranks = c.size();
        call.count = share;
        call.in_place = in_place;
        const bool dealt =
            kind == CollectiveKind::all_gather || kind == CollectiveKind::gather || kind == CollectiveKind::scatter;
        if (dealt && random() % 2 == 0) {
          call.shares.assign(ranks, share);
          call.shares[random() % ranks] = 0;
          call.shares[random() % ranks] += share / 2 + 1;
          call.count = 0;
          for (const std::size_t each : call.shares) call.count += each;
        }
        const ModelBuffers buffers(call, c.rank());
        auto work = testing::make_call(c, call, buffers);
        if (!work.ok()) return fmt::format("{}: {}", call.text(), work.status().to_string());
        if (const Status status = work->wait(); !status.ok()) return fmt::format("{}: {}", call.text(), status.to_string());
        if (const std::string wrong = buffers.check(); !wrong.empty()) return fmt::format("{}: {}", call.text(), wrong);
      }
    }
  }
  return {};
}

class SingleCopy : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, SingleCopy, ::testing::Values(2, 3, 4), ::testing::PrintToStringParamName());

TEST_P(SingleCopy, ResultsMatchModel) {
  SKIP_UNLESS_PERMITTED();
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) -> std::string {
    const int before = shared_system.copies;
    if (std::string wrong = make_calls(c); !wrong.empty()) return wrong;
    return shared_system.copies > before ? "" : "no data was copied between processes";
  });
}

TEST_P(SingleCopy, ResultsMatchModelWithCopyOfAnySize) {
  SKIP_UNLESS_PERMITTED();
  ::setenv("SHOAL_SINGLE_COPY", "2", 1);
  expect_ranks(GetParam(), over_shm(), make_calls);
  ::unsetenv("SHOAL_SINGLE_COPY");
}

TEST_P(SingleCopy, DeniedCopyFallsBackToLinks) {
  const auto outcomes = testing::run_ranks(GetParam(), [](int rank, int size, const std::string& directory) -> std::string {
    shared_system.denies = rank == 0;  // one rank is enough
    auto c = testing::join(directory, rank, size, over_shm());
    if (!c.ok()) return c.status().to_string();
    const int before = shared_system.copies;
    if (std::string wrong = make_calls(**c); !wrong.empty()) return wrong;
    return shared_system.copies == before ? "" : "a rank copied although rank 0 cannot";
  });
  testing::expect_all_well(outcomes);
}

// Without a pidfd a rank would not notice that the pid belongs to another process now.
TEST_P(SingleCopy, MissingPidfdFallsBackToLinks) {
  ::setenv("SHOAL_SINGLE_COPY", "2", 1);
  const auto outcomes = testing::run_ranks(GetParam(), [](int rank, int size, const std::string& directory) -> std::string {
    if (rank == 1 && !testing::deny_pidfd()) return "no filter";
    auto c = testing::join(directory, rank, size, over_shm());
    if (!c.ok()) return c.status().to_string();
    const int before = shared_system.copies;
    if (std::string wrong = make_calls(**c); !wrong.empty()) return wrong;
    return shared_system.copies == before ? "" : "a rank copied without a pidfd of its peer";
  });
  ::unsetenv("SHOAL_SINGLE_COPY");
  if (outcomes[1].output == "no filter") GTEST_SKIP() << "this system has no seccomp filters";
  testing::expect_all_well(outcomes);
}

TEST_P(SingleCopy, SettingTurnsCopyOff) {
  ::setenv("SHOAL_SINGLE_COPY", "0", 1);
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) -> std::string {
    const int before = shared_system.copies;
    if (std::string wrong = make_calls(c); !wrong.empty()) return wrong;
    return shared_system.copies == before ? "" : "a rank copied";
  });
  ::unsetenv("SHOAL_SINGLE_COPY");
}

/// Makes calls with shares above the size up to which copies are always used. Returns what is wrong if copies are not used as
/// `expected`.
std::string check_large_copies(Communicator& c, bool expected) {
  const int before = shared_system.copies;
  constexpr std::size_t kCount = 300'001;
  const std::vector<std::uint8_t> share(kCount, static_cast<std::uint8_t>(c.rank() + 1));
  std::vector<std::uint8_t> all(kCount * static_cast<std::size_t>(c.size()));
  if (const Status status = c.all_gather(share.data(), all.data(), kCount, DataType::uint8); !status.ok())
    return status.to_string();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] != i / kCount + 1) return fmt::format("element {} is {}", i, all[i]);
  }
  const int copies = shared_system.copies - before;
  std::vector<std::int32_t> sum(kCount, c.rank() + 1);
  if (const Status status = c.all_reduce(sum.data(), sum.data(), kCount, DataType::int32, ReduceOp::sum); !status.ok())
    return status.to_string();
  const int wanted = c.size() * (c.size() + 1) / 2;
  if (std::ranges::count(sum, wanted) != static_cast<std::ptrdiff_t>(kCount)) return "wrong sums";
  const int copies_of_sum = shared_system.copies - before - copies;
  return (copies > 0) == expected && (copies_of_sum > 0) == expected
             ? ""
             : fmt::format("{} copies, {} of the sum", copies, copies_of_sum);
}

TEST_P(SingleCopy, SettingTurnsCopyOfLargeSharesOn) {
  SKIP_UNLESS_PERMITTED();
  ::setenv("SHOAL_SINGLE_COPY", "2", 1);
  ::setenv("SHOAL_PROBE", "0", 1);
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) { return check_large_copies(c, true); });
  ::unsetenv("SHOAL_SINGLE_COPY");
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) { return check_large_copies(c, false); });
  ::unsetenv("SHOAL_PROBE");
}

/// Starts ranks whose reads of peer memory take `read_takes`. Returns what is wrong if large copies are not used as `expected`.
std::string measures_and_copies(int ranks, std::chrono::milliseconds read_takes, bool expected) {
  const auto outcomes = testing::run_ranks(ranks, [&](int rank, int size, const std::string& directory) -> std::string {
    shared_system.skips_reads = read_takes.count() == 0;
    shared_system.read_takes = read_takes;
    auto c = testing::join(directory, rank, size, over_shm());
    if (!c.ok()) return c.status().to_string();
    shared_system.skips_reads = false;
    return check_large_copies(**c, expected);
  });
  std::string wrong;
  for (const testing::RankOutcome& outcome : outcomes) wrong += outcome.output + testing::bad_end(outcome);
  return wrong;
}

TEST_P(SingleCopy, SlowCopyIsNotUsedForLargeShares) {
  SKIP_UNLESS_PERMITTED();
#ifdef SHOAL_SANITIZED
  constexpr std::chrono::milliseconds kReadTakes(200);  // the other way to copy is slow, too
#else
  constexpr std::chrono::milliseconds kReadTakes(50);
#endif
  EXPECT_EQ(measures_and_copies(GetParam(), kReadTakes, false), "");
}

// On a busy machine the probe mostly measures the wait for a core, so both ways to copy seem equal. One start of several must
// find the difference.
TEST_P(SingleCopy, FastCopyIsUsedForLargeShares) {
  SKIP_UNLESS_PERMITTED();
  constexpr int kStarts = 10;
  std::string wrong;
  for (int start = 0; start < kStarts; ++start) {
    wrong = measures_and_copies(GetParam(), std::chrono::milliseconds(0), true);
    if (wrong.empty()) break;
  }
  EXPECT_EQ(wrong, "");
}

// A rank that polls a peer's state may find the peer in the next call already.
TEST_P(SingleCopy, SmallCallsAndMovesDoNotMix) {
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) -> std::string {
    constexpr std::size_t kCount = 6'000;
    std::vector<std::uint64_t> all(static_cast<std::size_t>(c.size()));
    std::vector<std::uint64_t> large(kCount);
    for (std::uint64_t round = 0; round < 3'000; ++round) {
      const std::uint64_t mine = round + static_cast<std::uint64_t>(c.rank());
      if (Status status = c.all_gather(&mine, all.data(), 1, DataType::uint64); !status.ok())
        return fmt::format("round {}: {}", round, status.to_string());
      const int root = static_cast<int>(round % all.size());
      if (c.rank() == root) large.assign(kCount, round);
      if (Status status = c.broadcast(large.data(), kCount, DataType::uint64, root); !status.ok())
        return fmt::format("round {}: {}", round, status.to_string());
      if (all.back() != round + all.size() - 1 || large.front() != round || large.back() != round)
        return fmt::format("round {}: wrong result", round);
    }
    return "";
  });
}

// Memory from mem_alloc on some ranks, private memory on others.
TEST_P(SingleCopy, SumAcceptsMixedMemory) {
  SKIP_UNLESS_PERMITTED();
  ::setenv("SHOAL_SINGLE_COPY", "2", 1);
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) -> std::string {
    for (const std::size_t count :
         {std::size_t{70'001}, std::size_t{1'100'000}}) {  // the second size does not fit into the caches
      for (unsigned mixture = 0; mixture<1U << (2 * c.size()); mixture += count> 100'000 ? 7 : 3) {
        const TestBuffer<std::uint32_t> input(count, (mixture >> (2 * c.rank()) & 1) != 0, 1);
        const TestBuffer<std::uint32_t> output(count, (mixture >> (2 * c.rank()) & 2) != 0, 3);
        for (std::size_t i = 0; i < count; ++i) input[i] = static_cast<std::uint32_t>(i * 7 + mixture) << c.rank();
        if (Status status = c.all_reduce(input.data(), output.data(), count, DataType::uint32, ReduceOp::sum); !status.ok())
          return status.to_string();
        const std::uint32_t factor = (1U << c.size()) - 1;
        for (std::size_t i = 0; i < count; ++i) {
          if (output[i] != static_cast<std::uint32_t>(i * 7 + mixture) * factor)
            return fmt::format("mixture {}: element {} of {} is {}", mixture, i, count, output[i]);
        }
      }
    }
    return {};
  });
  ::unsetenv("SHOAL_SINGLE_COPY");
}

TEST_P(SingleCopy, MovesAcceptMixedMemory) {
  SKIP_UNLESS_PERMITTED();
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) -> std::string {
    constexpr std::size_t kCount = 70'001;
    const auto ranks = static_cast<std::size_t>(c.size());
    for (unsigned mixture = 0; mixture < 1U << (2 * ranks); mixture += 3) {
      const TestBuffer<std::uint32_t> input(kCount, (mixture >> (2 * c.rank()) & 1) != 0, 1);
      const TestBuffer<std::uint32_t> output(kCount * ranks, (mixture >> (2 * c.rank()) & 2) != 0, 3);
      for (std::size_t i = 0; i < kCount; ++i)
        input[i] = static_cast<std::uint32_t>(i * 7 + mixture) + static_cast<unsigned>(c.rank());
      const int root = static_cast<int>(mixture % ranks);
      if (Status status = c.gather(input.data(), output.data(), kCount, DataType::uint32, root); !status.ok())
        return status.to_string();
      if (Status status = c.broadcast(output.data(), kCount * ranks, DataType::uint32, root); !status.ok())
        return status.to_string();
      for (std::size_t r = 0; r < ranks; ++r) {
        for (std::size_t i = 0; i < kCount; ++i) {
          if (output[r * kCount + i] != static_cast<std::uint32_t>(i * 7 + mixture + r))
            return fmt::format("mixture {}: share {} element {} is {}", mixture, r, i, output[r * kCount + i]);
        }
      }
    }
    return {};
  });
}

TEST_P(SingleCopy, ManyCallsInFlightMatchModel) {
  expect_ranks(GetParam(), over_shm(), [](Communicator& c) -> std::string {
    std::mt19937_64 random(5);
    std::vector<ModelCall> calls(80);
    std::vector<std::unique_ptr<ModelBuffers>> buffers;
    std::vector<Work> works;
    for (std::size_t k = 0; k < calls.size(); ++k) {
      calls[k] = testing::random_call(random, c.size(), random() % 2 == 0 ? 500 : 80'000);
      calls[k].async = true;
      buffers.push_back(std::make_unique<ModelBuffers>(calls[k], c.rank()));
      auto work = testing::make_call(c, calls[k], *buffers[k]);
      if (!work.ok()) return work.status().to_string();
      works.push_back(*work);
    }
    for (std::size_t k = 0; k < calls.size(); ++k) {
      if (const Status status = works[k].wait(); !status.ok()) return status.to_string();
      if (const std::string wrong = buffers[k]->check(); !wrong.empty()) return fmt::format("{}: {}", calls[k].text(), wrong);
    }
    return {};
  });
}

// Rank 1 writes slowly into rank 0's memory, and rank 0 times out before. After that rank 1 must not write to its buffer.
TEST(SingleCopyFailure, BuffersAreNotWrittenAfterFailure) {
  SKIP_UNLESS_PERMITTED();
  const auto outcomes = testing::run_ranks(2, [](int rank, int size, const std::string& directory) -> std::string {
    auto c = testing::join(directory, rank, size, over_shm());
    if (!c.ok()) return c.status().to_string();
    constexpr std::size_t kCount = 100'000;
    std::vector<std::uint8_t> share(kCount, std::uint8_t{7});
    std::vector<std::uint8_t> all(rank == 0 ? kCount * 2 : 0);
    if (rank == 1) shared_system.write_takes = std::chrono::milliseconds(150);
    CallOptions options;
    if (rank == 0) options.timeout = std::chrono::milliseconds(50);
    const Status status = (*c)->gather(share.data(), all.data(), kCount, DataType::uint8, 0, options);
    if (rank == 1) return {};
    if (status.code() != StatusCode::timeout) return "rank 0: " + status.to_string();
    std::fill(all.begin(), all.end(), std::uint8_t{1});
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return std::all_of(all.begin(), all.end(), [](std::uint8_t byte) { return byte == 1; }) ? "" : "the buffer was written";
  });
  testing::expect_all_well(outcomes);
}

TEST(ProcessMemory, WrongMarkDoesNotReachMemory) {
  SKIP_UNLESS_PERMITTED();
  const shm::ProcessMark mark = shm::own_mark();
  EXPECT_TRUE(shm::reaches(mark));
  shm::ProcessMark wrong = mark;
  wrong.value ^= 1;
  EXPECT_FALSE(shm::reaches(wrong));
  wrong = mark;
  wrong.address = 8;
  EXPECT_FALSE(shm::reaches(wrong));
  wrong = mark;
  wrong.pid = 0;
  EXPECT_FALSE(shm::reaches(wrong));
}

TEST(ProcessMemory, UnmappedMemoryIsAnError) {
  SKIP_UNLESS_PERMITTED();
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  auto* memory = static_cast<std::byte*>(::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  ASSERT_EQ(::munmap(memory + page, page), 0);
  std::vector<std::byte> own(2 * page, std::byte{9});
  const auto address = reinterpret_cast<std::uint64_t>(memory);
  EXPECT_EQ(shm::write_process(::getpid(), address, own.data(), page), 0);
  EXPECT_EQ(memory[page - 1], std::byte{9});
  EXPECT_EQ(shm::write_process(::getpid(), address, own.data(), 2 * page), EFAULT);
  EXPECT_EQ(shm::read_process(::getpid(), address, own.data(), 2 * page), EFAULT);
  ::munmap(memory, page);
}

// Every byte of every output is written once, from the right source.
TEST(WindowMoves, MovesWriteEveryOutputByteOnce) {
  for (const CollectiveKind kind : kMovingKinds) {
    for (int ranks = 2; ranks <= 7; ++ranks) {
      for (const std::size_t count : {std::size_t{32 << 10}, std::size_t{50'001}}) {
        const Collective collective{kind, count, DataType::uint8, ReduceOp::sum, ranks / 2};
        ASSERT_TRUE(moves_serve(collective, Topology::uniform(1, ranks)));
        const auto p = static_cast<std::size_t>(ranks);
        const bool shares = kind != CollectiveKind::broadcast;
        // outputs[rank][byte]: the rank and the offset of the input from which the byte comes.
        const auto unwritten = std::pair(-1, std::size_t{0});
        std::vector outputs(p, std::vector(shares ? count * p : count, unwritten));
        for (int rank = 0; rank < ranks; ++rank) {
          for (const PeerMemoryMove& move : peer_memory_moves(collective, ranks, rank)) {
            const bool writes = move.way == PeerMemoryMove::Way::write;
            const bool reads = move.way == PeerMemoryMove::Way::read;
            auto& output = outputs[writes ? move.peer : static_cast<std::size_t>(rank)];
            const int from = reads ? static_cast<int>(move.peer) : rank;
            for (std::size_t i = 0; i < move.size_bytes; ++i) {
              ASSERT_EQ(output[move.target_bytes + i], unwritten);
              output[move.target_bytes + i] = {from, move.source_bytes + i};
            }
          }
        }
        for (std::size_t rank = 0; rank < p; ++rank) {
          const bool at_root = static_cast<int>(rank) == collective.root;
          for (std::size_t i = 0; i < outputs[rank].size(); ++i) {
            const auto source = static_cast<int>(i / count);
            auto wanted = unwritten;
            if (kind == CollectiveKind::all_gather || (kind == CollectiveKind::gather && at_root)) wanted = {source, i % count};
            if (kind == CollectiveKind::all_to_all) wanted = {source, rank * count + i % count};
            if (kind == CollectiveKind::scatter && i < count) wanted = {collective.root, rank * count + i};
            if (kind == CollectiveKind::broadcast && !at_root) wanted = {collective.root, i};
            ASSERT_EQ(outputs[rank][i], wanted) << to_string(kind) << " rank " << rank << " byte " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shoal
