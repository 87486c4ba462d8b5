// Device tensors in every call: right values in the order of the streams, through host memory and on streams.
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "tests/torch/device_ranks.h"

namespace shoal::torch {
namespace {

class DeviceTensors : public ::testing::TestWithParam<std::tuple<int, Path>> {
 protected:
  static void on_ranks(const std::function<void(const Rank&)>& body) {
    const auto [size, path] = GetParam();
    run_ranks(size, path, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceTensors,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(Path::host_memory)));
INSTANTIATE_TEST_SUITE_P(Streams, DeviceTensors,
                         ::testing::Combine(::testing::Values(1, 2, 3), ::testing::Values(Path::streams)));

TEST_P(DeviceTensors, ReductionsWorkInEveryType) {
  on_ranks([](const Rank& self) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kLong, at::kByte, at::kComplexFloat}) {
      Tensors tensors{self.mine(0, kCount, type)};
      self.group->allreduce(tensors)->wait();
      expect_equal(tensors[0], self.total(0, kCount, type), std::string("all_reduce of ") + c10::toString(type));
    }
    Tensors truth{fake::on_device(at::arange(kCount) % (self.rank + 2) == 0, self.rank)};
    self.group->allreduce(truth)->wait();
    Tensor any = at::zeros({kCount}, at::kBool);
    for (int r = 0; r < self.size; ++r) any.logical_or_(at::arange(kCount) % (r + 2) == 0);
    expect_equal(truth[0], any, "all_reduce of bool");

    Tensors halves{self.mine()};
    c10d::AllreduceOptions premultiplied;
    premultiplied.reduceOp = c10d::makeNCCLPreMulSum(0.5);
    self.group->allreduce(halves, premultiplied)->wait();
    expect_equal(halves[0], self.total() * 0.5, "PREMUL_SUM");

    for (int root = 0; root < self.size; ++root) {
      Tensors tensors{self.mine(root)};
      c10d::ReduceOptions options;
      options.rootRank = root;
      self.group->reduce(tensors, options)->wait();
      expect_equal(tensors[0], self.rank == root ? self.total(root) : Rank::of(self.rank, root), "reduce");
    }
  });
}

TEST_P(DeviceTensors, ReduceScatterWorks) {
  on_ranks([](const Rank& self) {
    const Tensor wanted = self.total(0, self.size * kCount).narrow(0, self.rank * kCount, kCount);
    Tensor input = self.mine(0, self.size * kCount);
    Tensor output = self.output({kCount});
    self.group->_reduce_scatter_base(output, input)->wait();
    expect_equal(output, wanted, "reduce_scatter_tensor");

    Tensors results{self.output({kCount})};
    Lists parts{self.mine(0, self.size * kCount).chunk(self.size)};
    self.group->reduce_scatter(results, parts)->wait();
    expect_equal(results[0], wanted, "reduce_scatter");

    Tensors outputs{self.output({kCount}), self.output({2})};
    Tensors inputs{self.mine(0, self.size * kCount), self.mine(1, 2 * self.size)};
    self.group->reduce_scatter_tensor_coalesced(outputs, inputs)->wait();
    expect_equal(outputs[0], wanted, "reduce_scatter_tensor_coalesced");
    expect_equal(outputs[1], self.total(1, 2 * self.size).narrow(0, 2 * self.rank, 2), "the second one");
  });
}

TEST_P(DeviceTensors, RootedCallsWork) {
  on_ranks([](const Rank& self) {
    for (int root = 0; root < self.size; ++root) {
      const bool is_root = self.rank == root;
      Tensors tensors{is_root ? self.mine(root) : self.output({kCount})};
      c10d::BroadcastOptions how;
      how.rootRank = root;
      self.group->broadcast(tensors, how)->wait();
      expect_equal(tensors[0], Rank::of(root, root), "broadcast");

      Tensors input{self.mine(root)};
      Lists gathered;
      if (is_root) gathered.push_back(self.outputs());
      c10d::GatherOptions to;
      to.rootRank = root;
      self.group->gather(gathered, input, to)->wait();
      if (is_root) expect_equal(at::cat(gathered[0]), self.of_all_ranks(root), "gather");

      Tensors output{self.output({kCount})};
      Lists given;
      if (is_root) given.emplace_back();
      for (int r = 0; is_root && r < self.size; ++r) given[0].push_back(fake::on_device(Rank::of(r, root), self.rank));
      c10d::ScatterOptions from;
      from.rootRank = root;
      self.group->scatter(output, given, from)->wait();
      expect_equal(output[0], Rank::of(self.rank, root), "scatter");
    }
  });
}

