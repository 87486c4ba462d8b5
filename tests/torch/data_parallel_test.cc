// DataParallel around a user's module: every option, compared with one process that trains on the whole batch.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <stdexcept>
#include <string>

#include "tests/facts.h"
#include "tests/torch/forked_ranks.h"
#include "torch_plugin/package/torch.h"

namespace shoal::ddp {
namespace {

namespace nn = ::torch::nn;
using Group = testing::TorchGroup;
using testing::run_torch_ranks;

constexpr int kRanks = 3;
constexpr std::int64_t kShare = 4;  // samples of a rank
constexpr std::uint64_t kModelSeed = 17;
constexpr double kTolerance = 1e-5;

/// A user's module without anything of shoal.
struct TwoHeadsImpl final : nn::Module {
  TwoHeadsImpl()
      : trunk(register_module("trunk", nn::Linear(6, 300))),
        head(register_module("head", nn::Linear(300, 2))),
        second_head(register_module("second_head", nn::Linear(300, 2))) {
    register_buffer("seen", ::torch::zeros({1}, ::torch::kLong));
  }
  at::Tensor forward(const at::Tensor& x, bool second = false) {
    if (is_training()) buffers()[0].add_(x.size(0));
    return (second ? second_head : head)->forward(trunk->forward(x).tanh());
  }
  nn::Linear trunk, head, second_head;
};
using TwoHeads = nn::ModuleHolder<TwoHeadsImpl>;

/// The same model on every rank and in one process; the second head needs no gradient unless `both`.
TwoHeads make_model(bool both = false) {
  ::torch::manual_seed(kModelSeed);
  TwoHeads model;
  if (!both) {
    for (at::Tensor& parameter : model->second_head->parameters()) parameter.set_requires_grad(false);
  }
  return model;
}

at::Tensor samples(int ranks) {
  ::torch::manual_seed(kModelSeed + 1);
  return ::torch::randn({ranks * kShare, 6});
}
at::Tensor samples_of(int rank, int ranks) { return samples(ranks).narrow(0, rank * kShare, kShare); }

/// A mean over samples, so that the mean of equal shares is the mean of the whole batch.
at::Tensor loss_of(const at::Tensor& output) { return output.square().mean(); }

void check(bool right, const std::string& what) {
  if (!right) throw std::runtime_error("not so: " + what);
}
void check_close(const at::Tensor& found, const at::Tensor& wanted, const std::string& what, double tolerance = kTolerance) {
  check(found.defined() && wanted.defined(), what + " is there");
  const double difference = (found - wanted).norm().item<double>();
  check(wanted.norm().item<double>() > 0, what + " is not zero");
  check(difference <= tolerance * wanted.norm().item<double>(), what + ", off by " + std::to_string(difference));
}
void check_gradients(const nn::Module& found, const nn::Module& wanted, double tolerance = kTolerance) {
  for (const auto& named : wanted.named_parameters()) {
    if (!named.value().requires_grad()) continue;
    check_close(found.named_parameters()[named.key()].grad(), named.value().grad(), "gradient of " + named.key(), tolerance);
  }
}
template <typename Exception>
void check_throws(const std::function<void()>& body, const std::vector<std::string>& facts) {
  try {
    body();
  } catch (const Exception& error) {
    return check(testing::mentions_all(error.what(), facts), "\"" + facts.front() + "\" and more in: " + error.what());
  }
  check(false, "throws \"" + facts.front() + "\"");
}

DataParallelOptions small_buckets() { return {.bucket_mib = 0.004, .first_bucket_mib = 0.001}; }

DataParallelOptions with_sgd(DataParallelOptions options, Overlap overlap) {
  options.overlap = overlap;
  options.make_optimizer = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<::torch::optim::SGD>(std::move(parameters), ::torch::optim::SGDOptions(0.1));
  };
  return options;
}

TEST(DataParallel, GradientsAreThoseOfWholeBatch) {
  run_torch_ranks(kRanks, [](const Group& group) {
    const int rank = group->getRank();
    TwoHeads model = make_model();
    if (rank > 0) {
      const at::NoGradGuard no_grad;  // DataParallel must broadcast rank 0's weights
      for (at::Tensor& parameter : model->parameters()) parameter.add_(1.0);
    }
    ::torch::optim::SGD optimizer(model->parameters(), 0.1);
    DataParallel parallel(*model, group, small_buckets());
    TwoHeads alone = make_model();
    ::torch::optim::SGD alone_optimizer(alone->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      model->zero_grad();
      loss_of(parallel.forward([&] { return model->forward(samples_of(rank, kRanks)); })).backward();
      alone_optimizer.zero_grad();
      loss_of(alone->forward(samples(kRanks))).backward();
      check_gradients(*model, *alone);
      optimizer.step();
      alone_optimizer.step();
    }
    for (std::size_t i = 0; i < alone->parameters().size(); ++i)
      check_close(model->parameters()[i].detach(), alone->parameters()[i].detach(), "parameter");
  });
}

TEST(DataParallel, BroadcastBuffersIsOptional) {
  run_torch_ranks(2, [](const Group& group) {
    const int rank = group->getRank();
    for (const bool follow : {true, false}) {
      TwoHeads model = make_model();
      model->buffers()[0].fill_(rank == 0 ? 100 : 7);
      DataParallelOptions options;
      options.broadcast_buffers = follow;
      DataParallel parallel(*model, group, options);
      check(model->buffers()[0].item<std::int64_t>() == 100, "the start is rank 0's");
      // Rank r counts (r + 1) * 4 samples in its own buffer; with broadcast_buffers rank 0's 4 count on all ranks.
      for (int step = 0; step < 3; ++step) {
        loss_of(parallel.forward([&] { return model->forward(samples(rank + 1)); })).backward();
      }
      parallel.synchronize();
      const std::int64_t seen = model->buffers()[0].item<std::int64_t>();
      check(seen == (follow || rank == 0 ? 100 + 3 * kShare : 100 + 3 * 2 * kShare), "samples seen: " + std::to_string(seen));
    }
  });
}

TEST(DataParallel, NoSyncAccumulatesGradients) {
  run_torch_ranks(kRanks, [](const Group& group) {
    const int rank = group->getRank();
    TwoHeads model = make_model();
    DataParallel parallel(*model, group, small_buckets());
    const at::Tensor mine = samples_of(rank, kRanks);
    // Several rounds, because the buckets are sorted after the first backward.
    for (int round = 0; round < 3; ++round) {
      parallel.clear_gradients();
      {
        const auto outer = parallel.no_sync();
        {
          const auto inner = parallel.no_sync();
          (loss_of(parallel.forward([&] { return model->forward(mine.narrow(0, 0, 1)); })) / 4).backward();
        }
        (loss_of(parallel.forward([&] { return model->forward(mine.narrow(0, 1, 1)); })) / 4).backward();
      }
      TwoHeads local = make_model();
      (loss_of(local->forward(mine.narrow(0, 0, 2))) / 2).backward();
      check_gradients(*model, *local);  // without the gradients of other ranks
      (loss_of(parallel.forward([&] { return model->forward(mine.narrow(0, 2, 2)); })) / 2).backward();
      TwoHeads alone = make_model();
      loss_of(alone->forward(samples(kRanks))).backward();
      check_gradients(*model, *alone);
    }
  });
}

TEST(DataParallel, NoSyncWorksWithNextForwardOverlap) {
  run_torch_ranks(2, [](const Group& group) {
    const int rank = group->getRank();
    TwoHeads model = make_model();
    DataParallel parallel(*model, group, with_sgd(small_buckets(), Overlap::next_forward));
    TwoHeads alone = make_model();
    ::torch::optim::SGD optimizer(alone->parameters(), 0.1);
    const at::Tensor mine = samples_of(rank, 2);
    for (int step = 0; step < 4; ++step) {
      parallel.clear_gradients();
      {
        const auto no_sync = parallel.no_sync();
        (loss_of(parallel.forward([&] { return model->forward(mine.narrow(0, 0, 1)); })) / 4).backward();
      }
      (loss_of(parallel.forward([&] { return model->forward(mine.narrow(0, 1, 3)); })) * 3 / 4).backward();
      parallel.step();
      optimizer.zero_grad();
      loss_of(alone->forward(samples(2))).backward();
      optimizer.step();
    }
    parallel.synchronize();
    for (std::size_t i = 0; i < alone->parameters().size(); ++i)
      check_close(model->parameters()[i].detach(), alone->parameters()[i].detach(), "parameter");
  });
}

TEST(DataParallel, EvaluationDoesNotChangeGradients) {
  run_torch_ranks(2, [](const Group& group) {
    TwoHeads model = make_model();
    DataParallel parallel(*model, group, small_buckets());
    TwoHeads alone = make_model();
    loss_of(alone->forward(samples(2))).backward();
    for (int step = 0; step < 3; ++step) {
      model->eval();
      {
        const at::NoGradGuard no_grad;
        // On rank 0 only, because an evaluation needs no other rank.
        if (group->getRank() == 0) parallel.forward([&] { return model->forward(samples(2)); });
      }
      model->train();
      parallel.clear_gradients();
      loss_of(parallel.forward([&] { return model->forward(samples_of(group->getRank(), 2)); })).backward();
      check_gradients(*model, *alone);
    }
  });
}

TEST(DataParallel, GradientAsBucketViewIsOptional) {
  run_torch_ranks(2, [](const Group& group) {
    for (const bool views : {true, false}) {
      TwoHeads model = make_model();
      DataParallelOptions options;  // one bucket
      options.gradient_as_bucket_view = views;
      DataParallel parallel(*model, group, options);
      loss_of(parallel.forward([&] { return model->forward(samples_of(group->getRank(), 2)); })).backward();
      const bool shared = model->trunk->weight.grad().storage().is_alias_of(model->head->weight.grad().storage());
      check(shared == views, views ? "gradients share a bucket" : "gradients have memory of their own");
      TwoHeads alone = make_model();
      loss_of(alone->forward(samples(2))).backward();
      check_gradients(*model, *alone);
    }
  });
}

TEST(DataParallel, Bf16CompressionSendsBfloat16) {
  run_torch_ranks(kRanks, [](const Group& group) {
    TwoHeads model = make_model();
    DataParallelOptions options = small_buckets();
    options.comm_hook = bf16_compression();
    DataParallel parallel(*model, group, options);
    TwoHeads alone = make_model();
    loss_of(alone->forward(samples(kRanks))).backward();
    for (int step = 0; step < 3; ++step) {
      parallel.clear_gradients();
      loss_of(parallel.forward([&] { return model->forward(samples_of(group->getRank(), kRanks)); })).backward();
      check_gradients(*model, *alone, 0x1p-7);
      for (const at::Tensor& parameter : model->parameters()) {
        if (!parameter.requires_grad()) continue;
        check(parameter.grad().to(at::kBFloat16).to(at::kFloat).equal(parameter.grad()), "sums came as bfloat16");
      }
    }
  });
}

TEST(DataParallel, HookGetsEveryBucketAndItsFailureEndsBackward) {
  run_torch_ranks(2, [](const Group& group) {
    TwoHeads model = make_model();
    std::size_t elements = 0;
    bool fails = false;
    DataParallelOptions options = small_buckets();
    options.comm_hook = [&](const Group& ranks, c10d::GradBucket& bucket) {
      elements += static_cast<std::size_t>(bucket.getBuffer().numel());
      auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
      if (fails) {
        future->setError(std::make_exception_ptr(std::runtime_error("the hook failed")));
      } else {
        future->markCompleted(bucket.getBuffer().fill_(ranks->getSize()));
      }
      return future;
    };
    DataParallel parallel(*model, group, options);
    for (int step = 0; step < 2; ++step) {
      elements = 0;
      parallel.clear_gradients();
      loss_of(parallel.forward([&] { return model->forward(samples_of(group->getRank(), 2)); })).backward();
      check(elements * sizeof(float) == parallel.gradient_bytes(), "every gradient went through the hook once");
      check(model->head->weight.grad().eq(2).all().item<bool>(), "what the hook returns is the gradient");
    }
    fails = true;
    const at::Tensor loss = loss_of(parallel.forward([&] { return model->forward(samples_of(group->getRank(), 2)); }));
    check_throws<std::exception>([&] { loss.backward(); }, {"the hook failed"});
  });
}

TEST(DataParallel, UnusedParametersAreFound) {
  run_torch_ranks(2, [](const Group& group) {
    const int rank = group->getRank();
    TwoHeads model = make_model(/*both=*/true);
    DataParallelOptions options = small_buckets();
    options.find_unused_parameters = true;
    DataParallel parallel(*model, group, options);
    const auto step = [&](bool second) {
      parallel.clear_gradients();
      auto outputs = parallel.forward([&] {  // the tensors of a pair are found, too
        return std::pair<at::Tensor, at::Tensor>(model->forward(samples_of(rank, 2), second), at::zeros({1}));
      });
      loss_of(outputs.first).backward();
    };
    for (int round = 0; round < 2; ++round) {
      step(/*second=*/rank == 1);
      TwoHeads alone = make_model(/*both=*/true);
      ((loss_of(alone->forward(samples_of(0, 2))) + loss_of(alone->forward(samples_of(1, 2), true))) / 2).backward();
      check_gradients(*model, *alone);
      step(/*second=*/false);  // on both
      check(!model->second_head->weight.grad().defined(), "a head that no rank used has no gradient");
      check(model->head->weight.grad().defined(), "the other head has one");
    }
    parallel.before_forward();
    const at::Tensor output = model->forward(samples_of(rank, 2));
    check_throws<c10::ValueError>([&] { parallel.before_backward(); }, {"find_unused_parameters", "before_backward"});
    parallel.before_backward({output});
    loss_of(output).backward();
  });
}

TEST(DataParallel, MissingGradientIsReported) {
  run_torch_ranks(2, [](const Group& group) {
    TwoHeads model = make_model(/*both=*/true);
    DataParallel parallel(*model, group);
    const auto step = [&] {
      loss_of(parallel.forward([&] { return model->forward(samples_of(group->getRank(), 2)); })).backward();
    };
    step();
    check_throws<std::exception>(
        step, {"did not receive grad for rank " + std::to_string(group->getRank()) + ": 4 5"});  // text of c10d
  });
}

TEST(DataParallel, InvalidOptionsAreRefused) {
  run_torch_ranks(1, [](const Group& group) {
    TwoHeads model = make_model();
    DataParallelOptions hook = with_sgd({}, Overlap::next_forward);
    hook.comm_hook = bf16_compression();
    check_throws<c10::ValueError>([&] { DataParallel(*model, group, hook); }, {"comm_hook", "Overlap::backward"});
    DataParallelOptions unused = with_sgd({}, Overlap::next_forward);
    unused.find_unused_parameters = true;
    check_throws<c10::ValueError>([&] { DataParallel(*model, group, unused); },
                                  {"find_unused_parameters", "Overlap::backward"});
    for (at::Tensor& parameter : model->parameters()) parameter.set_requires_grad(false);
    check_throws<c10::ValueError>([&] { DataParallel(*model, group); }, {"DataParallel", "gradient"});
  });
}

}  // namespace
}  // namespace shoal::ddp
