// Guarantees to callers: no ok before the call has ended, no bytes of another message, no wait without an end.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/eventually.h"
#include "tests/facts.h"
#include "tests/fault/clauses.h"
#include "tests/multiprocess/ranks.h"
#include "tests/multiprocess/shared_buffer.h"
#include "tests/multiprocess/shared_count.h"
#include "tests/slack.h"

namespace shoal {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

CommunicatorOptions over(const char* transports, milliseconds timeout = std::chrono::seconds(20)) {
  CommunicatorOptions options;
  options.transports = transports;
  options.timeout = timeout;
  return options;
}

CallOptions within(milliseconds timeout) {
  CallOptions options;
  options.timeout = timeout;
  return options;
}

class Guards : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, Guards, ::testing::Values("shm", "tcp"), [](const auto& info) { return std::string(info.param); });

// Rank 1 is late in an all_gather. A barrier after it, with its own deadline, cannot start before all ranks are in the
// all_gather.
TEST_P(Guards, BlockedCallTimesOutAtItsOwnDeadline) {
  testing::SharedCount ended;
  const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
    ::setenv("SHOAL_SINGLE_COPY", "2", 1);  // with large shares, ranks wait for each other before they copy
    auto made = testing::join(directory, rank, size, over(GetParam()));
    if (!made.ok()) return made.status().to_string();
    Communicator& c = **made;
    // More than sockets hold: the call of rank 1 cannot succeed by what rank 0 has sent.
    const testing::TestBuffer<float> in(1 << 22, false);
    const testing::TestBuffer<float> out(2 << 22, false);
    if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    if (rank == 1) {
      if (!ended.reaches(1)) return "rank 0 waits on";
      const Status status = c.all_gather(in.data(), out.data(), in.size(), DataType::float32);
      return status.code() == StatusCode::timeout ? "" : "rank 1: " + status.to_string();
    }
    auto work = c.all_gather_async(in.data(), out.data(), in.size(), DataType::float32);
    if (!work.ok()) return work.status().to_string();
    const FairClock clock;
    const Status status = c.barrier(within(milliseconds(300)));
    const double seconds = clock.real_seconds();
    const bool late = clock.seconds() > 1 * kSlack;
    ended.add();
    if (status.code() != StatusCode::timeout || !testing::mentions(status.message(), "call 2", "barrier"))
      return "the barrier: " + status.to_string();
    if (testing::late_ranks_in(status.message()) != std::set{1}) return "the culprit: " + status.to_string();
    if (seconds < 0.29 || late) return fmt::format("after {:.2f} s", seconds);
    return work->wait().ok() ? "the all_gather succeeded" : "";
  });
  testing::expect_all_well(outcomes);
}

// A call gets its sequence number when it is made. One that is not posted blocks later calls only until their deadlines.
TEST_P(Guards, CallBehindUnpostedCallTimesOut) {
  testing::expect_ranks(2, over(GetParam()), [](Communicator& c) -> std::string {
    float one = 1;
    std::atomic<int> stage{0};
    std::thread holder([&] {
      Communicator::group_begin();
      static_cast<void>(c.all_reduce(&one, &one, 1, DataType::float32, ReduceOp::sum));
      stage.store(1);
      stage.notify_all();
      stage.wait(1);
      static_cast<void>(Communicator::group_end());
    });
    stage.wait(0);
    const FairClock clock;
    const Status status = c.barrier(within(milliseconds(300)));
    const double seconds = clock.seconds();
    stage.store(2);
    stage.notify_all();
    holder.join();
    if (status.code() != StatusCode::timeout) return "the barrier: " + status.to_string();
    if (!testing::mentions(status.message(), "barrier") || testing::first_rank_named_in(status.message()) < 0)
      return status.message();
    return seconds < 1 * kSlack ? "" : fmt::format("after {:.2f} s", seconds);
  });
}

