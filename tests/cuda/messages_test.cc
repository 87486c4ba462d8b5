// Messages between ranks on streams: order, sizes beyond a staging ring, many at once, mismatches.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
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
using Clock = std::chrono::steady_clock;

StreamCase delayed(int ranks, std::uint64_t seed) {
  StreamCase c;
  c.ranks = ranks;
  c.cuda.seed = seed;
  c.cuda.longest_delay_us = 300;
  return c;
}

/// The staging ring of a stream has 32 chunks of 4 KiB here: the largest messages pass through it several times.
constexpr std::size_t kCounts[] = {0, 1, 1000, 1008, 1009, 40000, 150001};

TEST(StreamMessages, MessagesOfAllSizesArrive) {
  for (const int nodes : {1, 2}) {
    StreamCase c = delayed(2, 1);
    c.nodes = nodes;
    expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
      int call = 0;
      for (const std::size_t count : kCounts) {
        for (const int sender : {0, 1}) {
          const Bytes sent = rank_data(sender, call, count, DataType::float32, true);
          DeviceBuffer buffer(rank, count * 4 + 4, 4);
          Result<StreamWork> work = Status(StatusCode::internal, "no call");
          if (rank.rank() == sender) {
            buffer.set(sent);
            work = rank.group.send(buffer.get(), count, DataType::float32, 1 - sender, call - 5, rank.stream);
          } else {
            work = rank.group.recv(buffer.get(), count, DataType::float32, sender, call - 5, rank.stream);
          }
          if (!work.ok()) return work.status().to_string();
          if (work->sequence() != static_cast<std::uint64_t>(call)) return "the sequence";
          if (Status status = work->wait(); !status.ok()) return status.to_string();
          if (buffer.read(sent.size()) != sent) return fmt::format("message {} of {} is wrong", call, count);
          ++call;
        }
      }
      // Collectives have their own sequence numbers.
      auto barrier = rank.group.barrier(rank.stream);
      if (!barrier.ok() || barrier->sequence() != 0) return "the barrier: " + barrier.status().to_string();
      return barrier->wait().message();
    });
  }
}

/// All pairs of ranks, several messages for each pair and tag, listed in a different order on each rank.
TEST(StreamMessages, ExchangesRunConcurrently) {
  for (const std::uint64_t seed : {2, 3}) {
    expect_stream_ranks(delayed(4, seed), [](StreamRank& rank) -> std::string {
      const int ranks = rank.size();
      for (const std::size_t base : kCounts) {
        std::vector<StreamMessage> messages;
        std::vector<std::unique_ptr<DeviceBuffer>> buffers;
        std::vector<Bytes> wanted;
        // Elements of message `i` from `from` to `to`.
        const auto count_of = [&](int from, int to, int i) {
          return base / 4 + static_cast<std::size_t>(from * 3 + to * 5 + i);
        };
        for (int i = 0; i < 2; ++i) {
          for (int step = 0; step < ranks; ++step) {
            const int peer = (rank.rank() * (ranks - 1) + step) % ranks;  // including itself
            for (const bool is_send : {rank.rank() % 2 == 0, rank.rank() % 2 != 0}) {
              const int from = is_send ? rank.rank() : peer;
              const int to = is_send ? peer : rank.rank();
              const std::size_t count = count_of(from, to, i);
              wanted.push_back(rank_data(from * 10 + to, i, count, DataType::int32, true));
              buffers.push_back(std::make_unique<DeviceBuffer>(rank, count * 4));
              if (is_send) buffers.back()->set(wanted.back());
              messages.push_back({is_send, buffers.back()->get(), count, DataType::int32, peer, 9});
            }
          }
        }
        auto work = rank.group.exchange(messages, rank.stream);
        if (!work.ok()) return work.status().to_string();
        if (Status status = work->wait(); !status.ok()) return status.to_string();
        for (std::size_t i = 0; i < messages.size(); ++i) {
          if (buffers[i]->read(wanted[i].size()) != wanted[i])
            return fmt::format("message {} of about {} is wrong", i, base / 4);
        }
      }
      return "";
    });
  }
}

