// Messages between two ranks with tensors on a CUDA device: choice of path, order, coalesced batches, failures.
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "tests/facts.h"
#include "tests/torch/stream_ranks.h"

namespace shoal::torch {
namespace {

using namespace std::chrono_literals;

class DeviceMessages : public StreamRanks {
 protected:
  /// Runs `body` with groups made as init_process_group(device_id=...) makes them.
  static void on_connected_ranks(int size, const std::function<void(const Rank&)>& body) {
    on_ranks(size, [&](const Rank& self) {
      self.group->eagerConnectSingleDevice(fake::device(self.rank));
      body(self);
    });
  }
};

Work send(const Rank& self, Tensor tensor, int to, int tag = 0) {
  Tensors one{std::move(tensor)};
  return self.group->send(one, to, tag);
}
Work receive(const Rank& self, Tensor tensor, int from, int tag = 0) {
  Tensors one{std::move(tensor)};
  return self.group->recv(one, from, tag);
}

TEST_F(DeviceMessages, UnconnectedGroupUsesHostMemory) {
  on_ranks(2, [](const Rank& self) {
    Tensors sum{self.mine()};
    self.group->allreduce(sum)->wait();  // the streams are there, but the other rank may have sent before they were
    const Tensor incoming = self.output({kLarge});
    const Work received = receive(self, incoming, 1 - self.rank), sent = send(self, self.mine(1, kLarge), 1 - self.rank);
    EXPECT_FALSE(is_on_streams(sent) || is_on_streams(received));
    sent->wait();
    received->wait();
    expect_equal(incoming, Rank::of(1 - self.rank, 1, kLarge), "recv");
  });
}

TEST_F(DeviceMessages, EveryTypeAndLayoutArrives) {
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    fake::set_seed(700 * seed);
    on_connected_ranks(2, [](const Rank& self) {
      for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, kCount, kLarge}) {
        for (const at::ScalarType type : {at::kFloat, at::kHalf, at::kLong, at::kBool, at::kComplexDouble}) {
          for (const std::int64_t step : {1, 2}) {
            const int tag = static_cast<int>(step) - 5;
            if (self.rank == 0) {  // what is sent is given back at once
              const Work sent = send(self, self.mine(2, step * count, type).slice(0, 0, step * count, step), 1, tag);
              EXPECT_TRUE(is_on_streams(sent));
            } else {
              const Tensor memory = self.output({step * count}, type);
              const Work received = receive(self, memory.slice(0, 0, step * count, step), 0, tag);
              EXPECT_TRUE(is_on_streams(received));
              EXPECT_EQ(received->sourceRank(), 0);
              received->wait();
              Tensor wanted = at::full({step * count}, 99, type);
              wanted.slice(0, 0, step * count, step).copy_(Rank::of(0, 2, step * count, type).slice(0, 0, step * count, step));
              expect_equal(memory, wanted, std::string("recv of ") + c10::toString(type));
            }
          }
        }
      }
    });
  }
}

TEST_F(DeviceMessages, SendDoesNotBlockHost) {
  std::atomic<bool> sent{false};
  on_connected_ranks(2, [&](const Rank& self) {
    if (self.rank == 0) {
      fake::BusyStream busy(0);
      const Work work = send(self, self.mine(0, kLarge), 1);
      EXPECT_FALSE(device_guard().queryStream(current_stream(0))) << "send() waited for the stream";
      work->wait();
      EXPECT_FALSE(work->isCompleted());
      busy.release();
      sent = true;
      EXPECT_TRUE(work->wait(20s));
      EXPECT_TRUE(work->isCompleted());
    } else {
      while (!sent) std::this_thread::sleep_for(1ms);
      const Tensor incoming = self.output({kLarge});
      receive(self, incoming, 0)->wait();
      expect_equal(incoming, Rank::of(0, 0, kLarge), "recv");
    }
  });
}

