// Calls on streams of a CUDA device: timing, failures, memory, capture, training. device_test.cc tests the values of every
// call.
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "tests/facts.h"
#include "tests/torch/stream_ranks.h"
#include "torch_plugin/ddp/data_parallel.h"

namespace shoal::torch {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class DeviceStreamsTest : public StreamRanks {};

TEST_F(DeviceStreamsTest, ValuesDoNotDependOnTiming) {
  for (const int kind : {0, 1, 2}) {  // through memory of the peers, by one kernel, through tiles in host memory
    fake::cuda_behaviour().shared_device = kind != 1;
    fake::cuda_behaviour().exports_memory = kind != 2;
    for (std::uint32_t seed = 1; seed <= 6; ++seed) {
      fake::set_seed(1000 * seed);
      const int before = fake::steps_for_shoal();
      on_ranks(seed % 2 == 0 ? 2 : 3, [](const Rank& self) {
        std::vector<Work> works;
        Tensors sums;
        for (const std::int64_t count : {std::int64_t{1}, kCount, kLarge}) {
          sums.push_back(self.mine(1, count));
          Tensors one{sums.back()};
          works.push_back(self.group->allreduce(one));
        }
        Tensor all = self.output({self.size * kCount}), mine = self.mine(2), share = self.output({kCount});
        works.push_back(self.group->_allgather_base(all, mine));
        Tensor whole = self.mine(3, self.size * kCount);
        works.push_back(self.group->_reduce_scatter_base(share, whole));
        Tensors given{self.rank == 1 ? self.mine(4) : self.output({kCount})};
        c10d::BroadcastOptions from;
        from.rootRank = 1;
        works.push_back(self.group->broadcast(given, from));
        for (const Work& work : works) work->wait();
        for (const Tensor& sum : sums) expect_equal(sum, self.total(1, sum.numel()), "all_reduce");
        expect_equal(all, self.of_all_ranks(2), "all_gather_into_tensor");
        expect_equal(share, self.total(3, self.size * kCount).narrow(0, self.rank * kCount, kCount), "reduce_scatter_tensor");
        expect_equal(given[0], Rank::of(1, 4), "broadcast");
      });
      EXPECT_GT(fake::steps_for_shoal(), before) << "no call used streams";
    }
  }
}

TEST_F(DeviceStreamsTest, CallsReturnBeforePeersCall) {
  std::atomic<bool> called{false};
  on_ranks(2, [&](const Rank& self) {
    Tensors first{self.mine()};
    self.group->allreduce(first)->wait();  // connects the group
    if (self.rank == 1) {
      while (!called) std::this_thread::sleep_for(1ms);
    }
    Tensors tensors;
    std::vector<Work> works;
    for (int call = 0; call < 6; ++call) {
      Tensors one{self.mine(call)};
      fake::keep_busy(self.rank, 3);
      works.push_back(self.group->allreduce(one));
      works.back()->wait();
      tensors.push_back(one[0]);
    }
    if (self.rank == 0) {
      for (const Work& work : works) EXPECT_FALSE(work->isCompleted() || work->isSuccess());
      EXPECT_FALSE(device_guard().queryStream(current_stream(0))) << "wait() does not make the stream wait";
      called = true;
    }
    for (int call = 0; call < 6; ++call) {
      expect_equal(tensors[static_cast<std::size_t>(call)], self.total(call), "all_reduce");
    }
    for (const Work& work : works) {
      EXPECT_TRUE(work->wait(10s));
      EXPECT_TRUE(work->isCompleted() && work->isSuccess());
      EXPECT_GT(work->getDuration(), 0);
      EXPECT_EQ(work->exception(), nullptr);
    }
  });
}

TEST_F(DeviceStreamsTest, WaitTimeoutLeavesCallRunning) {
  std::atomic<bool> tried{false};
  on_ranks(2, [&](const Rank& self) {
    Tensors first{self.mine()};
    self.group->allreduce(first)->wait();
    if (self.rank == 1) {
      while (!tried) std::this_thread::sleep_for(1ms);
    }
    Tensors tensors{self.mine(1)};
    const Work work = self.group->allreduce(tensors);
    if (self.rank == 0) {
      EXPECT_NE(message_of<c10::Error>([&] { work->wait(50ms); }).find("timed out"), std::string::npos);  // c10d's message
      EXPECT_FALSE(work->isCompleted());
      tried = true;
    }
    EXPECT_TRUE(work->wait(20s));
    EXPECT_TRUE(work->isCompleted());
    expect_equal(tensors[0], self.total(1), "afterwards");
  });
}

/// The fake device overwrites freed memory, in the order of the stream on which it was allocated.
TEST_F(DeviceStreamsTest, MemoryMayBeFreedAfterCall) {
  for (std::uint32_t seed = 1; seed <= 4; ++seed) {
    fake::set_seed(2000 * seed);
    on_ranks(3, [](const Rank& self) {
      for (int call = 0; call < 8; ++call) {
        Tensor all = self.output({self.size * kCount});
        {
          Tensor mine = self.mine(call);
          Work work = self.group->_allgather_base(all, mine);
          if (call % 2 == 0) {
            const c10::StreamGuard elsewhere(fake::new_stream(self.rank));
            work->wait();  // on another stream than that of the memory
          }
        }
        if (call % 3 == 2) continue;  // the output is freed, too
        Tensors next{self.mine(call)};
        self.group->allreduce(next)->wait();  // on its stream behind the all_gather
        expect_equal(all, self.of_all_ranks(call), "all_gather of freed memory");
        expect_equal(next[0], self.total(call), "all_reduce");
      }
    });
  }
}

TEST_F(DeviceStreamsTest, AbortEndsCallsAndStreamsContinue) {
  std::atomic<int> in_flight{0};
  on_ranks(3, [&](const Rank& self) {
    Tensors first{self.mine()};
    self.group->allreduce(first)->wait();
    if (self.rank == 1) {
      while (in_flight < 2) std::this_thread::sleep_for(1ms);
      self.group->abort();
    } else {
      Tensors tensors{self.mine(1)};
      const Work work = self.group->allreduce(tensors);
      work->wait();
      ++in_flight;
      const std::string message = message_of<c10::DistBackendError>([&] { work->wait(20s); });
      EXPECT_TRUE(testing::mentions(message, "shoal all_reduce", "aborted")) << message;
      EXPECT_TRUE(work->isCompleted());
      EXPECT_FALSE(work->isSuccess());
      EXPECT_NE(work->exception(), nullptr);
      device_guard().synchronizeStream(current_stream(self.rank));  // must not hang
      work->getFutureResult()->wait();
      EXPECT_EQ(work->getFutureResult()->constValue().toInt(), static_cast<std::int64_t>(c10d::WorkResult::COMM_ERROR));
    }
    const auto start = Clock::now();
    EXPECT_THROW(self.group->allreduce(first), c10::DistBackendError);
    EXPECT_LT(Clock::now() - start, 2s);
    for (int i = 0; i < 500 && self.group->communicator().status().ok(); ++i) std::this_thread::sleep_for(10ms);
    EXPECT_THROW(self.group->barrier()->wait(), c10::DistBackendError) << "an abort closes the whole group";
    EXPECT_EQ(self.group->getError(), c10d::ErrorType::REMOTE_ERROR);
  });
}

TEST_F(DeviceStreamsTest, MissingRankIsNamed) {
  std::atomic<bool> over{false};
  on_ranks(
      2,
      [&](const Rank& self) {
        Tensors tensors{self.mine()};
        self.group->allreduce(tensors)->wait(20s);
        if (self.rank == 0) {
          c10d::AllreduceOptions soon;
          soon.timeout = 400ms;
          const Work work = self.group->allreduce(tensors, soon);
          const std::string message = message_of<c10::DistBackendError>([&] { work->wait(20s); });
          EXPECT_NE(message.find("Timed out waiting for other ranks"), std::string::npos) << message;  // Gloo's message
          EXPECT_TRUE(testing::mentions(message, "rank 1", "call 0")) << message;
          EXPECT_EQ(self.group->getError(), c10d::ErrorType::TIMEOUT);
          device_guard().synchronizeStream(current_stream(0));
          over = true;
        } else {
          while (!over) std::this_thread::sleep_for(1ms);
          EXPECT_THROW(self.group->allreduce(tensors), c10::DistBackendError);
          EXPECT_NE(self.group->getError(), c10d::ErrorType::SUCCESS);
        }
      },
      30s);
}

TEST_F(DeviceStreamsTest, DestroyedGroupFailsCallsOfPeers) {
  for (const bool busy : {false, true}) {
    on_ranks(2, [busy](const Rank& self) {
      const auto store = c10::make_intrusive<c10d::HashStore>();
      Group other = self.group->subgroup(store, {0, 1}, options_of(Path::streams));
      Tensors tensors{self.mine()};
      other->allreduce(tensors)->wait(20s);
      self.group->barrier()->wait();  // so that rank 0 is done with the call above
      const auto start = Clock::now();
      if (self.rank == 0) {
        // If rank 1 has destroyed its group already, the call is refused.
        const std::string message = message_of<c10::DistBackendError>([&] { other->allreduce(tensors)->wait(50s); });
        EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
        device_guard().synchronizeStream(current_stream(0));
      } else {
        // Without calls in flight the destructor waits a while for rank 0, which waits for a call that rank 1 does not make.
        Tensors one{self.mine()};
        if (busy) fake::keep_busy(1, 100), other->allreduce(one);
        other.reset();
      }
      EXPECT_LT(Clock::now() - start, 30s);
    });
  }
}

TEST_F(DeviceStreamsTest, GroupsOfOneDeviceOverlap) {
  for (std::uint32_t seed = 1; seed <= 3; ++seed) {
    fake::set_seed(3000 * seed);
    on_ranks(3, [](const Rank& self) {
      const auto store = c10::make_intrusive<c10d::HashStore>();
      const Group pair = self.rank < 2 ? self.group->subgroup(store, {1, 0}, options_of(Path::streams)) : nullptr;
      const Group again = self.group->subgroup(store, {0, 1, 2}, options_of(Path::streams));
      std::vector<Work> works;
      Tensors of_all, of_pair, of_again;
      for (int call = 0; call < 5; ++call) {
        const auto run = [&](const Group& group, Tensors& kept) {
          Tensors one{self.mine(call, call % 2 == 0 ? kCount : kLarge)};
          kept.push_back(one[0]);
          works.push_back(group->allreduce(one));
        };
        run(self.group, of_all);
        if (pair) run(pair, of_pair);
        run(again, of_again);
      }
      for (auto work = works.rbegin(); work != works.rend(); ++work) (*work)->wait();
      for (int call = 0; call < 5; ++call) {
        const auto place = static_cast<std::size_t>(call);
        const std::int64_t count = of_all[place].numel();
        expect_equal(of_all[place], self.total(call, count), "group of all");
        expect_equal(of_again[place], self.total(call, count), "the other group of all");
        if (pair) expect_equal(of_pair[place], Rank::of(0, call, count) + Rank::of(1, call, count), "pair");
      }
      if (pair) pair->shutdown();
      again->shutdown();
    });
  }
}

/// Each call uses the result of the call before, which often used the other path.
TEST_F(DeviceStreamsTest, HostAndStreamCallsKeepOrder) {
  for (std::uint32_t seed = 1; seed <= 4; ++seed) {
    fake::set_seed(4000 * seed);
    on_ranks(3, [](const Rank& self) {
      Tensors tensors{self.mine()};
      Tensor wanted = Rank::of(self.rank);
      for (int round = 0; round < 3; ++round) {
        self.group->allreduce(tensors)->wait();  // on streams
        Tensors mine{tensors[0]}, lefts{self.output({kCount})};
        const Work sent = self.group->send(mine, (self.rank + 1) % self.size, round);  // through the host
        self.group->recv(lefts, (self.rank + self.size - 1) % self.size, round)->wait();
        sent->wait();
        Lists gathered;
        if (self.rank == 0) gathered.push_back(self.outputs());
        self.group->gather(gathered, lefts)->wait();  // on streams
        Tensor all = self.rank == 0 ? at::cat(gathered[0]) : self.output({self.size * kCount});
        Tensors whole{all};
        self.group->broadcast(whole)->wait();
        Tensors on_cpu{all.cpu()};
        self.group->allreduce(on_cpu)->wait();  // on the host
        all.copy_((on_cpu[0] / self.size), true);
        Tensor turned = self.output({self.size * kCount});
        std::vector<std::int64_t> even;
        self.group->alltoall_base(turned, all, even, even)->wait();  // on streams
        Tensors kept{turned.narrow(0, 0, kCount)};
        c10d::AllreduceOptions average;
        average.reduceOp = c10d::ReduceOp::AVG;
        self.group->allreduce(kept, average)->wait();
        tensors = {kept[0]};
        wanted = round == 0 ? self.total() : wanted * self.size;
        expect_equal(tensors[0], wanted.to(at::kFloat), "round " + std::to_string(round));
        self.group->barrier()->wait();
      }
    });
  }
}

/// The sum overflows the type.
TEST_F(DeviceStreamsTest, AveragesOfIntegersAreExact) {
  on_ranks(2, [](const Rank& self) {
    Tensors values{at::full({7}, 100 + self.rank, at::kChar).to(fake::device(self.rank))};
    c10d::AllreduceOptions average;
    average.reduceOp = c10d::ReduceOp::AVG;
    self.group->allreduce(values, average)->wait();
    expect_equal(values[0], at::full({7}, 100, at::kChar), "the average");
  });
}

TEST_F(DeviceStreamsTest, GroupMayConnectInsideOfBlock) {
  on_ranks(3, [](const Rank& self) {
    Tensors on_cpu{Rank::of(self.rank)}, there{self.mine(1)}, again{self.mine(2)};
    self.group->startCoalescing();
    self.group->allreduce(on_cpu);
    self.group->allreduce(there);
    self.group->allreduce(again);
    const Work all = self.group->endCoalescing();
    all->wait();
    EXPECT_TRUE(at::equal(on_cpu[0], self.total()));
    expect_equal(there[0], self.total(1), "the first on the device");
    expect_equal(again[0], self.total(2), "the second");
    for (int i = 0; i < 1000 && !all->isCompleted(); ++i) std::this_thread::sleep_for(1ms);
    EXPECT_TRUE(all->isCompleted() && all->isSuccess());
  });
}

/// As in FSDP, the share of a rank is a part of the whole tensor.
TEST_F(DeviceStreamsTest, SharesMayOverlapTheirWhole) {
  on_ranks(3, [](const Rank& self) {
    Tensor whole = self.output({self.size * kCount});
    Tensor share = whole.narrow(0, self.rank * kCount, kCount);
    share.copy_(self.mine(), true);
    self.group->_allgather_base(whole, share)->wait();
    expect_equal(whole, self.of_all_ranks(), "all_gather_into_tensor");
    self.group->_reduce_scatter_base(share, whole)->wait();
    expect_equal(share, Rank::of(self.rank) * self.size, "reduce_scatter_tensor");
  });
}

/// Collects torch's warnings.
struct Warnings final : c10::WarningHandler {
  void process(const c10::Warning& warning) override { text += warning.msg() + "\n"; }
  std::string text;
};

TEST_F(DeviceStreamsTest, HostMemoryIsUsedWithoutCuda) {
  fake::cuda_behaviour().works = false;
  const int before = fake::steps_for_shoal();
  Warnings warnings[2];
  const c10::WarningUtils::WarnAlways not_only_once_in_a_process;
  on_ranks(2, [&](const Rank& self) {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings[self.rank]);
    for (int call = 0; call < 3; ++call) {
      Tensors tensors{self.mine(call)};
      self.group->allreduce(tensors)->wait();
      expect_equal(tensors[0], self.total(call), "all_reduce");
    }
    EXPECT_FALSE(self.group->registerBuffer(self.mine()));
  });
  EXPECT_EQ(fake::steps_for_shoal(), before);
  for (const Warnings& of_rank : warnings) {
    const std::string& text = of_rank.text;
    const std::size_t once = text.find("shoal: ");
    ASSERT_NE(once, std::string::npos) << text;
    EXPECT_NE(text.find("fake:", once), std::string::npos) << "not which device: " << text;
    EXPECT_EQ(text.find("shoal: ", once + 1), std::string::npos) << "warned twice: " << text;
  }
  EXPECT_NE(warnings[0].text.find("the test's device lacks something"), std::string::npos) << warnings[0].text;
}