TEST_P(DeviceTensors, AllGatherWorks) {
  on_ranks([](const Rank& self) {
    Tensors input{self.mine()};
    Lists parts{self.outputs()};
    self.group->allgather(parts, input)->wait();
    expect_equal(at::cat(parts[0]), self.of_all_ranks(), "all_gather");

    Tensor whole = self.output({self.size * kCount});
    self.group->_allgather_base(whole, input[0])->wait();
    expect_equal(whole, self.of_all_ranks(), "all_gather_into_tensor");

    Tensors inputs{self.mine(1), self.mine(2)};
    Tensors wholes{self.output({self.size * kCount}), self.output({self.size * kCount})};
    self.group->allgather_into_tensor_coalesced(wholes, inputs)->wait();
    for (int call : {1, 2}) {
      expect_equal(wholes[static_cast<std::size_t>(call - 1)], self.of_all_ranks(call), "all_gather_into_tensor_coalesced");
    }

    Lists of_ranks;
    for (int r = 0; r < self.size; ++r) of_ranks.push_back({self.output({kCount}), self.output({kCount})});
    self.group->allgather_coalesced(of_ranks, inputs)->wait();
    for (int r = 0; r < self.size; ++r) {
      expect_equal(of_ranks[static_cast<std::size_t>(r)][0], Rank::of(r, 1), "all_gather_coalesced");
      expect_equal(of_ranks[static_cast<std::size_t>(r)][1], Rank::of(r, 2), "all_gather_coalesced");
    }
  });
}

TEST_P(DeviceTensors, AllToAllWorks) {
  on_ranks([](const Rank& self) {
    Tensor input = self.mine(0, 4 * self.size);
    Tensor output = self.output({4 * self.size});
    std::vector<std::int64_t> even;
    self.group->alltoall_base(output, input, even, even)->wait();
    Tensors wanted;
    for (int r = 0; r < self.size; ++r) wanted.push_back(Rank::of(r, 0, 4 * self.size).narrow(0, 4 * self.rank, 4));
    expect_equal(output, at::cat(wanted), "all_to_all_single");

    Tensors inputs, outputs;  // rank a sends rank b a + b + 1 elements
    for (int r = 0; r < self.size; ++r) {
      inputs.push_back(self.mine(r, self.rank + r + 1));
      outputs.push_back(self.output({self.rank + r + 1}));
    }
    self.group->alltoall(outputs, inputs)->wait();
    for (int r = 0; r < self.size; ++r) {
      expect_equal(outputs[static_cast<std::size_t>(r)], Rank::of(r, self.rank, self.rank + r + 1), "all_to_all");
    }
  });
}

TEST_P(DeviceTensors, MessagesWork) {
  on_ranks([](const Rank& self) {
    if (self.size == 1) return;
    const int right = (self.rank + 1) % self.size;
    const int left = (self.rank + self.size - 1) % self.size;
    for (const int tag : {0, 1, 2}) {
      Tensors outgoing{self.mine(tag)};
      Tensors incoming{self.output({kCount})};
      const auto sent = self.group->send(outgoing, right, tag);
      const auto received = self.group->recv(incoming, left, tag);
      received->wait();
      expect_equal(incoming[0], Rank::of(left, tag), "recv");
      sent->wait();
    }
    if (self.rank == 0) {
      for (int i = 1; i < self.size; ++i) {
        Tensors incoming{self.output({kCount})};
        const auto received = self.group->recvAnysource(incoming, 9);
        received->wait();
        expect_equal(incoming[0], Rank::of(received->sourceRank()), "recvAnysource");
      }
    } else {
      Tensors outgoing{self.mine()};
      self.group->send(outgoing, 0, 9)->wait();
    }
  });
}