/// Like a pipeline: messages forward from rank to rank, then back, between collectives.
TEST_F(DeviceMessages, MessagesKeepOrderWithCollectives) {
  on_connected_ranks(3, [](const Rank& self) {
    for (int round = 0; round < 3; ++round) {
      Tensor value = self.mine(round, kLarge);
      if (self.rank > 0) {
        const Tensor before = self.output({kLarge});
        receive(self, before, self.rank - 1)->wait();
        value = value + before;
      }
      if (self.rank < 2) {
        send(self, value, self.rank + 1)->wait();
        receive(self, value, self.rank + 1)->wait();
      }
      if (self.rank > 0) send(self, value, self.rank - 1)->wait();
      expect_equal(value, self.total(round, kLarge), "what came back");
      Tensors sum{self.mine(round)};
      self.group->allreduce(sum)->wait();
      expect_equal(sum[0], self.total(round), "all_reduce");
    }
  });
}

/// All ranks send to all ranks before they receive, in different orders: without a block that would deadlock.
TEST_F(DeviceMessages, BlockOfMessagesDoesNotDeadlock) {
  for (const std::uint32_t seed : {1U, 2U, 3U}) {
    fake::set_seed(800 * seed);
    on_connected_ranks(4, [](const Rank& self) {
      std::vector<Work> works;
      Tensors incoming(static_cast<std::size_t>(self.size));
      Tensors on_cpu{Rank::of(self.rank)}, sum{self.mine(1)};
      self.group->startCoalescing();
      for (int step = 1; step < self.size; ++step) {
        const int to = (self.rank + step) % self.size;
        works.push_back(send(self, self.mine(to, kLarge), to, 3));
      }
      self.group->allreduce(on_cpu);
      self.group->allreduce(sum);
      for (int step = 1; step < self.size; ++step) {
        const int from = (self.rank + step) % self.size;
        Tensor& tensor = incoming[static_cast<std::size_t>(from)];
        tensor = self.output({2 * kLarge}).slice(0, 0, 2 * kLarge, 2);
        works.push_back(receive(self, tensor, from, 3));
      }
      const std::string early = message_of<c10::Error>([&] { works[0]->wait(); });
      EXPECT_TRUE(testing::mentions(early, "shoal send", "endCoalescing()")) << early;
      EXPECT_FALSE(works[0]->isCompleted());
      const Work block = self.group->endCoalescing();
      block->wait();
      for (int from = 0; from < self.size; ++from) {
        if (from == self.rank) continue;
        expect_equal(incoming[static_cast<std::size_t>(from)], Rank::of(from, self.rank, kLarge), "recv in a block");
      }
      EXPECT_TRUE(at::equal(on_cpu[0], self.total()));
      expect_equal(sum[0], self.total(1), "all_reduce in the block");
      for (const Work& work : works) EXPECT_TRUE(is_on_streams(work) && work->wait(20s) && work->isSuccess());
      EXPECT_TRUE(block->wait(20s));
    });
  }
}

TEST_F(DeviceMessages, BlockMessagesMatchSingleMessages) {
  on_connected_ranks(2, [](const Rank& self) {
    for (const bool large : {false, true}) {
      const std::int64_t count = large ? kLarge : kCount;
      const std::vector<int> tags = large ? std::vector<int>{5, 5, 5} : std::vector<int>{1, 2, 1};
      if (self.rank == 0) {
        self.group->startCoalescing();
        for (std::size_t i = 0; i < tags.size(); ++i) send(self, self.mine(static_cast<int>(i), count), 1, tags[i]);
        if (large) self.group->startCoalescing();  // as after an exception in a block
        self.group->endCoalescing();
      } else {
        for (std::size_t i = 0; i < tags.size(); ++i) {
          const Tensor incoming = self.output({count});
          receive(self, incoming, 0, tags[i])->wait();
          expect_equal(incoming, Rank::of(0, static_cast<int>(i), count), "recv outside of a block");
        }
      }
    }
  });
}