/// Of this process's threads with `name`: how many there are, and how many block SIGTERM.
std::pair<int, int> threads_that_block_sigterm(const std::string& name) {
  int all = 0, blocking = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "status");
    std::map<std::string, std::string> status;
    for (std::string key, value; std::getline(file, key, ':') && std::getline(file >> std::ws, value);) status[key] = value;
    if (status["Name"] != name) continue;
    ++all;
    blocking += static_cast<int>(std::stoull(status["SigBlk"], nullptr, 16) >> (SIGTERM - 1) & 1);
  }
  return {all, blocking};
}

TEST_F(DeviceStreamsTest, ItsThreadsTakeNoSignals) {
  on_ranks(2, [](const Rank& self) {
    Tensors tensors{self.mine()};
    self.group->allreduce(tensors)->wait();
    std::pair<int, int> threads;
    const auto until = Clock::now() + 20s;
    do {  // a thread names itself when it first runs
      threads = threads_that_block_sigterm("shoal-streams");
    } while (threads.first < self.size && Clock::now() < until);
    EXPECT_EQ(threads.first, self.size);
    EXPECT_EQ(threads.second, threads.first);
    tensors = {self.mine()};
    self.group->allreduce(tensors)->wait();  // no rank ends its threads while another counts
  });
}

TEST_F(DeviceStreamsTest, GraphCaptureIsRefused) {
  on_ranks(1, [](const Rank& self) {
    for (int attempt = 0; attempt < 2; ++attempt) {  // before the meeting and after
      fake::cuda_behaviour().capturing = true;
      Tensors tensors{self.mine()};
      const std::string message = message_of<c10::DistBackendError>([&] { self.group->allreduce(tensors); });
      EXPECT_TRUE(testing::mentions(message, "shoal all_reduce", "unsupported", "graph")) << message;
      fake::cuda_behaviour().capturing = false;
      self.group->allreduce(tensors)->wait();
      expect_equal(tensors[0], self.total(), "after the capture");
    }
  });
}