/// An exchange on one side, single calls on the other; and tags keep messages apart.
TEST(StreamMessages, ExchangesMatchSingleCalls) {
  expect_stream_ranks(delayed(2, 4), [](StreamRank& rank) -> std::string {
    constexpr std::size_t kCount = 3000;
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    for (int i = 0; i < 4; ++i) {
      buffers.push_back(std::make_unique<DeviceBuffer>(rank, kCount * 4));
      if (rank.rank() == 0) buffers.back()->set(rank_data(0, i, kCount, DataType::int32, true));
    }
    if (rank.rank() == 0) {
      // Two of tag 1, in order, around one of tag 2.
      const std::vector<StreamMessage> messages{StreamMessage::send(buffers[0]->get(), kCount, DataType::int32, 1, 1),
                                                StreamMessage::send(buffers[1]->get(), kCount, DataType::int32, 1, 2),
                                                StreamMessage::send(buffers[2]->get(), kCount, DataType::int32, 1, 1)};
      auto work = rank.group.exchange(messages, rank.stream);
      return work.ok() ? work->wait().message() : work.status().to_string();
    }
    int i = 0;
    for (const int tag : {2, 1, 1}) {
      auto work = rank.group.recv(buffers[static_cast<std::size_t>(i)]->get(), kCount, DataType::int32, 0, tag, rank.stream);
      if (!work.ok()) return work.status().to_string();
      if (Status status = work->wait(); !status.ok()) return status.to_string();
      const Bytes sent = rank_data(0, tag == 2 ? 1 : i == 1 ? 0 : 2, kCount, DataType::int32, true);
      if (buffers[static_cast<std::size_t>(i)]->read(kCount * 4) != sent) return fmt::format("message {} is wrong", i);
      ++i;
    }
    return "";
  });
}

/// Each rank first receives from its neighbour on one stream, then sends on another: neither stream waits for the other.
/// Messages of one sender and tag keep their order across streams.
TEST(StreamMessages, StreamsDoNotWaitForEachOther) {
  for (const std::uint64_t seed : {5, 6}) {
    expect_stream_ranks(delayed(3, seed), [](StreamRank& rank) -> std::string {
      const int next = (rank.rank() + 1) % 3;
      const int before = (rank.rank() + 2) % 3;
      const auto other = rank.cuda.create_stream(false);
      constexpr std::size_t kCount = 200000;
      DeviceBuffer in(rank, kCount * 4);
      DeviceBuffer second_in(rank, kCount * 4);
      DeviceBuffer out(rank, kCount * 4);
      DeviceBuffer second_out(rank, kCount * 4);
      out.set(rank_data(rank.rank(), 0, kCount, DataType::int32, true));
      second_out.set(rank_data(rank.rank(), 1, kCount, DataType::int32, true));
      std::vector<Result<StreamWork>> works;
      works.push_back(rank.group.recv(in.get(), kCount, DataType::int32, before, 0, rank.stream));
      works.push_back(rank.group.send(out.get(), kCount, DataType::int32, next, 0, *other));
      const auto third = rank.cuda.create_stream(false);
      works.push_back(rank.group.recv(second_in.get(), kCount, DataType::int32, before, 0, *third));
      const auto fourth = rank.cuda.create_stream(false);
      works.push_back(rank.group.send(second_out.get(), kCount, DataType::int32, next, 0, *fourth));
      for (auto& work : works) {
        if (!work.ok()) return work.status().to_string();
        if (Status status = work->wait(); !status.ok()) return status.to_string();
      }
      if (in.read(kCount * 4) != rank_data(before, 0, kCount, DataType::int32, true)) return "the first is wrong";
      return second_in.read(kCount * 4) == rank_data(before, 1, kCount, DataType::int32, true) ? "" : "the second is wrong";
    });
  }
}

/// More streams than staging rings, messages without a receiver yet, collectives in between.
TEST(StreamMessages, ManyStreamsWithUnreceivedMessages) {
  expect_stream_ranks(delayed(2, 7), [](StreamRank& rank) -> std::string {
    constexpr int kStreams = 11;
    constexpr std::size_t kCount = 5000;
    std::vector<std::unique_ptr<DeviceBuffer>> buffers;
    std::vector<StreamWork> works;
    DeviceBuffer sum(rank, 4000);
    for (int i = 0; i < kStreams; ++i) {
      const auto stream = rank.cuda.create_stream(false);
      buffers.push_back(std::make_unique<DeviceBuffer>(rank, kCount * 4));
      if (rank.rank() == 0) {
        buffers.back()->set(rank_data(0, i, kCount, DataType::int32, true));
        auto work = rank.group.send(buffers.back()->get(), kCount, DataType::int32, 1, i, *stream);
        if (!work.ok()) return work.status().to_string();
        works.push_back(*work);
      } else {
        // In the opposite order, so that all have been sent before the first is received.
        const int tag = kStreams - 1 - i;
        auto summed = rank.group.all_reduce(sum.get(), sum.get(), 1000, DataType::int32, ReduceOp::max, rank.stream);
        if (!summed.ok() || !summed->wait().ok()) return "all_reduce";
        auto work = rank.group.recv(buffers.back()->get(), kCount, DataType::int32, 0, tag, *stream);
        if (!work.ok()) return work.status().to_string();
        if (Status status = work->wait(); !status.ok()) return status.to_string();
        if (buffers.back()->read(kCount * 4) != rank_data(0, tag, kCount, DataType::int32, true)) return fmt::format("{}", tag);
      }
    }
    for (int i = 0; i < kStreams && rank.rank() == 0; ++i) {
      auto summed = rank.group.all_reduce(sum.get(), sum.get(), 1000, DataType::int32, ReduceOp::max, rank.stream);
      if (!summed.ok() || !summed->wait().ok()) return "all_reduce";
    }
    for (StreamWork& work : works) {
      if (Status status = work.wait(); !status.ok()) return status.to_string();
    }
    return "";
  });
}

