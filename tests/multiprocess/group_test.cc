// Groups on real processes: splits, calls of overlapping groups in flight, destruction in any order, errors inside of a group.
#include <gmock/gmock.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/facts.h"
#include "tests/multiprocess/ranks.h"
#include "tests/multiprocess/shared_buffer.h"

namespace shoal {
namespace {

using testing::expect_ranks;

CommunicatorOptions over(const char* transports) {
  CommunicatorOptions options;
  options.transports = transports;
  options.timeout = std::chrono::seconds(30);
  return options;
}

// Sums rank + 1 over a group, with the members' ranks in the job. Returns what is wrong; empty: nothing.
std::string check_sum(Communicator& group, int job_rank, const std::vector<int>& job_ranks, std::size_t count) {
  std::vector<std::int32_t> data(count, job_rank + 1);
  if (const Status status = group.all_reduce(data.data(), data.data(), count, DataType::int32, ReduceOp::sum); !status.ok())
    return status.to_string();
  std::int32_t expected = 0;
  for (const int rank : job_ranks) expected += rank + 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (data[i] != expected) return fmt::format("element {} of {} is {}, not {}", i, count, data[i], expected);
  }
  return {};
}

class Groups : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, Groups, ::testing::Values("shm", "tcp"), [](const auto& info) { return std::string(info.param); });

TEST_P(Groups, SplitOrdersByKeyAndExcludesNegativeColors) {
  expect_ranks(5, over(GetParam()), [](Communicator& c) -> std::string {
    // Ranks 4, 2, 0 form a group in this order; ranks 1 and 3 are in no group.
    auto even = c.split(c.rank() % 2 == 0 ? 7 : -1, -c.rank());
    if (!even.ok()) return even.status().to_string();
    if (c.rank() % 2 == 1) return *even == nullptr ? "" : "a group for a negative color";
    if ((*even)->size() != 3 || (*even)->rank() != (4 - c.rank()) / 2)
      return fmt::format("rank {} of {}", (*even)->rank(), (*even)->size());
    std::int32_t value = c.rank();
    std::vector<std::int32_t> all(3);
    if (const Status status = (*even)->all_gather(&value, all.data(), 1, DataType::int32); !status.ok())
      return status.to_string();
    return all == std::vector<std::int32_t>{4, 2, 0} ? "" : "wrong order";
  });
}

TEST_P(Groups, GroupNeedsNoCallOfOtherRanks) {
  expect_ranks(4, over(GetParam()), [](Communicator& c) -> std::string {
    const std::vector<std::vector<int>> lists{{2, 0}, {1, 3}, {3, 2, 1, 0}, {0}, {1, 2, 3}};
    for (const auto& list : lists) {
      if (std::find(list.begin(), list.end(), c.rank()) == list.end()) continue;
      auto group = c.group(list);
      if (!group.ok()) return group.status().to_string();
      if (list[static_cast<std::size_t>((*group)->rank())] != c.rank()) return "wrong rank";
      for (const std::size_t count : {1, 1000, 200000}) {
        if (std::string error = check_sum(**group, c.rank(), list, count); !error.empty()) return error;
      }
    }
    return check_sum(c, c.rank(), {0, 1, 2, 3}, 1000);
  });
}

TEST_P(Groups, BadListsAreRefused) {
  expect_ranks(2, over(GetParam()), [](Communicator& c) -> std::string {
    const std::vector<std::vector<int>> lists{{}, {0, 0, 1}, {0, 1, 2}, {-1, 0, 1}, {1 - c.rank()}};
    for (const auto& list : lists) {
      const auto group = c.group(list);
      if (group.ok() || group.status().code() != StatusCode::invalid_argument) return "accepted: " + group.status().to_string();
    }
    return check_sum(c, c.rank(), {0, 1}, 10);
  });
}