TEST_F(DeviceMessages, BadMessagesLeaveGroupUsable) {
  on_connected_ranks(2, [](const Rank& self) {
    const auto refused = [](const std::function<void()>& call, const std::vector<std::string>& words) {
      expect_refusal<c10::ValueError>(call, words);
    };
    Tensors one{self.mine()};
    refused([&] { self.group->recvAnysource(one, 0); },
            {"shoal recv", "sender", "fake:" + std::to_string(self.rank), "device_id", "init_process_group"});
    refused([&] { send(self, fake::on_device(Rank::of(0), 3), 1 - self.rank); },
            {"shoal send", "fake:" + std::to_string(self.rank), "fake:3"});
    refused([&] { send(self, one[0], self.rank); }, {"shoal send", "rank " + std::to_string(self.rank)});
    self.group->startCoalescing();
    for (int message = 0; message < 33; ++message) send(self, one[0], 1 - self.rank);
    refused([&] { self.group->endCoalescing(); }, {"shoal batch_isend_irecv", "33", "32"});

    Tensors on_cpu{Rank::of(self.rank)}, from_any_source{at::zeros({kCount})};
    const Work sent = self.group->send(on_cpu, 1 - self.rank, 7);
    self.group->recvAnysource(from_any_source, 7)->wait();  // CPU messages work as before
    sent->wait();
    EXPECT_TRUE(at::equal(from_any_source[0], Rank::of(1 - self.rank)));
    const Tensor incoming = self.output({kCount});
    self.group->startCoalescing();
    send(self, one[0], 1 - self.rank);
    receive(self, incoming, 1 - self.rank);
    self.group->endCoalescing()->wait();
    expect_equal(incoming, Rank::of(1 - self.rank), "after bad calls");
  });
}

TEST_F(DeviceMessages, MessagesFailIfPeerAborts) {
  for (const bool in_block : {false, true}) {
    std::atomic<bool> in_flight{false};
    on_connected_ranks(2, [&](const Rank& self) {
      if (self.rank == 1) {
        while (!in_flight) std::this_thread::sleep_for(1ms);
        self.group->abort();
        return;
      }
      if (in_block) self.group->startCoalescing();
      Work work = receive(self, self.output({kLarge}), 1);
      if (in_block) work = self.group->endCoalescing();
      work->wait();
      in_flight = true;
      const std::string message = message_of<c10::DistBackendError>([&] { work->wait(20s); });
      EXPECT_TRUE(testing::mentions(message, "shoal recv", "aborted")) << message;
      device_guard().synchronizeStream(current_stream(0));  // must not hang
      EXPECT_THROW(send(self, self.mine(), 1), c10::DistBackendError);
    });
  }
}

TEST_F(DeviceMessages, DifferentSizesAreMismatch) {
  on_connected_ranks(2, [](const Rank& self) {
    const std::string message = message_of<c10::DistBackendError>([&] {
      (self.rank == 0 ? send(self, self.mine(), 1) : receive(self, self.output({kCount + 1}), 0))->wait(20s);
      if (self.rank == 0) send(self, self.mine(), 1)->wait(20s);  // the first send may have ended before the error
      Tensors sum{self.mine()};
      self.group->allreduce(sum)->wait(20s);
    });
    EXPECT_NE(message.find("mismatch"), std::string::npos) << message;
  });
}

TEST_F(DeviceMessages, HostMemoryIsUsedWithoutCuda) {
  fake::cuda_behaviour().works = false;
  on_connected_ranks(2, [](const Rank& self) {
    Tensors incoming{self.output({kCount})};
    const Work sent = send(self, self.mine(), 1 - self.rank, 4);
    const Work received = self.group->recvAnysource(incoming, 4);
    EXPECT_FALSE(is_on_streams(sent) || is_on_streams(received));
    received->wait();
    expect_equal(incoming[0], Rank::of(1 - self.rank), "recvAnysource");
    sent->wait();
  });
}

}  // namespace
}  // namespace shoal::torch
