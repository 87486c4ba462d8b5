// send and recv on real processes: order, tags, any source, sizes, many in flight, mismatches, deadlines, grouped calls.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/facts.h"
#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

using testing::expect_ranks;

CommunicatorOptions over(const char* transports) {
  CommunicatorOptions options;
  options.transports = transports;
  options.timeout = std::chrono::seconds(30);
  return options;
}

class Messages : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, Messages, ::testing::Values("shm", "tcp"), [](const auto& info) { return std::string(info.param); });

std::vector<std::int32_t> numbers(std::size_t count, std::int32_t first) {
  std::vector<std::int32_t> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = first + static_cast<std::int32_t>(i);
  return data;
}

TEST_P(Messages, EverySizeArrivesUnchanged) {
  expect_ranks(3, over(GetParam()), [](Communicator& c) -> std::string {
    for (const std::size_t count : {0, 1, 7, 512, 513, 4096, 16384, 16385, 300000, 3000000}) {
      const auto sent = numbers(count, 10 * c.rank());
      if (c.rank() == 1) {
        for (const int to : {0, 2}) {
          if (const Status status = c.send(sent.data(), count, DataType::int32, to, 3); !status.ok()) return status.to_string();
        }
        continue;
      }
      std::vector<std::int32_t> got(count, -1);
      if (const Status status = c.recv(got.data(), count, DataType::int32, 1, 3); !status.ok()) return status.to_string();
      if (got != numbers(count, 10)) return fmt::format("{} elements: wrong", count);
    }
    return {};
  });
}

// More messages than a sender may have in flight without a recv.
TEST_P(Messages, ManyEmptyMessagesArrive) {
  expect_ranks(2, over(GetParam()), [](Communicator& c) -> std::string {
    constexpr int kMany = 200;
    std::int32_t none = 0;
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<Work> works;
      for (int k = 0; c.rank() == 0 && k < kMany; ++k) {
        auto work = c.send_async(&none, 0, DataType::int32, 1, k % 7);
        if (!work.ok()) return work.status().to_string();
        works.push_back(std::move(work).value());
      }
      for (int k = 0; c.rank() == 1 && k < kMany; ++k) {
        if (const Status status = c.recv(&none, 0, DataType::int32, 0, k % 7); !status.ok()) return status.to_string();
      }
      for (Work& work : works) {
        if (const Status status = work.wait(); !status.ok()) return status.to_string();
      }
      if (const Status status = c.barrier(); !status.ok()) return status.to_string();
    }
    return {};
  });
}

// Each message has its own tag; the first recv asks for the last message.
TEST_P(Messages, ReceivesMatchTagsInAnyOrder) {
  expect_ranks(2, over(GetParam()), [](Communicator& c) -> std::string {
    constexpr int kMany = 3000;
    std::vector<std::int32_t> data(kMany);
    std::vector<Work> works;
    for (int k = 0; k < kMany; ++k) {
      const int tag = c.rank() == 0 ? k : kMany - 1 - k;
      std::int32_t& element = data[static_cast<std::size_t>(tag)];
      if (c.rank() == 0) element = 7 * tag;
      auto work = c.rank() == 0 ? c.send_async(&element, 1, DataType::int32, 1, tag)
                                : c.recv_async(&element, 1, DataType::int32, 0, tag);
      if (!work.ok()) return work.status().to_string();
      works.push_back(*work);
      // Rank 1 waits for one message, so that many others are announced before their recvs.
      if (c.rank() == 1 && k == 0) {
        if (const Status status = works[0].wait(); !status.ok()) return status.to_string();
      }
    }
    for (Work& work : works) {
      if (const Status status = work.wait(); !status.ok()) return status.to_string();
    }
    for (int k = 0; k < kMany; ++k) {
      if (data[static_cast<std::size_t>(k)] != 7 * k) return fmt::format("message {} is wrong", k);
    }
    return {};
  });
}

