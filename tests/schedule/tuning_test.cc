// The table of measured times: its file, matching, interpolation, and the preference of the Selector for it.

#include "src/selector/tuning.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include <shoal/limits.h>
#include <nlohmann/json.hpp>

#include "src/selector/predict.h"
#include "src/selector/selector.h"
#include "tests/mentions.h"
#include "tests/schedule/shapes.h"

namespace shoal {
namespace {

using testing::all_reduce;

using Json = nlohmann::ordered_json;

Measurement measurement(std::string_view algorithm, std::size_t bytes, double us) {
  return {CollectiveKind::all_reduce, *find_algorithm(algorithm), bytes, us, us * 0.9, us * 1.2, 50};
}

// A table that contradicts the model: one_shot for large messages, ring for small ones.
TunedShape odd_table(const Topology& topology = Topology::uniform(1, 4)) {
  return {topology.node_of_rank,
          transports_between(topology),
          {measurement("ring", 1 << 10, 10), measurement("ring", 1 << 20, 1000), measurement("one_shot", 1 << 10, 40),
           measurement("one_shot", 1 << 20, 250)}};
}

std::string file_of(const TunedShape& tuned) { return tuning_file(Json::array({to_json(tuned)})).dump(); }

Result<std::string_view> chosen(const Collective& collective, const TunedShape* tuned, std::string_view forced = {}) {
  const auto choice = select(Topology::uniform(1, 4), collective, forced, tuned);
  if (!choice.ok()) return choice.status();
  return choice->algorithm->name;
}

TEST(Tuning, FileSurvivesRoundTrip) {
  const TunedShape written = odd_table(Topology::ragged({3, 1, 2}));
  const auto read = parse_tuning(file_of(written));
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  ASSERT_EQ(read->shapes.size(), 1U);
  const TunedShape& shape = read->shapes.front();
  EXPECT_EQ(shape.node_of_rank, written.node_of_rank);
  EXPECT_EQ(shape.transports, "shm+tcp");
  EXPECT_THAT(shape.name(), testing::Mentions("3+1+2", "shm+tcp"));
  ASSERT_EQ(shape.measurements.size(), written.measurements.size());
  for (std::size_t i = 0; i < written.measurements.size(); ++i) {
    EXPECT_EQ(shape.measurements[i].kind, written.measurements[i].kind);
    EXPECT_EQ(shape.measurements[i].algorithm, written.measurements[i].algorithm);
    EXPECT_EQ(shape.measurements[i].bytes, written.measurements[i].bytes);
    EXPECT_DOUBLE_EQ(shape.measurements[i].median_us, written.measurements[i].median_us);
    EXPECT_DOUBLE_EQ(shape.measurements[i].p10_us, written.measurements[i].p10_us);
    EXPECT_DOUBLE_EQ(shape.measurements[i].p90_us, written.measurements[i].p90_us);
    EXPECT_EQ(shape.measurements[i].samples, 50);
  }
  // Start-up sends one shape to the other ranks.
  const auto sent = parse_tuned_shape(to_json(written).dump());
  ASSERT_TRUE(sent.ok());
  EXPECT_EQ(sent->measurements.size(), written.measurements.size());
}

TEST(Tuning, RefusesMalformedFilesAndNamesTheEntry) {
  const std::string good = file_of(odd_table());
  struct Damage {
    std::function<void(Json&)> apply;
    StatusCode code;
    std::vector<std::string> facts;
  };
  const auto entry = [](Json& file, std::size_t i) -> Json& { return file["shapes"][0]["entries"][i]; };
  const std::vector<Damage> damages{
      {[](Json& f) { f.erase("format"); }, StatusCode::invalid_argument, {"JSON", "shoal tune"}},
      {[](Json& f) { f["format"] = 2; }, StatusCode::unsupported, {"2", "1", "shoal tune"}},
      {[](Json& f) { f["shoal"] = "0.0.1"; }, StatusCode::unsupported, {"0.0.1", std::string(tuning_version()), "shoal tune"}},
      {[](Json& f) { f.erase("shoal"); }, StatusCode::unsupported, {std::string(tuning_version()), "shoal tune"}},
      {[](Json& f) { f["shapes"] = 7; }, StatusCode::invalid_argument, {"shapes"}},
      {[](Json& f) { f["shapes"][0] = 7; }, StatusCode::invalid_argument, {"shape 1"}},
      {[](Json& f) { f["shapes"][0]["node_of_rank"] = Json::array(); }, StatusCode::invalid_argument, {"node_of_rank"}},
      {[](Json& f) {
         f["shapes"][0]["node_of_rank"] = {0, 2};
       },
       StatusCode::invalid_argument,
       {"node_of_rank", "0"}},
      {[](Json& f) {
         f["shapes"][0]["node_of_rank"] = {0, -1};
       },
       StatusCode::invalid_argument,
       {"node_of_rank", "0"}},
      {[](Json& f) { f["shapes"][0]["node_of_rank"] = Json(std::vector<int>(kMaxJobRanks + 1)); },
       StatusCode::invalid_argument,
       {std::to_string(kMaxJobRanks + 1), std::to_string(kMaxJobRanks)}},
      {[](Json& f) { f["shapes"][0]["transports"] = 1; }, StatusCode::invalid_argument, {"transports"}},
      {[](Json& f) { f["shapes"][0].erase("entries"); }, StatusCode::invalid_argument, {"entries"}},
      {[&](Json& f) { entry(f, 1) = "x"; }, StatusCode::invalid_argument, {"shape 1", "entry 2"}},
      {[&](Json& f) { entry(f, 1)["algorithm"] = "rong"; }, StatusCode::not_found, {"entry 2", "rong", "recursive_doubling"}},
      {[&](Json& f) { entry(f, 2)["collective"] = "frob"; }, StatusCode::invalid_argument, {"entry 3", "frob", "all_reduce"}},
      {[&](Json& f) { entry(f, 2)["bytes"] = 0; }, StatusCode::invalid_argument, {"entry 3", "bytes"}},
      {[&](Json& f) { entry(f, 2)["bytes"] = -4; }, StatusCode::invalid_argument, {"entry 3", "bytes"}},
      {[&](Json& f) { entry(f, 2)["bytes"] = 4.5; }, StatusCode::invalid_argument, {"entry 3", "bytes"}},
      {[&](Json& f) { entry(f, 2)["latency_us"] = -1; }, StatusCode::invalid_argument, {"entry 3", "latency_us"}},
      {[&](Json& f) { entry(f, 2)["latency_us"] = "fast"; }, StatusCode::invalid_argument, {"entry 3", "latency_us"}},
      {[&](Json& f) { entry(f, 1) = entry(f, 0); }, StatusCode::invalid_argument, {"entry 2", "all_reduce", "1024", "ring"}},
      {[&](Json& f) { f["shapes"][0]["entries"] = Json(std::vector<Json>(5000, entry(f, 0))); },
       StatusCode::invalid_argument,
       {"5000", "4096"}},
  };
  for (const Damage& damage : damages) {
    Json file = Json::parse(good);
    damage.apply(file);
    const auto table = parse_tuning(file.dump());
    ASSERT_FALSE(table.ok()) << "expected: " << ::testing::PrintToString(damage.facts);
    EXPECT_EQ(table.status().code(), damage.code) << table.status().to_string();
    EXPECT_THAT(table.status().message(), testing::MentionsAll(damage.facts));
  }
  for (const std::string& text : {std::string(), std::string("{"), good.substr(0, good.size() / 2)}) {
    const auto table = parse_tuning(text);
    ASSERT_FALSE(table.ok());
    EXPECT_EQ(table.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(table.status().message(), testing::Mentions("JSON"));
  }
  EXPECT_FALSE(parse_tuning("[]").ok());
  EXPECT_FALSE(parse_tuning("null").ok());
}

TEST(Tuning, TruncatedFilesAreRefused) {
  const std::string good = file_of(odd_table());
  for (std::size_t length = 0; length < good.size(); ++length) EXPECT_FALSE(parse_tuning(good.substr(0, length)).ok());
}

TEST(Tuning, MatchesEqualShapesAndTransportsOnly) {
  const Topology two_by_two = Topology::uniform(2, 2);
  const TuningTable table{{odd_table(), odd_table(two_by_two)}};
  EXPECT_EQ(table.find(two_by_two, "shm+tcp"), &table.shapes[1]);
  EXPECT_EQ(table.find(Topology::uniform(1, 4), "shm"), &table.shapes[0]);
  EXPECT_EQ(table.find(Topology::uniform(1, 4), "tcp"), nullptr);
  EXPECT_EQ(table.find(Topology::uniform(1, 3), "shm"), nullptr);
  EXPECT_EQ(table.find(Topology::uniform(4, 1), "tcp"), nullptr);
  // Ranks assigned in turn: ranks with adjacent numbers are on different nodes.
  Topology in_turn = two_by_two;
  in_turn.node_of_rank = {0, 1, 0, 1};
  EXPECT_EQ(table.find(in_turn, "shm+tcp"), nullptr);
  EXPECT_THAT(table.names(), testing::Mentions("1x4", "shm", "2x2", "shm+tcp"));
}

TEST(Tuning, NamesTheTransportsOfAShape) {
  EXPECT_EQ(transports_between(Topology::uniform(1, 1)), "local");
  EXPECT_EQ(transports_between(Topology::uniform(1, 4)), "shm");
  EXPECT_EQ(transports_between(Topology::uniform(1, 4), false), "tcp");
  EXPECT_EQ(transports_between(Topology::uniform(4, 1)), "tcp");
  EXPECT_EQ(transports_between(Topology::ragged({1, 2})), "shm+tcp");
  EXPECT_EQ(transports_between(Topology::uniform(2, 2), false), "tcp");
}

TEST(Tuning, InterpolatesOnlyBetweenMeasuredSizes) {
  const TunedShape table = odd_table();
  const Algorithm& ring = **find_algorithm("ring");
  EXPECT_EQ(measured_us(table, ring, all_reduce(1 << 10)), 10);
  EXPECT_EQ(measured_us(table, ring, all_reduce(1 << 20)), 1000);
  // The logarithmic midpoint.
  EXPECT_NEAR(measured_us(table, ring, all_reduce(1 << 15)).value_or(0), 100, 1e-9);
  double last_us = 0;
  for (std::size_t bytes = 1 << 10; bytes <= 1 << 20; bytes += 4092) {
    const double us = measured_us(table, ring, all_reduce(bytes)).value_or(0);
    EXPECT_GT(us, last_us) << bytes;
    last_us = us;
  }
  EXPECT_EQ(measured_us(table, ring, all_reduce((1 << 10) - 4)), std::nullopt);
  EXPECT_EQ(measured_us(table, ring, all_reduce((1 << 20) + 4)), std::nullopt);
  EXPECT_EQ(measured_us(table, ring, all_reduce(0)), std::nullopt);
  EXPECT_EQ(measured_us(table, **find_algorithm("direct"), all_reduce(1 << 15)), std::nullopt);
  const Collective gather{CollectiveKind::all_gather, 1 << 13, DataType::float32, ReduceOp::sum, 0};
  EXPECT_EQ(measured_us(table, ring, gather), std::nullopt);
  EXPECT_EQ(measured_range(table, CollectiveKind::all_reduce), std::pair(std::size_t{1} << 10, std::size_t{1} << 20));
  EXPECT_EQ(measured_range(table, CollectiveKind::all_gather), std::nullopt);
}

TEST(Tuning, SelectorPrefersMeasurements) {
  const TunedShape table = odd_table();
  EXPECT_EQ(*chosen(all_reduce(1 << 10), &table), "ring");
  EXPECT_EQ(*chosen(all_reduce(1 << 20), &table), "one_shot");
  // In between: ring goes from 10 us to 1000 us, one_shot from 40 us to 250 us; their lines cross near 2^15.
  EXPECT_EQ(*chosen(all_reduce(1 << 13), &table), "ring");
  EXPECT_EQ(*chosen(all_reduce(1 << 18), &table), "one_shot");
  // By bytes, for any type.
  EXPECT_EQ(*chosen({CollectiveKind::all_reduce, 1 << 18, DataType::int8, ReduceOp::max, 0}, &table), "one_shot");
  // Outside, and for another collective, the model decides as it does without a table.
  for (const Collective& outside : {all_reduce(4), all_reduce(64 << 20),
                                    Collective{CollectiveKind::broadcast, 1 << 15, DataType::float32, ReduceOp::sum, 0}}) {
    EXPECT_EQ(*chosen(outside, &table), *chosen(outside, nullptr));
    EXPECT_EQ(select(Topology::uniform(1, 4), outside, {}, &table)->basis, ChoiceBasis::model);
  }
  const auto choice = select(Topology::uniform(1, 4), all_reduce(1 << 20), {}, &table);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->basis, ChoiceBasis::table);
  EXPECT_EQ(choice->predicted_us, 250);
}

TEST(Tuning, ForcedAlgorithmUsesMeasuredTime) {
  const TunedShape table = odd_table();
  const auto forced = select(Topology::uniform(1, 4), all_reduce(1 << 20), "ring", &table);
  ASSERT_TRUE(forced.ok());
  EXPECT_EQ(forced->algorithm->name, "ring");
  EXPECT_EQ(forced->basis, ChoiceBasis::forced);
  EXPECT_EQ(forced->predicted_us, 1000);
  EXPECT_EQ(*chosen(all_reduce(1 << 20), &table, "direct"), "direct");
}

TEST(Tuning, SelectorPrefersSimplerOfNearlyEqual) {
  const Topology topology = Topology::uniform(1, 4);
  const TunedShape table{topology.node_of_rank, "shm", {measurement("ring", 64, 10), measurement("one_shot", 64, 10.1)}};
  EXPECT_EQ(*chosen(all_reduce(64), &table), "one_shot");
}

TEST(Tuning, ExplanationShowsMeasuredAndPredicted) {
  const TunedShape table = odd_table();
  const auto explanation = explain(Topology::uniform(1, 4), all_reduce(1 << 20), {}, &table);
  ASSERT_TRUE(explanation.ok());
  EXPECT_EQ(explanation->candidates[0].algorithm->name, "one_shot");
  EXPECT_EQ(explanation->candidates[0].measured_us, 250);
  EXPECT_GT(explanation->candidates[0].predicted_us, 0);
  EXPECT_EQ(explanation->candidates[1].algorithm->name, "ring");
  EXPECT_FALSE(explanation->candidates[2].measured_us.has_value());
  EXPECT_THAT(explanation->reason, testing::Mentions("one_shot", "250.0 us", "ring", "1000.0 us"));
  const auto forced = explain(Topology::uniform(1, 4), all_reduce(1 << 20), "ring", &table);
  ASSERT_TRUE(forced.ok());
  EXPECT_THAT(forced->reason, testing::Mentions("ring", "one_shot", "250.0 us", "1000.0 us"));
}

TEST(PredictedTerms, SplitTimeIntoLatencyAndBytes) {
  Topology topology = Topology::uniform(4, 1);
  topology.cost[static_cast<std::size_t>(LinkClass::network)] = {100, 1e-2};
  topology.reduce_us_per_byte = 1e-4;
  const Algorithm& ring = **find_algorithm("ring");
  const PredictedTerms small = predict_terms(ring, topology, all_reduce(16));
  EXPECT_NEAR(small.latency_us, predict_us(ring, topology, all_reduce(16)), 2);
  EXPECT_LT(small.bytes_us, 2);
  const PredictedTerms large = predict_terms(ring, topology, all_reduce(16 << 20));
  // Each of the 6 messages sent and of the 6 received costs an acknowledgement, a quarter of the latency.
  EXPECT_NEAR(small.latency_us, 6 * 100 + 12 * 25, 0.01 * small.latency_us);
  EXPECT_NEAR(large.latency_us, small.latency_us, 0.01 * small.latency_us);
  EXPECT_GT(large.bytes_us, 0.9 * predict_us(ring, topology, all_reduce(16 << 20)));
  // In a pairwise exchange of single packets, each packet acknowledges the other.
  const Algorithm& pairs = **find_algorithm("recursive_halving");
  EXPECT_NEAR(predict_terms(pairs, topology, all_reduce(16)).latency_us, 4 * 100, 1);
  EXPECT_NEAR(predict_terms(pairs, topology, all_reduce(16 << 20)).latency_us, 4 * 100 + 8 * 25, 1);
  // A gather folds nothing.
  const Collective gather{CollectiveKind::all_gather, 1 << 18, DataType::float32, ReduceOp::sum, 0};
  EXPECT_EQ(predict_terms(ring, topology, gather).arithmetic_us, 0);
}

}  // namespace
}  // namespace shoal