TEST_P(Groups, OverlappingGroupsAllowDifferentOrders) {
  expect_ranks(4, over(GetParam()), [](Communicator& c) -> std::string {
    // Every pair, every triple, all ranks; each rank makes the calls of its groups in another order.
    std::vector<std::vector<int>> lists;
    for (unsigned set = 1; set < 16; ++set) {
      std::vector<int> list;
      for (int rank = 0; rank < 4; ++rank) {
        if ((set >> rank & 1) != 0) list.push_back(rank);
      }
      if (list.size() > 1 && (set >> c.rank() & 1) != 0) lists.push_back(list);
    }
    std::vector<std::unique_ptr<Communicator>> groups;
    for (const auto& list : lists) {
      auto group = c.group(list);
      if (!group.ok()) return group.status().to_string();
      groups.push_back(std::move(*group));
    }
    std::vector<std::size_t> order(groups.size());
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < 6; ++round) {
      const std::size_t count = round % 2 == 0 ? 50000 : 7;
      std::rotate(order.begin(), order.begin() + (c.rank() + round) % static_cast<int>(order.size()), order.end());
      if ((c.rank() + round) % 2 == 0) std::reverse(order.begin(), order.end());
      std::vector<std::vector<std::int32_t>> buffers(groups.size(), std::vector<std::int32_t>(count, c.rank() + 1));
      std::vector<Work> works(groups.size());
      for (const std::size_t g : order) {
        auto work = groups[g]->all_reduce_async(buffers[g].data(), buffers[g].data(), count, DataType::int32, ReduceOp::sum);
        if (!work.ok()) return work.status().to_string();
        works[g] = *work;
      }
      for (std::size_t g = 0; g < groups.size(); ++g) {
        if (const Status status = works[g].wait(); !status.ok()) return status.to_string();
        std::int32_t expected = 0;
        for (const int rank : lists[g]) expected += rank + 1;
        if (std::count(buffers[g].begin(), buffers[g].end(), expected) != static_cast<std::ptrdiff_t>(count))
          return fmt::format("round {}: a group of {} has a wrong sum", round, lists[g].size());
      }
    }
    return {};
  });
}

TEST_P(Groups, ParentAndGroupsCanBeDestroyedInAnyOrder) {
  const auto outcomes = testing::run_ranks(3, [](int rank, int size, const std::string& directory) -> std::string {
    auto world = testing::join(directory, rank, size, over(GetParam()));
    if (!world.ok()) return world.status().to_string();
    auto first = (*world)->split(0, rank);
    auto second = (*world)->split(0, -rank);
    if (!first.ok() || !second.ok()) return first.status().to_string() + second.status().to_string();
    if (rank == 1) first->reset();
    world->reset();
    if (rank != 1) first->reset();
    auto third = (*second)->split(rank == 0 ? 0 : 1, 0);
    if (!third.ok()) return third.status().to_string();
    if (rank == 2) {
      if (std::string error = check_sum(**second, rank, {0, 1, 2}, 1000); !error.empty()) return error;
      second->reset();
    } else {
      if (std::string error = check_sum(**second, rank, {0, 1, 2}, 1000); !error.empty()) return error;
    }
    return check_sum(**third, rank, rank == 0 ? std::vector<int>{0} : std::vector<int>{1, 2}, 1000);
  });
  testing::expect_all_well(outcomes);
}

TEST_P(Groups, ErrorDoesNotAffectOtherGroups) {
  expect_ranks(3, over(GetParam()), [](Communicator& c) -> std::string {
    auto bad = c.split(0, 0);
    auto good = c.split(0, 0);
    if (!bad.ok() || !good.ok()) return "split failed";
    if (std::string error = check_sum(**bad, c.rank(), {0, 1, 2}, 100); !error.empty()) return error;
    // Rank 2 disagrees; a megabyte is in flight when the mismatch is found.
    std::vector<float> data(300000);
    const Status status =
        (*bad)->all_reduce(data.data(), data.data(), data.size() - (c.rank() == 2 ? 1 : 0), DataType::float32, ReduceOp::sum);
    if (status.ok()) {
      if ((*bad)->barrier().ok()) return "no mismatch was reported";
    } else if (status.code() != StatusCode::mismatch) {
      return status.to_string();
    }
    data = {};
    for (int k = 0; k < 3; ++k) {
      if (std::string error = check_sum(**good, c.rank(), {0, 1, 2}, 100000); !error.empty()) return "good: " + error;
      if (std::string error = check_sum(c, c.rank(), {0, 1, 2}, 100000); !error.empty()) return "world: " + error;
    }
    return (*bad)->status().code() == StatusCode::mismatch ? "" : "closed for another reason: " + (*bad)->status().to_string();
  });
}

