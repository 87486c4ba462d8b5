// All ranks of a pipeline cut a chain alike, by what rank 0 has measured.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/torch/pipeline_ranks.h"
#include "torch_plugin/parallel/partition/partition_chain.h"

namespace shoal::parallel::pipeline_testing {
namespace {

/// `layers` layers with an activation behind each.
Chain make_layers(int layers) {
  ::torch::manual_seed(5);
  nn::Sequential model;
  for (int layer = 0; layer < layers; ++layer) {
    model->push_back(nn::Linear(6, 6));
    model->push_back(nn::Tanh());
  }
  return Chain::of(model).value();
}

pipeline::PartitionRequest by_speed(int chunks = 1) {
  pipeline::PartitionRequest request;
  request.objective = pipeline::Objective::speed;
  request.rules.shape.kind = chunks == 1 ? pipeline::ScheduleKind::one_f_one_b : pipeline::ScheduleKind::virtual_stages;
  request.rules.shape.chunks = chunks;
  request.rules.shape.microbatches = 2;
  return request;
}

at::Tensor make_rows() { return ::torch::ones({4, 6}); }

/// `status` has this code and text on all ranks, and mentions `facts`.
void check_same_error(Communicator& communicator, const Status& status, StatusCode code,
                      const std::vector<std::string>& facts) {
  check(status.code() == code, "code of " + status.to_string());
  check(shoal::testing::mentions_all(status.message(), facts), facts.front() + " in " + status.message());
  const std::int64_t hash = static_cast<std::int64_t>(std::hash<std::string>()(status.message()) >> 1);
  std::int64_t least = 0;
  std::int64_t most = 0;
  check(communicator.all_reduce(&hash, &least, 1, DataType::int64, ReduceOp::min).ok(), "least");
  check(communicator.all_reduce(&hash, &most, 1, DataType::int64, ReduceOp::max).ok(), "most");
  check(least == most, "one text on all ranks: " + status.message());
}

TEST(PartitionChain, StagesOfAllRanksAreTheWholeChain) {
  for (const int chunks : {1, 2}) {
    run_ranks(2, [&](Communicator& communicator) {
      const Chain chain = make_layers(5);
      const at::Tensor images = communicator.rank() == 0 ? make_rows() : at::Tensor();
      const auto partition = partition_chain(chain, images, communicator, by_speed(chunks));
      check(partition.ok(), partition.status().to_string());
      check(static_cast<int>(partition->stages.size()) == 2 * chunks, "stages");
      const auto stages = make_stages(chain, *partition, communicator.rank(), 2);
      check(stages.ok() && static_cast<int>(stages->size()) == chunks, "stages of this rank");
      std::int64_t parameters = 0;
      for (const auto& stage : *stages) parameters += static_cast<std::int64_t>(stage->parameters().size());
      std::int64_t all = 0;
      check(communicator.all_reduce(&parameters, &all, 1, DataType::int64, ReduceOp::sum).ok(), "sum");
      check(all == 10, "a weight and a bias of each layer are on one rank");
    });
  }
}

TEST(PartitionChain, PipelineOfPartsGivesLossOfWholeModel) {
  run_ranks(3, [](Communicator& communicator) {
    const Chain chain = make_layers(4);
    const at::Tensor images = make_rows();
    const auto partition = partition_chain(chain, images, communicator, by_speed());
    check(partition.ok(), partition.status().to_string());
    const at::Tensor whole = chain.stage(0, chain.size()).value()->forward(images).mean();
    PipelineModel model(make_stages(chain, *partition, communicator.rank(), 3).value(), communicator,
                        {.schedule = pipeline::ScheduleKind::one_f_one_b, .microbatches = 1, .stage_times = partition->times});
    const StepOutput losses = model.step(images, {}, [](const at::Tensor& output, const at::Tensor&) { return output.mean(); });
    check_equal(losses.reduce_sum(), whole.detach(), "the loss");
  });
}

TEST(PartitionChain, OtherModelIsMismatchOnAllRanks) {
  for (const int layers : {3, 5}) {  // fewer and more than on rank 0
    run_ranks(2, [&](Communicator& communicator) {
      const Chain chain = make_layers(communicator.rank() == 1 ? layers : 4);
      const Status status = partition_chain(chain, make_rows(), communicator, by_speed()).status();
      check_same_error(communicator, status, StatusCode::mismatch, {"rank 1", "unit " + std::to_string(std::min(layers, 4))});
    });
  }
}

TEST(PartitionChain, ErrorsOfRank0AreKnownToAllRanks) {
  run_ranks(2, [](Communicator& communicator) {
    const at::Tensor none = communicator.rank() == 0 ? ::torch::ones({0, 6}) : make_rows();
    const Status status = partition_chain(make_layers(4), none, communicator, by_speed()).status();
    check_same_error(communicator, status, StatusCode::invalid_argument, {"images"});
  });
}

TEST(PartitionChain, MoreRanksThanUnitsIsAnError) {
  run_ranks(3, [](Communicator& communicator) {
    const Status status = partition_chain(make_layers(2), make_rows(), communicator, by_speed()).status();
    check_same_error(communicator, status, StatusCode::invalid_argument, {"3", "2"});
  });
}

TEST(PartitionChain, RanksMustDivideTheStages) {
  pipeline::Partition partition;
  partition.stages = {{.first = 0, .end = 1}, {.first = 1, .end = 2}, {.first = 2, .end = 3}};
  const Status status = make_stages(make_layers(3), partition, 0, 2).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_TRUE(shoal::testing::mentions_all(status.message(), {"2", "3 stages"})) << status.message();
}

}  // namespace
}  // namespace shoal::parallel::pipeline_testing