TEST_P(DeviceTensors, AnyStridesWork) {
  on_ranks([](const Rank& self) {
    const auto views = [](const Tensor& whole) {
      return Tensors{whole.view({6, 8}).t(), whole.view({6, 8}).slice(1, 0, 8, 2), whole.narrow(0, 0, 0),
                     whole.view({6, 8})[2]};
    };
    for (std::size_t i = 0; i < 4; ++i) {
      const Tensor whole = self.mine(0, 48);
      Tensors tensors{views(whole)[i]};
      self.group->allreduce(tensors)->wait();
      expect_equal(tensors[0], views(self.total(0, 48))[i], "all_reduce");
      Tensor wanted = Rank::of(self.rank, 0, 48);
      views(wanted)[i].copy_(views(self.total(0, 48))[i]);
      expect_equal(whole, wanted, "memory between the elements");

      Tensors copies{views(self.mine(1, 48))[i]};
      self.group->broadcast(copies)->wait();
      expect_equal(copies[0], views(Rank::of(0, 1, 48))[i], "broadcast");
    }
    Tensors input{self.mine(0, 12).view({4, 3}).t()};
    Lists parts(1);
    for (int r = 0; r < self.size; ++r) parts[0].push_back(self.output({4, 3}).t());
    self.group->allgather(parts, input)->wait();
    for (int r = 0; r < self.size; ++r) {
      expect_equal(parts[0][static_cast<std::size_t>(r)], Rank::of(r, 0, 12).view({4, 3}).t(), "all_gather of transposed ones");
    }
  });
}

TEST_P(DeviceTensors, WaitOrdersCurrentStream) {
  on_ranks([](const Rank& self) {
    for (int call = 0; call < 5; ++call) {
      Tensors tensors{self.mine(call)};
      const auto work = self.group->allreduce(tensors);
      const c10::StreamGuard elsewhere(fake::new_stream(self.rank));
      if (call % 2 == 0) {
        work->wait();
      } else {
        work->synchronize();
      }
      expect_equal(tensors[0], self.total(call), "in another stream");
    }
  });
}

TEST_P(DeviceTensors, WaitDoesNotBlockHost) {
  on_ranks([](const Rank& self) {
    Tensors tensors{self.mine()};
    const auto work = self.group->allreduce(tensors);
    fake::BusyStream busy(self.rank);
    work->wait();
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
    EXPECT_FALSE(guard.queryStream(guard.getStream(fake::device(self.rank)))) << "wait() waited for the stream";
    if (self.path == Path::host_memory) {
      EXPECT_TRUE(work->isCompleted() && work->isSuccess());
    }
    busy.release();
    expect_equal(tensors[0], self.total(), "afterwards");
  });
}

TEST_P(DeviceTensors, ResultsComeAfterEarlierWorkOfStream) {
  on_ranks([](const Rank& self) {
    for (int call = 0; call < 5; ++call) {
      Tensors tensors{self.rank == 0 ? self.mine(call) : self.output({kCount})};
      fake::keep_busy(self.rank, self.rank == 0 ? 0 : kBusy);
      if (self.rank != 0) tensors[0].fill_(-1);  // delayed, but before the result
      const auto work = self.group->broadcast(tensors);
      const c10::StreamGuard elsewhere(fake::new_stream(self.rank));
      work->wait();
      expect_equal(tensors[0], Rank::of(0, call), "broadcast over a late fill");
    }
  });
}

TEST_P(DeviceTensors, ManyCallsInFlightWork) {
  on_ranks([](const Rank& self) {
    Tensors tensors;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int call = 0; call < 12; ++call) {
      Tensors one{self.mine(call)};
      works.push_back(call % 3 == 0 ? self.group->broadcast(one) : self.group->allreduce(one));
      tensors.push_back(one[0]);
    }
    for (int call = 11; call >= 0; --call) {
      const auto place = static_cast<std::size_t>(call);
      works[place]->wait();
      expect_equal(tensors[place], call % 3 == 0 ? Rank::of(0, call) : self.total(call), "call " + std::to_string(call));
    }
  });
}

TEST_P(DeviceTensors, FuturesHoldTensors) {
  on_ranks([](const Rank& self) {
    for (int call = 0; call < 5; ++call) {
      Tensors tensors{self.mine(call)};
      const auto work = self.group->allreduce(tensors);
      const auto future = work->getFuture();
      EXPECT_EQ(future->devices(), std::vector<c10::Device>{fake::device(self.rank)});
      // A callback has a stream of its own, in which the value is ready.
      const auto doubled = future->then(
          [](c10::ivalue::Future& ended) {
            const Tensor value = ended.value().toTensorVector()[0];
            Tensor copy = at::empty_like(value);
            copy.copy_(value, true);
            return c10::IValue(copy);
          },
          c10::TensorType::get());
      future->waitAndThrow();
      const Tensor value = future->value().toTensorVector()[0];
      EXPECT_TRUE(value.is_same(tensors[0]));
      expect_equal(value, self.total(call), "the future's value");
      doubled->waitAndThrow();
      expect_equal(doubled->value().toTensor(), self.total(call), "the result of a callback");
      work->getFutureResult()->wait();
      EXPECT_EQ(work->getFutureResult()->constValue().toInt(), static_cast<std::int64_t>(c10d::WorkResult::SUCCESS));
    }
  });
}