TEST_P(Groups, DeadRankClosesOnlyItsGroups) {
  const auto outcomes = testing::run_ranks(4, [](int rank, int size, const std::string& directory) -> std::string {
    auto world = testing::join(directory, rank, size, over(GetParam()));
    if (!world.ok()) return world.status().to_string();
    const std::vector<int> with{1, 3};
    const std::vector<int> without{0, 1, 2};
    Result<std::unique_ptr<Communicator>> pair = std::unique_ptr<Communicator>();
    Result<std::unique_ptr<Communicator>> trio = std::unique_ptr<Communicator>();
    if (rank % 2 == 1) pair = (*world)->group(with);
    if (rank != 3) trio = (*world)->group(without);
    if (!pair.ok() || !trio.ok()) return "group failed";
    if (const Status status = (*world)->barrier(); !status.ok()) return status.to_string();
    // Rank 3 dies when no rank is in that barrier any more.
    std::uint8_t token = 0;
    for (const int peer : without) {
      Status status;
      if (rank == 3) status = (*world)->recv(&token, 1, DataType::uint8, peer);
      if (rank == peer) status = (*world)->send(&token, 1, DataType::uint8, 3);
      if (!status.ok()) return status.to_string();
    }
    if (rank == 3) ::kill(::getpid(), SIGKILL);
    if (rank == 1) {
      const Status status = (*pair)->barrier();
      if (status.code() != StatusCode::peer_failed || !testing::mentions(status.message(), "rank 1", "rank 3"))
        return "pair: " + status.to_string();
    }
    const Status status = (*world)->barrier();
    if (status.code() != StatusCode::peer_failed || status.message().find("rank 3") == std::string::npos)
      return "world: " + status.to_string();
    if (std::string error = check_sum(**trio, rank, without, 100000); !error.empty()) return "trio: " + error;
    // A new group would contain the dead rank.
    if (rank != 1) return {};
    const auto late = (*world)->group(with);
    return late.ok() ? "a group of a closed communicator" : "";
  });
  testing::expect_all_well(outcomes, {}, {3});
}

std::size_t open_descriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Bytes that this process has from malloc; zero under sanitizers, which do not count them.
std::size_t heap_bytes() {
  const auto all = ::mallinfo2();
  return all.uordblks + all.hblkhd;
}

std::size_t threads() {
  const auto all = std::filesystem::directory_iterator("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

/// Bytes of shared memory that this process has touched.
std::size_t shared_bytes() {
  std::ifstream maps("/proc/self/smaps");
  std::size_t kib = 0;
  bool shared = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' '))
      shared = line.find("/memfd:shoal") != std::string::npos;  // the first line of a mapping
    if (shared && line.starts_with("Rss:")) kib += std::stoul(line.substr(4));
  }
  return kib << 10;
}