TEST(UnexpectedMessages, TooManyFailOnBothRanks) {
  constexpr int kKept = 1 << 18;
  constexpr int kSeconds = 240;  // under sanitizers a send takes 0.1 ms and more
  CommunicatorOptions options = over("shm");
  options.timeout = std::chrono::seconds(kSeconds);
  const auto body = [](Communicator& c) -> std::string {
    std::int32_t none = 0;
    Status status;
    if (c.rank() == 0) {
      for (int k = 0; status.ok() && k < kKept; ++k) status = c.send(&none, 0, DataType::int32, 1, k);
      if (!status.ok()) return "too early: " + status.to_string();
      status = c.send(&none, 0, DataType::int32, 1, kKept);  // may succeed: rank 1 may not have seen it yet
      if (status.ok()) status = c.send(&none, 0, DataType::int32, 1, -1);
      if (status.ok()) status = c.recv(&none, 0, DataType::int32, 1);
    } else {
      status = c.recv(&none, 0, DataType::int32, 0, -1);
    }
    if (status.code() != StatusCode::mismatch) return "no mismatch: " + status.to_string();
    return testing::mentions(status.message(), "rank 0", "rank 1", std::to_string(kKept),
                             std::string("tag ") + std::to_string(kKept))
               ? ""
               : status.message();
  };
  expect_ranks(2, options, body, kSeconds);
}

TEST_P(Messages, MessagesOfOneTagStayInOrder) {
  expect_ranks(2, over(GetParam()), [](Communicator& c) -> std::string {
    constexpr int kEach = 150;
    std::vector<std::vector<std::int32_t>> buffers;
    std::vector<Work> works;
    // Small and large messages, tags 0 and 1 in turn; more than a sender may have in flight without a recv.
    const auto count_of = [](int k) { return k % 5 == 0 ? std::size_t{5000} : std::size_t{3}; };
    for (int k = 0; k < 2 * kEach; ++k) {
      // The receiver receives all messages of tag 1 first.
      const int tag = c.rank() == 0 ? k % 2 : (k < kEach ? 1 : 0);
      const int index = c.rank() == 0 ? k / 2 : k % kEach;
      buffers.push_back(c.rank() == 0 ? numbers(count_of(index), 1000 * tag + index)
                                      : std::vector<std::int32_t>(count_of(index), -1));
      auto work = c.rank() == 0 ? c.send_async(buffers.back().data(), buffers.back().size(), DataType::int32, 1, tag)
                                : c.recv_async(buffers.back().data(), buffers.back().size(), DataType::int32, 0, tag);
      if (!work.ok()) return work.status().to_string();
      works.push_back(*work);
    }
    for (int k = 0; k < 2 * kEach; ++k) {
      const auto at = static_cast<std::size_t>(k);
      if (const Status status = works[at].wait(); !status.ok()) return status.to_string();
      if (c.rank() == 0) continue;
      const int tag = k < kEach ? 1 : 0;
      if (buffers[at] != numbers(count_of(k % kEach), 1000 * tag + k % kEach)) return fmt::format("message {} is wrong", k);
      if (works[at].source() != 0) return "wrong source";
    }
    return {};
  });
}

TEST_P(Messages, AnySourceKeepsOrderOfEachSender) {
  expect_ranks(4, over(GetParam()), [](Communicator& c) -> std::string {
    constexpr int kEach = 40;
    if (c.rank() != 0) {
      for (int k = 0; k < kEach; ++k) {
        const auto data = numbers(k % 3 == 0 ? 2000 : 2, 100 * k + c.rank());
        std::int32_t size = static_cast<std::int32_t>(data.size());
        if (const Status status = c.send(&size, 1, DataType::int32, 0, 1); !status.ok()) return status.to_string();
        if (const Status status = c.send(data.data(), data.size(), DataType::int32, 0, 2); !status.ok())
          return status.to_string();
      }
      return {};
    }
    std::vector<int> seen(4);
    for (int k = 0; k < 3 * kEach; ++k) {
      std::int32_t size = 0;
      auto work = c.recv_async(&size, 1, DataType::int32, kAnySource, 1);
      if (!work.ok()) return work.status().to_string();
      if (const Status status = work->wait(); !status.ok()) return status.to_string();
      const int from = work->source();
      if (from < 1 || from > 3) return fmt::format("source {}", from);
      std::vector<std::int32_t> data(static_cast<std::size_t>(size));
      if (const Status status = c.recv(data.data(), data.size(), DataType::int32, from, 2); !status.ok())
        return status.to_string();
      if (data != numbers(data.size(), 100 * seen[static_cast<std::size_t>(from)]++ + from)) return "out of order";
    }
    return {};
  });
}