TEST_P(DeviceTensors, CoalescedCallsAreOneWork) {
  on_ranks([](const Rank& self) {
    Tensors many{self.mine(1), self.mine(2), self.mine(3)};
    const auto reduced = self.group->allreduce_coalesced(many);
    reduced->wait();
    for (int call : {1, 2, 3}) expect_equal(many[static_cast<std::size_t>(call - 1)], self.total(call), "all_reduce_coalesced");

    for (const bool by_future : {false, true, false, true}) {
      Tensors first{self.mine(4)}, on_cpu{Rank::of(self.rank, 6)};
      self.group->startCoalescing();
      self.group->allreduce(first);
      self.group->allreduce(on_cpu);
      Tensors second{self.rank == 0 ? self.mine(5) : self.output({kCount})};
      fake::keep_busy(self.rank, self.rank == 0 ? 0 : kBusy);  // this part is late
      self.group->broadcast(second);
      const auto both = self.group->endCoalescing();
      const c10::StreamGuard elsewhere(fake::new_stream(self.rank));
      if (by_future) {
        both->getFuture()->waitAndThrow();
      } else {
        both->wait();
      }
      expect_equal(second[0], Rank::of(0, 5), "broadcast in a block");
      expect_equal(first[0], self.total(4), "all_reduce in a block");
      EXPECT_TRUE(at::equal(on_cpu[0], self.total(6)));
    }
  });
}

TEST_P(DeviceTensors, TensorsMayBeDroppedWithoutWait) {
  on_ranks([](const Rank& self) {
    for (int call = 0; call < 20; ++call) {
      Tensors tensors{self.mine(call)};
      self.group->allreduce(tensors);
    }
    self.group->barrier()->wait();
  });
}

TEST_P(DeviceTensors, BarrierOfDeviceWaitsForItsStream) {
  on_ranks([](const Rank& self) {
    const c10::impl::VirtualGuardImpl guard(c10::DeviceType::PrivateUse1);
    const auto idle = [&] { return guard.queryStream(guard.getStream(fake::device(self.rank))); };
    for (const bool by_number : {false, true}) {
      c10d::BarrierOptions options;
      if (by_number) {
        options.device_ids = {self.rank};
      } else {
        options.device = fake::device(self.rank);
      }
      Tensor tensor = self.output({kCount});
      fake::keep_busy(self.rank, kBusy);
      c10::Event last(c10::DeviceType::PrivateUse1);
      last.record(guard.getStream(fake::device(self.rank)));
      self.group->barrier(options)->wait();
      EXPECT_TRUE(last.query()) << "the barrier did not wait for the stream";
    }
    const fake::BusyStream busy(self.rank);
    self.group->barrier()->wait();
    EXPECT_FALSE(idle()) << "a barrier without a device waits for no device";
  });
}