/// Different sizes, also with equal first pieces, or different types: both ranks get the error, and nothing hangs.
TEST(StreamMessages, DisagreementIsAMismatch) {
  for (const std::size_t count : {std::size_t{100}, std::size_t{1008}, std::size_t{50000}}) {
    for (const bool other_type : {false, true}) {
      SCOPED_TRACE(count);
      StreamCase c;
      c.ranks = 2;
      expect_stream_ranks(c, [count, other_type](StreamRank& rank) -> std::string {
        void* data = *rank.cuda.allocate(800000);
        const auto start = Clock::now();
        const auto work = rank.rank() == 0
                              ? rank.group.send(data, count, DataType::int32, 1, 3, rank.stream)
                              : rank.group.recv(data, other_type ? count : 2 * count,
                                                other_type ? DataType::float32 : DataType::int32, 0, 3, rank.stream);
        if (!work.ok()) return work.status().to_string();
        // The sender of a small message may have finished; its next call reports the refusal of the receiver.
        static_cast<void>(rank.group.barrier(rank.stream));
        for (int i = 0; i < 1000 && rank.group.status().ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        if (rank.group.status().code() != StatusCode::mismatch) return "the cause: " + rank.group.status().to_string();
        if (Status status = rank.cuda.synchronize(rank.stream); !status.ok()) return status.to_string();
        return Clock::now() - start > std::chrono::seconds(10) ? "it took long" : "";
      });
    }
  }
}

TEST(StreamMessages, UnsentMessageEndsAtItsDeadline) {
  StreamCase c;
  c.ranks = 2;
  expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
    void* data = *rank.cuda.allocate(4000);
    if (rank.rank() == 0) {
      auto work = rank.group.recv(data, 1000, DataType::int32, 1, 0, rank.stream, std::chrono::milliseconds(300));
      const Status status = work.ok() ? work->wait() : work.status();
      if (status.code() != StatusCode::timeout) return "the receiver: " + status.to_string();
      if (status.message().find("rank 1") == std::string::npos)
        return "the error does not name the sender: " + status.to_string();
    }
    // Nothing is in flight on rank 1, so its next call reports the failure.
    for (int i = 0; i < 1000; ++i) {
      auto later = rank.group.send(data, 1000, DataType::int32, 1 - rank.rank(), 5, rank.stream);
      if (!later.ok() && later.status().code() == StatusCode::timeout) return rank.cuda.synchronize(rank.stream).message();
      if (rank.rank() == 0) return "a call after the failure: " + later.status().to_string();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return "rank 1 did not get the error";
  });
}

TEST(StreamMessages, BadArgumentsAreRefused) {
  StreamCase c;
  c.ranks = 2;
  expect_stream_ranks(c, [](StreamRank& rank) -> std::string {
    void* data = *rank.cuda.allocate(400);
    std::vector<char> host(400);
    const auto is_invalid = [](const Result<StreamWork>& work) {
      return !work.ok() && work.status().code() == StatusCode::invalid_argument && !work.status().message().empty();
    };
    auto& group = rank.group;
    if (!is_invalid(group.send(host.data(), 100, DataType::int32, 1, 0, rank.stream))) return "memory of the host";
    if (!is_invalid(group.send(data, 101, DataType::int32, 1, 0, rank.stream))) return "beyond the allocation";
    if (!is_invalid(group.recv(data, 100, DataType::int32, kAnySource, 0, rank.stream))) return "any source";
    if (!is_invalid(group.recv(data, 100, DataType::int32, 2, 0, rank.stream))) return "no such rank";
    if (!is_invalid(group.recv(nullptr, 100, DataType::int32, 1, 0, rank.stream))) return "null";
    if (!is_invalid(group.exchange({}, rank.stream))) return "no message";
    const std::vector<StreamMessage> many(33, StreamMessage::send(data, 1, DataType::int32, 1));
    if (!is_invalid(group.exchange(many, rank.stream))) return "too many messages";
    const std::vector<std::size_t> three(3, 1);
    if (!is_invalid(group.all_gather_v(data, data, three, DataType::int32, rank.stream))) return "three counts";
    const std::vector<std::size_t> two(2, 1);
    if (!is_invalid(group.all_to_all_v(data, two, data, three, DataType::int32, rank.stream))) return "two and three counts";
    if (!is_invalid(group.all_to_all(data, data, 10, DataType::int32, rank.stream))) return "all_to_all in place";
    auto work = group.all_reduce(data, data, 100, DataType::int32, ReduceOp::sum, rank.stream);
    return work.ok() ? work->wait().message() : work.status().to_string();
  });
}

}  // namespace
}  // namespace shoal