TEST_F(DeviceStreamsTest, RegisteredBuffersAreReadInPlace) {
  on_ranks(3, [](const Rank& self) {
    self.group->eagerConnectSingleDevice(fake::device(self.rank));
    EXPECT_THROW(self.group->registerBuffer(Rank::of(0)), c10::ValueError);
    Tensor buffer = self.output({4 * kLarge});
    EXPECT_TRUE(self.group->registerBuffer(buffer));
    for (int call = 0; call < 3; ++call) {
      Tensors piece{buffer.narrow(0, call * kLarge, kLarge)};
      piece[0].copy_(self.mine(call, kLarge), true);
      self.group->allreduce(piece)->wait();
      expect_equal(piece[0], self.total(call, kLarge), "all_reduce in a registered buffer");
    }
    EXPECT_TRUE(self.group->registerBuffer(buffer.narrow(0, 5, 10))) << "known already";
  });
  fake::cuda_behaviour().exports_memory = false;
  on_ranks(2, [](const Rank& self) {
    EXPECT_FALSE(self.group->registerBuffer(self.mine()));
    Tensors tensors{self.mine()};
    self.group->allreduce(tensors)->wait();
    expect_equal(tensors[0], self.total(), "without");
  });
}

TEST_F(DeviceStreamsTest, CompletionHookRunsAfterDevice) {
  on_ranks(2, [](const Rank& self) {
    Tensors tensors{self.mine()};
    const auto milliseconds = std::make_shared<std::vector<float>>();
    self.group->registerOnCompletionHook([milliseconds](const std::shared_ptr<c10d::WorkInfo>& info) {
      milliseconds->push_back(std::chrono::duration<float, std::milli>(info->activeDuration).count());
    });
    std::vector<Work> works;
    for (int call = 0; call < 4; ++call) works.push_back(self.group->allreduce(tensors));
    self.group->waitForPendingWorks();
    for (const Work& work : works) EXPECT_TRUE(work->isCompleted());
    EXPECT_EQ(milliseconds->size(), 4U);
    for (const float took : *milliseconds) EXPECT_GT(took, 1) << "a call takes several steps of the fake";
  });
}