// More groups than there are windows. Ranks make their calls in different orders, and destroy some groups before peers have
// made them.
TEST_P(Groups, ManyGroupsWorkTogetherAndInSequence) {
  expect_ranks(3, over(GetParam()), [](Communicator& c) -> std::string {
    const std::vector<std::vector<int>> lists{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {0, 1}, {2, 1}, {0, 2}, {2, 0}};
    const auto is_member = [&](const std::vector<int>& list) { return std::ranges::find(list, c.rank()) != list.end(); };
    constexpr std::size_t kAtATime = 100;
    const auto many = [&]() -> std::string {
      std::vector<std::unique_ptr<Communicator>> groups(kAtATime);
      std::vector<std::vector<std::int32_t>> buffers(kAtATime, std::vector<std::int32_t>(9, c.rank() + 1));
      std::vector<Work> works;
      for (std::size_t k = 0; k < kAtATime; ++k) {
        const auto& list = lists[k % lists.size()];
        if (!is_member(list)) continue;
        auto group = c.group(list);
        if (!group.ok()) return group.status().to_string();
        groups[k] = std::move(*group);
      }
      for (std::size_t i = 0; i < kAtATime; ++i) {
        const std::size_t k = c.rank() == 1 ? kAtATime - 1 - i : i;
        if (groups[k] == nullptr) continue;
        auto work = groups[k]->all_reduce_async(buffers[k].data(), buffers[k].data(), 9, DataType::int32, ReduceOp::sum);
        if (!work.ok()) return work.status().to_string();
        works.push_back(*work);
      }
      for (Work& work : works) {
        if (const Status status = work.wait(); !status.ok()) return status.to_string();
      }
      for (std::size_t k = 0; k < kAtATime; ++k) {
        if (groups[k] == nullptr) continue;
        std::int32_t expected = 0;
        for (const int member : lists[k % lists.size()]) expected += member + 1;
        if (std::count(buffers[k].begin(), buffers[k].end(), expected) != 9) return fmt::format("wrong sum in group {}", k);
        groups[k].reset();
      }
      return {};
    };
    const auto in_turn = [&](int rounds) -> std::string {
      for (int round = 0; round < rounds; ++round) {
        for (const auto& list : lists) {
          if (!is_member(list)) continue;
          auto group = c.group(list);
          if (!group.ok()) return group.status().to_string();
          // The root waits for no peer, and may be in the next groups already.
          std::int32_t value = c.rank() == list[0] ? 7 * round : -1;
          if (const Status status = (*group)->broadcast(&value, 1, DataType::int32, 0); !status.ok()) return status.to_string();
          if (value != 7 * round) return fmt::format("round {}: {}", round, value);
          if (round % 2 == 1) continue;  // the root may destroy the group
          if (std::string error = check_sum(**group, c.rank(), list, static_cast<std::size_t>(round % 3 * 40 + 1));
              !error.empty())
            return error;
        }
      }
      return {};
    };
    for (const auto& part : {in_turn(40), many(), in_turn(10), many()}) {
      if (!part.empty()) return part;
    }
    return {};
  });
}

// Members have other ranks in the group than in the job. With memory from mem_alloc and private memory.
TEST_P(Groups, MembersAccessMemoryOfPeers) {
  expect_ranks(4, over(GetParam()), [](Communicator& c) -> std::string {
    const std::vector<int> list{3, 1, 2};
    if (c.rank() == 0) return {};
    auto group = c.group(list);
    if (!group.ok()) return group.status().to_string();
    const int rank = (*group)->rank();
    constexpr std::size_t kCount = 300'001;
    for (const bool shared : {true, false}) {
      const testing::TestBuffer<std::int32_t> data(kCount, shared);
      const testing::TestBuffer<std::int32_t> all(3 * kCount, shared);
      for (int round = 0; round < 3; ++round) {
        const auto value = [&](int of_rank, std::size_t i) {
          return static_cast<std::int32_t>(i % 1000) * (of_rank + round + 1);
        };
        for (std::size_t i = 0; i < kCount; ++i) data[i] = value(rank, i);
        if (const Status status = (*group)->all_gather(data.data(), all.data(), kCount, DataType::int32); !status.ok())
          return status.to_string();
        if (const Status status = (*group)->all_reduce(data.data(), data.data(), kCount, DataType::int32, ReduceOp::sum);
            !status.ok())
          return status.to_string();
        for (std::size_t i = 0; i < kCount; ++i) {
          for (const int each : {0, 1, 2}) {
            if (all[static_cast<std::size_t>(each) * kCount + i] != value(each, i))
              return fmt::format("gathered: element {} of {}", i, each);
          }
          if (data[i] != value(0, i) + value(1, i) + value(2, i)) return fmt::format("summed: element {}", i);
        }
        if (const Status status = (*group)->broadcast(data.data(), kCount, DataType::int32, round); !status.ok())
          return status.to_string();
      }
    }
    return {};
  });
}