TEST_P(Messages, MessagesWorkBesideCollectivesAndToSelf) {
  expect_ranks(3, over(GetParam()), [](Communicator& c) -> std::string {
    auto group = c.split(0, -c.rank());
    if (!group.ok()) return group.status().to_string();
    for (const std::size_t count : {10, 200000}) {
      std::vector<std::vector<std::int32_t>> out(3, numbers(count, c.rank()));
      std::vector<std::vector<std::int32_t>> in(3, std::vector<std::int32_t>(count, -1));
      std::vector<std::int32_t> sum(1000, 1);
      std::vector<Work> works;
      const auto keep = [&](Result<Work> work) {
        if (work.ok()) works.push_back(*work);
        return work.ok();
      };
      bool ok = true;
      // Sends before collectives on even ranks, after them on odd ones.
      if (c.rank() % 2 == 0) {
        for (int peer = 0; peer < 3; ++peer)
          ok &= keep(c.send_async(out[static_cast<std::size_t>(peer)].data(), count, DataType::int32, peer));
      }
      ok &= keep(c.all_reduce_async(sum.data(), sum.data(), sum.size(), DataType::int32, ReduceOp::sum));
      ok &= keep((*group)->barrier_async());
      for (int peer = 0; peer < 3; ++peer)
        ok &= keep(c.recv_async(in[static_cast<std::size_t>(peer)].data(), count, DataType::int32, peer));
      if (c.rank() % 2 == 1) {
        for (int peer = 0; peer < 3; ++peer)
          ok &= keep(c.send_async(out[static_cast<std::size_t>(peer)].data(), count, DataType::int32, peer));
      }
      if (!ok) return "a call was refused";
      for (Work& work : works) {
        if (const Status status = work.wait(); !status.ok()) return status.to_string();
      }
      for (int peer = 0; peer < 3; ++peer) {
        if (in[static_cast<std::size_t>(peer)] != numbers(count, peer)) return fmt::format("from {}: wrong", peer);
      }
      if (sum[999] != 3) return "wrong sum";
    }
    return {};
  });
}

TEST_P(Messages, GroupedSendsAndReceivesDoNotDeadlock) {
  expect_ranks(3, over(GetParam()), [](Communicator& c) -> std::string {
    for (const std::size_t count : {1, 100000}) {
      const int next = (c.rank() + 1) % 3;
      const int previous = (c.rank() + 2) % 3;
      const auto out = numbers(count, c.rank());
      std::vector<std::int32_t> in(count, -1);
      std::vector<std::int32_t> own(count, -1);
      std::int32_t sum = 1;
      Communicator::group_begin();
      // All ranks send first, also to themselves: without the call group large messages would deadlock.
      Status status = c.send(out.data(), count, DataType::int32, next);
      Communicator::group_begin();
      if (status.ok()) status = c.send(out.data(), count, DataType::int32, c.rank(), 9);
      if (status.ok()) status = c.all_reduce(&sum, &sum, 1, DataType::int32, ReduceOp::sum);
      if (const Status inner = Communicator::group_end(); !inner.ok()) return inner.to_string();
      if (status.ok()) status = c.recv(in.data(), count, DataType::int32, previous);
      if (status.ok()) status = c.recv(own.data(), count, DataType::int32, c.rank(), 9);
      if (!status.ok()) return status.to_string();
      if (const Status end = Communicator::group_end(); !end.ok()) return end.to_string();
      if (in != numbers(count, previous) || own != out || sum != 3) return "wrong";
    }
    return Communicator::group_end().code() == StatusCode::invalid_argument ? ""
                                                                            : "group_end() without group_begin() succeeded";
  });
}