/// Two layers, the parameters of each rank its own: rank 0's count.
struct Network : ::torch::nn::Module {
  Network(c10::Device device, int rank, std::int64_t hidden = 20) {
    for (const auto& shape : std::vector<std::vector<std::int64_t>>{{12, hidden}, {hidden}, {hidden, 3}, {3}}) {
      Tensor values = at::empty(shape, at::kFloat);
      values.copy_((at::arange(values.numel()) * (0.7 + weights.size() + rank)).sin().view(shape) * 0.3);
      weights.push_back(register_parameter("weight" + std::to_string(weights.size()), values.to(device)));
    }
  }
  Tensor forward(const Tensor& x) { return at::tanh(x.matmul(weights[0]) + weights[1]).matmul(weights[2]) + weights[3]; }
  Tensors weights;
};

Tensor batch_of(const Rank& self, int step, c10::Device device) {
  return (at::arange(8 * 12).view({8, 12}).to(at::kFloat) * (0.1 * (1 + step + 3 * self.rank))).cos().to(device);
}

/// The parameters after some steps of data-parallel training.
std::vector<Tensor> trained(const Rank& self, c10::Device device, ddp::Overlap overlap) {
  const auto group = process_group_of(self);
  Network network(device, self.rank);
  ddp::DataParallelOptions options;
  options.overlap = overlap;
  options.bucket_mib = 0.0005;  // several
  options.first_bucket_mib = 0.0002;
  options.make_optimizer = [](const std::vector<Tensor>& parameters) {
    return std::make_unique<::torch::optim::SGD>(parameters, ::torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  ddp::DataParallel parallel(network, group, options);
  for (int step = 0; step < 6; ++step) {
    const Tensor batch = batch_of(self, step, device);
    parallel.clear_gradients();
    const Tensor output = parallel.forward([&] { return network.forward(batch); });
    output.square().mean().backward();
    parallel.step();
  }
  parallel.synchronize();
  std::vector<Tensor> result;
  for (const Tensor& parameter : network.parameters()) result.push_back(parameter.detach().cpu().clone());
  return result;
}

TEST_F(DeviceStreamsTest, TrainingOnDeviceMatchesCpu) {
  for (const ddp::Overlap overlap : {ddp::Overlap::backward, ddp::Overlap::next_forward}) {
    on_ranks(2, [overlap](const Rank& self) {
      const std::vector<Tensor> wanted = trained(self, c10::Device(c10::kCPU), overlap);
      const int before = fake::steps_for_shoal();
      const std::vector<Tensor> found = trained(self, fake::device(self.rank), overlap);
      EXPECT_GT(fake::steps_for_shoal(), before) << "no call used streams";
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_TRUE(at::allclose(found[i], wanted[i], 1e-5, 1e-6)) << "parameter " << i << "\n"
                                                                   << found[i] << "\n"
                                                                   << wanted[i];
      }
    });
  }
}

/// torch's reducer owns the buckets; the gradients are views of them.
TEST_F(DeviceStreamsTest, GradientsRegisterTheirBuckets) {
  on_ranks(2, [](const Rank& self) {
    Network network(fake::device(self.rank), self.rank, 4000);  // for two shots
    ddp::DataParallel parallel(network, process_group_of(self));
    int steps[2];
    std::vector<Tensor> gradients[2];
    for (int step = 0; step < 4; ++step) {
      parallel.clear_gradients();
      self.group->barrier()->wait();
      const int before = fake::steps_for_shoal();
      self.group->barrier()->wait();
      const Tensor batch = batch_of(self, 1, fake::device(self.rank));
      parallel.forward([&] { return network.forward(batch); }).square().mean().backward();
      std::vector<Tensor> values;
      for (const Tensor& parameter : network.weights) values.push_back(parameter.grad().cpu());
      self.group->barrier()->wait();
      steps[step % 2] = fake::steps_for_shoal() - before;
      gradients[step % 2] = values;
      self.group->barrier()->wait();
      if (step != 2) continue;  // the buckets stay those of the second step
      for (const Tensor& parameter : network.weights) EXPECT_TRUE(self.group->registerBuffer(parameter.grad()));
    }
    EXPECT_LT(steps[1], steps[0]) << "the buckets were copied";
    for (std::size_t i = 0; i < network.weights.size(); ++i) EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i]));
  });
}

}  // namespace
}  // namespace shoal::torch