TEST_P(Groups, GroupsUseNoDescriptorsAndLittleMemory) {
  expect_ranks(3, over(GetParam()), [](Communicator& c) -> std::string {
    if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    const std::size_t descriptors = open_descriptors();
    const std::size_t memory = c.memory_bytes();
    const std::size_t heap = heap_bytes();
    std::vector<std::unique_ptr<Communicator>> groups;
    for (int k = 0; k < 64; ++k) {
      auto group = c.split(0, k % 2 == 0 ? c.rank() : -c.rank());
      if (!group.ok()) return group.status().to_string();
      groups.push_back(std::move(*group));
    }
    const std::size_t made = heap_bytes() - heap;
    std::vector<std::vector<std::int32_t>> buffers(64, std::vector<std::int32_t>(5000, c.rank() + 1));
    const std::size_t heap_between = heap_bytes();
    const std::size_t threads_between = threads();
    std::vector<Work> works;
    for (std::size_t k = 0; k < 64; ++k) {
      const std::size_t g = c.rank() == 1 ? 63 - k : k;
      auto work = groups[g]->all_reduce_async(buffers[g].data(), buffers[g].data(), 5000, DataType::int32, ReduceOp::sum);
      if (!work.ok()) return work.status().to_string();
      works.push_back(*work);
    }
    for (Work& work : works) {
      if (const Status status = work.wait(); !status.ok()) return status.to_string();
    }
    for (const auto& buffer : buffers) {
      if (std::count(buffer.begin(), buffer.end(), 6) != 5000) return "wrong sum";
    }
    works.clear();
    const std::size_t used = heap_bytes() - heap_between;
    // Small calls use windows if there are any. The larger calls before may have touched all slots of all rings.
    const std::size_t shared_between = shared_bytes();
    for (std::size_t k = 0; k < 64; ++k) {
      if (std::string error = check_sum(*groups[k], c.rank(), {0, 1, 2}, 1000); !error.empty()) return error;
    }
    const std::size_t touched = shared_bytes() - shared_between;
    const std::size_t open = open_descriptors();
    // A rank that leaves closes connections, which its peers still count.
    if (const Status together = c.barrier(); !together.ok()) return "barrier: " + together.to_string();
    if (c.rank() == 0) {
      fmt::print(
          "64 groups of 3 over {}: {} KiB when made, {} KiB more after a call each, {} KiB of shared memory after a small one "
          "each\n",
          GetParam(), made >> 10, used >> 10, touched >> 10);
      std::fflush(stdout);  // the process ends by _exit()
    }
    // After a call each group holds a Plan and an Operation; all groups share scratch memory.
    if (made > 64 * (std::size_t{64} << 10)) return fmt::format("64 groups hold {} bytes", made);
    if (used > 64 * (std::size_t{64} << 10)) return fmt::format("64 groups hold {} bytes more after a call each", used);
    // For each of three ranks: two slots for data, and their flags.
    if (touched > 64 * 3 * (std::size_t{32} << 10))
      return fmt::format("64 groups share {} bytes after a small call each", touched);
#ifdef SHOAL_TSAN
    constexpr std::size_t kStarted = 2;  // the progress thread and the sanitizer's thread
#else
    constexpr std::size_t kStarted = 1;
#endif
    if (threads() > threads_between + kStarted) return fmt::format("{} threads became {}", threads_between, threads());
    if (open != descriptors) return fmt::format("{} descriptors became {}", descriptors, open);
    if (c.memory_bytes() != memory) return fmt::format("{} bytes became {}", memory, c.memory_bytes());
    std::size_t of_groups = 0;
    for (const auto& group : groups) of_groups += group->memory_bytes();
    return of_groups == 0 ? "" : fmt::format("{} bytes are spilled though nothing is in flight", of_groups);
  });
}

}  // namespace
}  // namespace shoal