TEST_P(Messages, DifferentSizesAndTypesFailOnBothRanks) {
  for (const bool type : {false, true}) {
    for (const std::size_t count : {10, 100000}) {
      expect_ranks(2, over(GetParam()), [&](Communicator& c) -> std::string {
        std::vector<std::int32_t> data(count + 1);
        Status status = c.rank() == 0 ? c.send(data.data(), count, DataType::int32, 1, 4)
                        : type        ? c.recv(data.data(), count, DataType::float32, 0, 4)
                                      : c.recv(data.data(), count + 1, DataType::int32, 0, 4);
        if (status.ok()) status = c.barrier();  // a small send may have ended before the receiver compared it
        if (status.code() != StatusCode::mismatch) return status.to_string();
        for (const std::string& fact : {std::string("rank 0"), std::string("rank 1"), fmt::format("int32 x {}", count),
                                        type ? fmt::format("float32 x {}", count) : fmt::format("int32 x {}", count + 1)}) {
          if (status.message().find(fact) == std::string::npos) return fact + " is not in: " + status.message();
        }
        return {};
      });
    }
  }
}

TEST_P(Messages, ErrorsNameMissingAndLeavingRanks) {
  expect_ranks(2, over(GetParam()), [](Communicator& c) -> std::string {
    auto first = c.split(0, 0);
    auto second = c.split(0, 0);
    if (!first.ok() || !second.ok()) return "split failed";
    std::int32_t value = 0;
    if (c.rank() == 1) {
      second->reset();
      // The peer's deadline closes the group.
      const Status status = (*first)->recv(&value, 1, DataType::int32, 0, 8);
      return status.code() == StatusCode::timeout ? "" : status.to_string();
    }
    CallOptions soon;
    soon.timeout = std::chrono::milliseconds(300);
    Status status = (*first)->recv(&value, 1, DataType::int32, 1, 7, soon);
    if (status.code() != StatusCode::timeout ||
        !testing::mentions(status.message(), "recv", "int32 x 1", "rank 1", "tag 7", "2 ranks", "0, 1", "rank 0"))
      return status.to_string();
    status = (*second)->recv(&value, 1, DataType::int32, 1);
    if (status.code() != StatusCode::peer_failed || status.message().find("rank 1") == std::string::npos)
      return status.to_string();
    return {};
  });
}

TEST(MessageArguments, BadArgumentsAreRefused) {
  // In a child process, because the process that forks the other tests' ranks must not run a progress thread.
  expect_ranks(1, {}, [](Communicator& c) -> std::string {
    std::int32_t value = 1;
    std::int32_t copy = 0;
    const auto bad = [](const Status& status) { return status.code() == StatusCode::invalid_argument; };
    if (!bad(c.send(&value, 1, DataType::int32, 1))) return "a peer that does not exist";
    if (!bad(c.send(&value, 1, DataType::int32, kAnySource))) return "a send to any rank";
    if (!bad(c.recv(nullptr, 1, DataType::int32, 0))) return "a null buffer";
    if (!bad(c.recv(&value, static_cast<std::size_t>(-1), DataType::int32, 0))) return "a negative count";
    const Request unknown{.kind = static_cast<CollectiveKind>(200)};
    if (!bad(c.submit(unknown)) || !bad(c.submit_async(unknown).status())) return "a call of an unknown kind";
    auto sent = c.send_async(&value, 1, DataType::int32, 0, 5);
    if (!sent.ok()) return sent.status().to_string();
    if (const Status status = c.recv(&copy, 1, DataType::int32, kAnySource, 5); !status.ok()) return status.to_string();
    if (const Status status = sent->wait(); !status.ok()) return status.to_string();
    return copy == 1 ? "" : "wrong";
  });
}

}  // namespace
}  // namespace shoal