// A wait for a call in the open group of another thread does not wait for that thread.
TEST_P(Guards, WaitForCallInOtherThreadsOpenGroupEnds) {
  for (const bool aborts : {false, true}) {
    testing::SharedCount ended;
    const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
      auto made = testing::join(directory, rank, size, over(GetParam()));
      if (!made.ok()) return made.status().to_string();
      Communicator& c = **made;
      if (const Status status = c.barrier(); !status.ok()) return status.to_string();
      if (rank == 1) {
        if (!ended.reaches(1)) return "rank 0 waits on";
        return c.barrier().ok() ? "no error on rank 1" : "";
      }
      float one = 1;
      Work kept;
      std::atomic<int> stage{0};
      std::thread holder([&] {
        Communicator::group_begin();
        auto work =
            c.all_reduce_async(&one, &one, 1, DataType::float32, ReduceOp::sum, within(milliseconds(aborts ? 20'000 : 300)));
        if (work.ok()) kept = std::move(work).value();
        stage.store(1);
        stage.notify_all();
        stage.wait(1);
        static_cast<void>(Communicator::group_end());
      });
      stage.wait(0);
      std::thread aborter([&] {
        ::usleep(200'000);
        if (aborts) c.abort("by the test");
      });
      const FairClock clock;
      const Status status = kept.wait();
      const double seconds = clock.seconds();
      ended.add();
      aborter.join();
      stage.store(2);
      stage.notify_all();
      holder.join();
      if (status.code() != (aborts ? StatusCode::aborted : StatusCode::timeout)) return status.to_string();
      return seconds < 1 * kSlack ? "" : fmt::format("after {:.2f} s", seconds);
    });
    testing::expect_all_well(outcomes, aborts ? "abort" : "deadline");
  }
}

// The communicator of a collected call is destroyed before the call group ends.
TEST_P(Guards, GroupEndAfterDestructionEndsItsCalls) {
  testing::expect_ranks(2, over(GetParam()), [](Communicator& c) -> std::string {
    std::vector<float> data(1000);
    for (const bool has_callback : {false, true}) {
      auto group = c.split(0, 0);
      if (!group.ok()) return group.status().to_string();
      std::atomic<int> outcome_code{-1};
      Communicator::group_begin();
      {
        auto work = (*group)->send_async(data.data(), data.size(), DataType::float32, 1 - c.rank());
        if (!work.ok()) return work.status().to_string();
        if (has_callback) {
          const Status status =
              work->on_completion([&](const Status& outcome) { outcome_code = static_cast<int>(outcome.code()); });
          if (!status.ok()) return status.to_string();
        }
      }
      group->reset();
      if (const Status status = Communicator::group_end(); !status.ok()) return status.to_string();
      if (has_callback && outcome_code.load() != static_cast<int>(StatusCode::aborted))
        return fmt::format("the callback got {}", outcome_code.load());
      if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    }
    return {};
  });
}

/// With small send buffers tiles wait in the links.
void shrink_socket_buffers() {
  for (int fd = 3; fd < 1024; ++fd) {
    int kind = 0;
    socklen_t length = sizeof kind;
    const int bytes = 4096;
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &kind, &length) == 0 && kind == AF_INET)
      ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  }
}