TEST_P(DeviceTensors, BadCallsLeaveGroupUsable) {
  on_ranks([](const Rank& self) {
    ProcessGroupShoal& group = *self.group;
    const Tensor here = self.mine();
    const Tensor cpu = Rank::of(self.rank);
    const Tensor there = fake::on_device(cpu, fake::kDevices - 1);
    const std::string name = "fake:" + std::to_string(self.rank);
    const auto words = [&](const char* call, int index, const std::string& wanted, const std::string& found) {
      return std::vector<std::string>{std::string("shoal ") + call, "index " + std::to_string(index), "expected " + wanted,
                                      "got " + found};
    };
    const auto refused = [](const std::function<void()>& call, const std::vector<std::string>& message) {
      expect_refusal<c10::ValueError>(call, message);
    };
    Tensors mixed{here, cpu}, two_devices{here, there}, inputs{here}, on_cpu{cpu};
    refused([&] { group.allreduce_coalesced(mixed); }, words("all_reduce_coalesced", 1, name, "cpu"));
    refused([&] { group.allreduce_coalesced(two_devices); }, words("all_reduce_coalesced", 1, name, "fake:3"));
    Tensor whole = at::empty({self.size * kCount}), wide = self.output({self.size * kCount});
    Tensor input = here;
    refused([&] { group._allgather_base(whole, input); }, words("all_gather_into_tensor", 1, name, "cpu"));
    refused([&] { group._reduce_scatter_base(input, whole); }, words("reduce_scatter_tensor", 1, "cpu", name));
    std::vector<std::int64_t> even;
    refused([&] { group.alltoall_base(whole, wide, even, even); }, words("all_to_all_single", 1, name, "cpu"));
    Lists parts{Tensors(static_cast<std::size_t>(self.size), cpu)};
    refused([&] { group.allgather(parts, inputs); }, words("all_gather", 0, name, "cpu"));
    refused([&] { group.reduce_scatter(inputs, parts); }, words("reduce_scatter", 0, "cpu", name));
    Tensors outputs{self.output({self.size * kCount}), at::empty({self.size * kCount})};
    refused([&] { group.allgather_into_tensor_coalesced(outputs, mixed); },
            words("all_gather_into_tensor_coalesced", 1, name, "cpu"));
    refused([&] { group.reduce_scatter_tensor_coalesced(mixed, outputs); },
            words("reduce_scatter_tensor_coalesced", 1, name, "cpu"));
    Lists coalesced(static_cast<std::size_t>(self.size), mixed);
    refused([&] { group.allgather_coalesced(coalesced, mixed); }, words("all_gather_coalesced", 1, name, "cpu"));
    Tensors all_here(static_cast<std::size_t>(self.size), here);
    refused([&] { group.alltoall(parts[0], all_here); }, words("all_to_all", 0, name, "cpu"));
    if (self.rank == 0) {
      refused([&] { group.gather(parts, inputs); }, words("gather", 0, name, "cpu"));
      refused([&] { group.scatter(inputs, parts); }, words("scatter", 0, name, "cpu"));
    }
    Tensors meta{at::empty({3}, at::kMeta)};
    refused([&] { group.allreduce(meta); }, {"shoal all_reduce", "meta"});

    Tensors tensors{self.mine()};
    group.allreduce(tensors)->wait();
    expect_equal(tensors[0], self.total(), "after bad calls");
  });
}

TEST_P(DeviceTensors, CallMixesCpuAndDeviceTensors) {
  on_ranks([](const Rank& self) {
    if (self.path == Path::streams) return;  // needs device tensors on all ranks
    const bool on_cpu = self.rank == 0;
    Tensors tensors{on_cpu ? Rank::of(0) : self.mine()};
    self.group->allreduce(tensors)->wait();
    EXPECT_TRUE(at::equal(tensors[0].cpu(), self.total()));
  });
}

TEST_P(DeviceTensors, EstimatesDoNotChangeTensors) {
  on_ranks([](const Rank& self) {
    Tensors tensors{self.mine()};
    self.group->startTimeEstimate();
    self.group->allreduce(tensors)->wait();
    EXPECT_GE(self.group->endTimeEstimate(), 0);
    expect_equal(tensors[0], Rank::of(self.rank), "no call was made");
    const Tensor made = self.group->allocateTensor(5, at::TensorOptions(fake::device(self.rank)).dtype(at::kLong));
    EXPECT_EQ(made.device(), fake::device(self.rank));
    EXPECT_EQ(made.numel(), 5);
  });
}

TEST_P(DeviceTensors, DispatcherCallsWork) {
  on_ranks([](const Rank& self) {
    const auto group = process_group_of(self);
    Tensors tensors{self.mine()};
    group->allreduce(tensors)->wait();
    expect_equal(tensors[0], self.total(), "all_reduce");
    Tensor whole = self.output({self.size * kCount});
    Tensor mine = self.mine(1);
    group->_allgather_base(whole, mine)->wait();
    expect_equal(whole, self.of_all_ranks(1), "all_gather_into_tensor");
    c10d::BarrierOptions options;
    options.device = fake::device(self.rank);
    group->barrier(options)->wait();
    Tensors on_cpu{Rank::of(self.rank)};
    group->allreduce(on_cpu)->wait();
    EXPECT_TRUE(at::equal(on_cpu[0], self.total()));
  });
}

}  // namespace
}  // namespace shoal::torch