// A callback aborts while a link to a late rank still uses another call's buffer: that call ends only when the link no longer
// uses the buffer.
TEST_P(Guards, AbortInCallbackKeepsBuffersUntilLinksAreDone) {
  static constexpr std::size_t kBytes = 16 << 20;
  const auto outcomes = testing::run_ranks(2, [](int rank, int size, const std::string& directory) -> std::string {
    for (const char* name : {"SHOAL_SINGLE_COPY", "SHOAL_PROBE"}) ::setenv(name, "0", 1);
    ::setenv("SHOAL_INTEGRITY", "off", 1);  // with checksums every tile is copied
    auto made = testing::join(directory, rank, size, over(GetParam()));
    if (!made.ok()) return made.status().to_string();
    Communicator& c = **made;
    if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    auto* const large =
        static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (large == MAP_FAILED) return "no memory";
    std::fill_n(large, kBytes, std::byte{1});
    shrink_socket_buffers();
    std::vector<std::byte> mine(1000);
    std::vector<std::byte> all(2 * mine.size());
    if (rank == 1) ::usleep(300'000);  // then rank 0 is in both calls, and the second one has filled the link
    auto older = c.gather_async(mine.data(), all.data(), mine.size(), DataType::uint8, 0);
    if (!older.ok()) return older.status().to_string();
    if (rank == 1) {
      static_cast<void>(older->wait());
      ::usleep(static_cast<useconds_t>(500'000 * kSlack));
      const Status status = c.broadcast(large, kBytes, DataType::uint8, 0);
      return status.code() == StatusCode::aborted ? "" : "rank 1: " + status.to_string();
    }
    std::atomic<int> outcome_code{-1};
    static_cast<void>(older->on_completion([&](const Status& outcome) {
      outcome_code = static_cast<int>(outcome.code());
      c.abort("by the test");
    }));
    auto younger = c.broadcast_async(large, kBytes, DataType::uint8, 0);
    if (!younger.ok()) return younger.status().to_string();
    std::atomic<bool> freed{false};
    const Status set = younger->on_completion([&](const Status&) {
      ::munmap(large, kBytes);
      freed = true;
    });
    if (!set.ok()) return set.to_string();
    const Status status = younger->wait();
    const bool called = testing::eventually([&] { return freed.load(); });
    if (outcome_code.load() != static_cast<int>(StatusCode::ok))
      return "the gather has not ended: " + older->status().to_string();
    if (!called) return "its callback was not called";
    return status.code() == StatusCode::aborted ? "" : status.to_string();
  });
  testing::expect_all_well(outcomes);
}

// A lent tile stays in the sender's memory. If the sender's call fails before the receiver has read it, the sender may reuse
// the buffer.
TEST(LentMemory, IsNotReadAfterSenderHasFailed) {
  static constexpr std::size_t kCount = 1 << 17;  // all of it fits between sender and receiver
  for (const bool frees : {false, true}) {
    testing::SharedCount reused;
    testing::SharedCount read;
    const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
      ::setenv("SHOAL_SINGLE_COPY", "0", 1);
      auto made = testing::join(directory, rank, size, over("shm"));
      if (!made.ok()) return made.status().to_string();
      Communicator& c = **made;
      auto buffer = std::make_unique<testing::TestBuffer<float>>(kCount, true);
      std::fill_n(buffer->data(), kCount, rank == 0 ? 1.0F : 0.0F);
      if (const Status status = c.barrier(); !status.ok()) return status.to_string();
      if (rank == 1 && !reused.reaches(1)) return "rank 0 waits on";
      const Status status =
          c.broadcast(buffer->data(), kCount, DataType::float32, 0, within(milliseconds(rank == 0 ? 200 : 10'000)));
      if (rank == 0) {
        std::fill_n(buffer->data(), kCount, 7.0F);
        if (frees) buffer.reset();
        reused.add();
        if (!read.reaches(1)) return "rank 1 waits on";
        return status.code() == StatusCode::timeout ? "" : "rank 0: " + status.to_string();
      }
      read.add();
      const bool right = std::all_of(buffer->data(), buffer->data() + kCount, [](float x) { return x == 1.0F; });
      return status.ok() && !right ? "ok, with other bytes" : status.ok() ? "ok, though the root failed" : "";
    });
    testing::expect_all_well(outcomes, frees ? "freed" : "overwritten");
  }
}

// A thread of rank 0 waits in a group while another thread keeps the engine busy.
TEST_P(Guards, TrafficDoesNotHideOtherDeadlines) {
  testing::expect_ranks(2, over(GetParam()), [](Communicator& c) -> std::string {
    auto group = c.split(0, c.rank());
    if (!group.ok()) return group.status().to_string();
    std::atomic<bool> ended{false};
    std::string wrong;
    std::thread other;
    if (c.rank() == 0) {
      other = std::thread([&] {
        const FairClock clock;
        const Status status = (*group)->barrier(within(milliseconds(300)));
        const double seconds = clock.seconds();
        if (status.code() != StatusCode::timeout) wrong = "the group: " + status.to_string();
        if (seconds > 1.3 * kSlack) wrong = fmt::format("after {:.2f} s", seconds);
        ended.store(true);
      });
    }
    std::vector<float> data(20'000);
    const FairClock clock;
    // Rank 0 sends the end in the data, so that both ranks make the same number of calls.
    for (bool enough = false; !enough;) {
      data[0] = c.rank() == 0 && (ended.load() || clock.seconds() > 4 * kSlack) ? 1.0F : 0.0F;
      const Status status = c.all_reduce(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::max);
      if (!status.ok()) {
        wrong = "the traffic: " + status.to_string();
        break;
      }
      enough = data[0] == 1.0F;
    }
    if (other.joinable()) other.join();
    return wrong;
  });
}

TEST_P(Guards, CallGroupRefusesCallsThatWait) {
  testing::expect_ranks(2, over(GetParam()), [](Communicator& c) -> std::string {
    Communicator::group_begin();
    const auto split = c.split(0, 0);
    const auto shrunk = c.shrink();
    const auto group = c.group(std::vector<int>{c.rank()});  // waits for no peer
    const Status end = Communicator::group_end();
    for (const Status& status : {split.status(), shrunk.status()}) {
      if (status.code() != StatusCode::invalid_argument || status.message().find("group_begin()") == std::string::npos)
        return status.to_string();
    }
    if (!group.ok() || !end.ok()) return group.status().to_string() + end.to_string();
    return c.barrier().ok() ? "" : "the communicator is not usable";
  });
}

TEST_P(Guards, CallbackRefusesCallsThatWait) {
  testing::expect_ranks(2, over(GetParam()), [](Communicator& c) -> std::string {
    float one = 1;
    Communicator::group_begin();  // so that the call cannot end before it has its callback
    auto work = c.all_reduce_async(&one, &one, 1, DataType::float32, ReduceOp::sum);
    if (!work.ok()) return work.status().to_string();
    std::atomic<bool> called{false};
    std::string wrong;
    const Status set = work->on_completion([&](const Status&) {
      const std::vector<int> both{0, 1};
      for (const Status& status : {c.group(both).status(), c.split(0, 0).status(), c.shrink().status()}) {
        if (status.code() != StatusCode::invalid_argument || !testing::mentions(status.message(), "on_completion"))
          wrong += status.to_string() + "; ";
      }
      static_cast<void>(c.memory_bytes());
      called.store(true);
    });
    if (!set.ok()) return set.to_string();
    if (const Status status = Communicator::group_end(); !status.ok()) return status.to_string();
    if (const Status status = work->wait(); !status.ok()) return status.to_string();
    const Status status = c.barrier();
    return !status.ok() ? status.to_string() : called.load() ? wrong : "the callback was not called";
  });
}

TEST_P(Guards, ForkedChildCannotShrinkOrWait) {
  testing::SharedCount forked;
  testing::expect_ranks(2, over(GetParam()), [&](Communicator& c) -> std::string {
    float one = 1;
    // Rank 1 makes the call late, so it is in flight when rank 0 forks.
    if (c.rank() == 1 && !forked.reaches(1)) return "rank 0 waits on";
    auto work = c.all_reduce_async(&one, &one, 1, DataType::float32, ReduceOp::sum);
    if (!work.ok()) return work.status().to_string();
    if (c.rank() == 0) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::alarm(10);  // ends a child that hangs
        const bool shrunk = c.shrink().status().code() == StatusCode::aborted;
        const bool waited = work->wait().code() == StatusCode::aborted;
        static_cast<void>(c.memory_bytes());
        ::_exit(shrunk && waited ? 0 : 1);
      }
      int end = 0;
      if (::waitpid(child, &end, 0) != child || end != 0) return fmt::format("the child ended with {:#x}", end);
      forked.add();
    }
    if (const Status status = work->wait(); !status.ok()) return status.to_string();
    const Status status = c.barrier();
    return status.ok() && one == 2 ? "" : status.to_string();
  });
}

TEST_P(Guards, MaximumTimeoutDoesNotExpire) {
  testing::expect_ranks(2, over(GetParam(), milliseconds::max()), [](Communicator& c) -> std::string {
    float one = 1;
    if (c.rank() == 1) ::usleep(50'000);
    for (const auto& options : {within(milliseconds::max()), CallOptions()}) {
      if (const Status status = c.barrier(options); !status.ok()) return status.to_string();
    }
    auto work = c.all_reduce_async(&one, &one, 1, DataType::float32, ReduceOp::sum);
    if (!work.ok()) return work.status().to_string();
    const Status waited = work->wait_for(std::chrono::nanoseconds::max());
    const auto shrunk = c.shrink({}, milliseconds::max());
    return !waited.ok() ? waited.to_string() : shrunk.ok() ? "" : shrunk.status().to_string();
  });
}

}  // namespace
}  // namespace shoal
