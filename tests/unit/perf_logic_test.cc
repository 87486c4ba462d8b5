// The parts of shoal_perf whose errors would go unnoticed: sizes, statistics, options, table and JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "bench/perf/options.h"
#include "bench/perf/record.h"
#include "bench/perf/sizes.h"
#include "bench/perf/statistics.h"
#include "bench/perf/table.h"

namespace shoal::perf {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Sizes, AreReadWithBinaryUnits) {
  EXPECT_EQ(*parse_size("4"), 4U);
  EXPECT_EQ(*parse_size("0"), 0U);
  EXPECT_EQ(*parse_size("4B"), 4U);
  EXPECT_EQ(*parse_size("4K"), 4096U);
  EXPECT_EQ(*parse_size("4KiB"), 4096U);
  EXPECT_EQ(*parse_size("4M"), 4U << 20);
  EXPECT_EQ(*parse_size("64MiB"), 64U << 20);
  EXPECT_EQ(*parse_size("3G"), std::size_t{3} << 30);
}

TEST(Sizes, RefuseAndNameInvalidText) {
  for (const char* text : {"", "-4", "x", "4KB", "4 K", "K", "1.5M", "99999999999999999999", "99999999999G"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_EQ(size.status().code(), StatusCode::invalid_argument);
    EXPECT_THAT(size.status().message(), HasSubstr(text));
  }
}

TEST(Sizes, FollowAFactorOrAStep) {
  EXPECT_THAT(*list_sizes({4, 64, 0, 4}), ElementsAre(4, 16, 64));
  EXPECT_THAT(*list_sizes({4, 63, 0, 4}), ElementsAre(4, 16));
  EXPECT_THAT(*list_sizes({0, 8, 0, 2}), ElementsAre(0, 1, 2, 4, 8));
  EXPECT_THAT(*list_sizes({0, 0, 0, 2}), ElementsAre(0));
  EXPECT_THAT(*list_sizes({10, 35, 10, 4}), ElementsAre(10, 20, 30));
  const std::size_t top = ~std::size_t{0};
  EXPECT_THAT(*list_sizes({top / 2, top, 0, 3}), ElementsAre(top / 2));
  EXPECT_THAT(*list_sizes({top - 5, top, 4, 2}), ElementsAre(top - 5, top - 1));
}

TEST(Sizes, RefuseRangesThatDoNotMove) {
  EXPECT_THAT(list_sizes({8, 4, 0, 2}).status().message(), HasSubstr("-b 8"));
  EXPECT_THAT(list_sizes({4, 8, 0, 1}).status().message(), HasSubstr("-f 1"));
  EXPECT_FALSE(list_sizes({4, 8, 0, -2}).ok());
}

TEST(Statistics, QuantilesInterpolate) {
  const std::vector<double> values{4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(median(values), 2.5);
  EXPECT_DOUBLE_EQ(quantile(values, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(values, 1), 4);
  EXPECT_DOUBLE_EQ(quantile(values, 0.1), 1.3);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{7}), 7);
  EXPECT_DOUBLE_EQ(median(std::vector<double>{}), 0);
}

TEST(Statistics, GeometricMeanTreatsHalfAndDoubleAlike) {
  EXPECT_DOUBLE_EQ(geometric_mean(std::vector<double>{0.5, 2}), 1);
  EXPECT_DOUBLE_EQ(geometric_mean(std::vector<double>{}), 0);
}

TEST(Statistics, RankTimesCombineAsAsked) {
  const std::vector<double> times{2, 1, 6};
  EXPECT_DOUBLE_EQ(combine(times, RankTime::rank_0), 2);
  EXPECT_DOUBLE_EQ(combine(times, RankTime::average), 3);
  EXPECT_DOUBLE_EQ(combine(times, RankTime::minimum), 1);
  EXPECT_DOUBLE_EQ(combine(times, RankTime::maximum), 6);
}

TEST(Statistics, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::broadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::all_reduce, 1), 0);
  for (const CollectiveKind kind :
       {CollectiveKind::reduce_scatter, CollectiveKind::gather, CollectiveKind::scatter, CollectiveKind::all_to_all}) {
    EXPECT_DOUBLE_EQ(bus_factor(kind, 4), 0.75);
  }
  EXPECT_DOUBLE_EQ(bus_factor(CollectiveKind::reduce, 4), 1);
  EXPECT_DOUBLE_EQ(least_bytes_per_node(CollectiveKind::all_reduce, 4, 2, 100), 100);
  EXPECT_DOUBLE_EQ(least_bytes_per_node(CollectiveKind::broadcast, 4, 1, 100), 0);
  EXPECT_DOUBLE_EQ(least_bytes_per_node(CollectiveKind::reduce_scatter, 4, 2, 100), 50);
  EXPECT_DOUBLE_EQ(least_bytes_per_node(CollectiveKind::all_to_all, 4, 2, 100), 100);
}

Options parsed(const std::vector<std::string>& arguments) {
  auto result = parse_options(arguments);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? result->options : Options{};
}

TEST(CommandLine, TakesShortAndLongForms) {
  const Options brief = parsed({"-b",  "8",  "-e",    "32", "-f", "2",  "-n", "7",  "-w", "3",  "-c", "2",  "-o",
                                "max", "-d", "int32", "-a", "1",  "-N", "0",  "-T", "9",  "-z", "0",  "-J", "x.json"});
  EXPECT_THAT(brief.sizes_bytes, ElementsAre(8, 16, 32));
  EXPECT_EQ(brief.iterations, 7);
  EXPECT_EQ(brief.warmup_iterations, 3);
  EXPECT_EQ(brief.check_iterations, 2);
  EXPECT_THAT(brief.ops, ElementsAre(ReduceOp::max));
  EXPECT_THAT(brief.types, ElementsAre(DataType::int32));
  EXPECT_EQ(brief.rank_time, RankTime::average);
  EXPECT_EQ(brief.cycles, 0);
  EXPECT_EQ(brief.timeout_s, 9);
  EXPECT_FALSE(brief.blocking);
  EXPECT_EQ(brief.json_path, "x.json");

  const Options full = parsed(
      {"--minbytes",  "8",    "--maxbytes", "32",           "--stepbytes",          "12",     "--collective", "broadcast",
       "--root",      "1",    "--peer",     "openmpi,gloo", "--openmpi-algorithms", "all",    "--transport",  "tcp",
       "--algorithm", "ring", "--memory",   "ordinary",     "--no-limit",           "--json", "y.json",       "--plot",
       "y.svg"});
  EXPECT_THAT(full.sizes_bytes, ElementsAre(8, 20, 32));
  EXPECT_EQ(full.collective, CollectiveKind::broadcast);
  EXPECT_EQ(full.root, 1);
  EXPECT_THAT(full.peers, ElementsAre("openmpi", "gloo"));
  EXPECT_TRUE(full.all_openmpi_algorithms);
  EXPECT_EQ(full.transports, "tcp");
  EXPECT_EQ(full.algorithm, "ring");
  EXPECT_FALSE(full.measure_limit);
  EXPECT_EQ(full.json_path, "y.json");
  EXPECT_EQ(full.plot_path, "y.svg");
}

TEST(CommandLine, HasUsefulDefaults) {
  const Options options = parsed({});
  EXPECT_EQ(options.collective, CollectiveKind::all_reduce);
  EXPECT_EQ(options.sizes_bytes.front(), 4U);
  EXPECT_EQ(options.sizes_bytes.back(), 64U << 20);
  EXPECT_THAT(options.types, ElementsAre(DataType::float32));
  EXPECT_THAT(options.ops, ElementsAre(ReduceOp::sum));
  EXPECT_TRUE(options.peers.empty());
  EXPECT_GE(options.check_iterations, 1);
}

TEST(CommandLine, ExpandsLists) {
  EXPECT_EQ(parsed({"-d", "all", "-o", "all"}).types.size(), static_cast<std::size_t>(kDataTypeCount));
  EXPECT_EQ(parsed({"-d", "all", "-o", "all"}).ops.size(), static_cast<std::size_t>(kReduceOpCount));
  EXPECT_THAT(parsed({"-d", "half,double", "-o", "sum,max"}).types, ElementsAre(DataType::float16, DataType::float64));
  EXPECT_THAT(parsed({"-b", "4", "-e", "8", "-b", "8"}).sizes_bytes, ElementsAre(8));  // the last one counts
  EXPECT_THAT(parsed({"--collective", "barrier"}).sizes_bytes, ElementsAre(0));
}

TEST(CommandLine, GivesOneMessageForBadInput) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"-d", "float31"}, "float31"},
      {{"-o", "median"}, "median"},
      {{"-o", "sum,"}, ""},
      {{"-d", ""}, ""},
      {{"--collective", "all_knit"}, "all_knit"},
      {{"-b", "8", "-e", "4"}, "-b 8"},
      {{"-b", "-4"}, "-4"},
      {{"-e", "1T"}, "1T"},
      {{"-f", "1"}, "-f 1"},
      {{"-i", "0"}, "-i 0"},
      {{"-n", "-1"}, "-n -1"},
      {{"-n", "many"}, "many"},
      {{"-r", "-1"}, "-r -1"},
      {{"-T", "0"}, "-T 0"},
      {{"-a", "4"}, "-a 4"},
      {{"-z", "2"}, "-z 2"},
      {{"-d", "float", "-o", "bxor"}, "bxor"},
      {{"--peer", "openmpi,openmpi"}, "twice"},
      {{"--peer", "openmpi,"}, "empty"},
      {{"--peer", "shoal"}, "shoal"},
      {{"--openmpi-algorithms", "best"}, "best"},
      {{"--memory", "gpu"}, "gpu"},
      {{"--data", "real"}, "real"},
      {{"--data", "normal", "-d", "half"}, "-d float"},
      {{"--block-ms", "nan"}, "--block-ms"},
      {{"--wings"}, "--wings"},
      {{"stray"}, "stray"},
  };
  for (const auto& [arguments, named] : cases) {
    const auto result = parse_options(arguments);
    ASSERT_FALSE(result.ok()) << arguments.front() << " was accepted";
    EXPECT_THAT(result.status().message(), HasSubstr(named));
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos) << result.status().message();
  }
  EXPECT_TRUE(parse_options({"--memory", "shoal"})->options.shared_memory);
  EXPECT_FALSE(parse_options({})->options.normal_data);
  const auto normal = parse_options({"--data", "normal"});
  EXPECT_TRUE(normal->options.normal_data && normal->options.out_of_place_only);
  EXPECT_FALSE(parse_options({}, "fast").ok());
  EXPECT_DOUBLE_EQ(parse_options({}, "1.5")->options.min_bandwidth_gbs, 1.5);
  EXPECT_DOUBLE_EQ(parse_options({"--min-bw", "2"}, "1.5")->options.min_bandwidth_gbs, 2);
}

Record sample(const std::string& library, std::size_t bytes, std::vector<double> block_us, int nodes = 2) {
  Record record;
  record.library = library;
  record.ranks = 4;
  record.nodes = nodes;
  record.transport = "tcp";
  record.algorithm = "ring";
  record.bytes = bytes;
  set_figures(record, block_us, 0.002, nodes > 1 ? 0.125 : 0);
  return record;
}

Row row_of(const Record& record) {
  Row row;
  row.library = record.library;
  row.bytes = record.bytes;
  row.count = record.bytes / 4;
  row.out_of_place = record;
  row.in_place = record;
  row.in_place->latency_us *= 2;
  return row;
}

TEST(Figures, AreComputedFromTheTimes) {
  const Record record = sample("shoal", 1000000, {20000, 10000, 30000});
  EXPECT_DOUBLE_EQ(record.latency_us, 20000);
  EXPECT_DOUBLE_EQ(record.latency_us_p10, 12000);
  EXPECT_DOUBLE_EQ(record.latency_us_p90, 28000);
  EXPECT_DOUBLE_EQ(record.algbw_gbs, 0.05);
  EXPECT_DOUBLE_EQ(record.busbw_gbs, 0.075);
  EXPECT_DOUBLE_EQ(record.cpu_s_per_gb, 2);
  // Two nodes exchange the whole message once in each direction: 1 MB at 0.125 GB/s is 8 ms.
  EXPECT_DOUBLE_EQ(record.limit_gbs.value(), 0.125);
  EXPECT_DOUBLE_EQ(record.limit_fraction.value(), 0.4);
  EXPECT_FALSE(sample("shoal", 1000000, {1}, 1).limit_fraction.has_value());
}

TEST(Figures, AreZeroForEmptyMessages) {
  const Record record = sample("shoal", 0, {5});
  EXPECT_DOUBLE_EQ(record.algbw_gbs, 0);
  EXPECT_DOUBLE_EQ(record.cpu_s_per_gb, 0);
  EXPECT_FALSE(record.limit_fraction.has_value());
}

Record peer_sample(std::size_t bytes, double us, double time_over_shoal) {
  Record record = sample("gloo", bytes, {us});
  record.time_over_shoal = time_over_shoal;
  return record;
}

TEST(Ratios, AreTakenPerRoundBeforeTheMedian) {
  // The machine becomes slow; in the third round only the peer is affected.
  const std::vector<double> ours = {10, 10, 10, 30, 30};
  const std::vector<double> theirs = {20, 20, 60, 60, 60};
  EXPECT_DOUBLE_EQ(paired_ratio(theirs, ours).value(), 2);
  EXPECT_DOUBLE_EQ(median(theirs) / median(ours), 6);
  EXPECT_DOUBLE_EQ(paired_ratio(std::vector<double>{12, 40, 90}, std::vector<double>{10, 10, 30}).value(), 3);
  EXPECT_FALSE(paired_ratio(theirs, std::vector<double>{1, 2}).has_value());
  EXPECT_FALSE(paired_ratio({}, {}).has_value());
  EXPECT_FALSE(paired_ratio(std::vector<double>{1}, std::vector<double>{0}).has_value());
}

TEST(Ratios, ComparePeersWithShoalAtTheSameSize) {
  const std::vector<Row> rows = {row_of(sample("shoal", 4, {2})), row_of(peer_sample(4, 1, 0.5)),
                                 row_of(sample("shoal", 1 << 20, {100})), row_of(peer_sample(1 << 20, 800, 8))};
  const auto ratios = ratios_to_shoal(rows, "gloo", &Row::in_place);
  ASSERT_EQ(ratios.size(), 2U);
  EXPECT_DOUBLE_EQ(ratios[0].value, 0.5);
  EXPECT_DOUBLE_EQ(ratios[1].value, 8);
  EXPECT_DOUBLE_EQ(mean_ratio(ratios, 0), 2);
  EXPECT_DOUBLE_EQ(mean_ratio(ratios, 64 << 10), 8);
  EXPECT_EQ(ratio_lines(rows, "gloo"),
            "# gloo time / shoal time, out-of-place : 2.000 over all sizes, 8.000 from 64 KiB (geometric means)\n"
            "# gloo time / shoal time, in-place     : 2.000 over all sizes, 8.000 from 64 KiB (geometric means)\n");
  EXPECT_EQ(ratio_lines(rows, "openmpi"), "");
  EXPECT_TRUE(ratios_to_shoal(rows, "openmpi", &Row::in_place).empty());
}

TEST(Json, HasTheAgreedKeysInOrder) {
  const auto json = to_json(sample("shoal", 1 << 20, {100}));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("library", "collective", "type", "op", "ranks", "nodes", "transport", "algorithm", "bytes",
                                "latency_us", "latency_us_p10", "latency_us_p90", "algbw_gbs", "busbw_gbs", "limit_gbs",
                                "limit_fraction", "cpu_s_per_gb", "wrong", "time_over_shoal"));
  EXPECT_EQ(json["collective"], "all_reduce");
  EXPECT_EQ(json["type"], "float32");
  EXPECT_TRUE(to_json(sample("shoal", 4, {1}, 1))["limit_fraction"].is_null());
}

TEST(Json, HoldsOneResultForEachRow) {
  Row refused;
  refused.library = "openmpi";
  refused.unsupported = "no such type";
  const std::vector<Row> rows = {row_of(sample("shoal", 4, {2})), refused};
  const auto json = document({{"cpu", "abacus"}}, "shoal_perf -b 4", rows);
  EXPECT_EQ(json["machine"]["cpu"], "abacus");
  EXPECT_EQ(json["command"], "shoal_perf -b 4");
  ASSERT_EQ(json["results"].size(), 1U);
  EXPECT_DOUBLE_EQ(json["results"][0]["latency_us"].get<double>(), 2);
  ASSERT_EQ(json["results_in_place"].size(), 1U);
  EXPECT_DOUBLE_EQ(json["results_in_place"][0]["latency_us"].get<double>(), 4);
}

std::vector<std::string> words(const std::string& line) {
  std::vector<std::string> result;
  std::string word;
  for (const char letter : line + " ") {
    if (letter != ' ' && letter != '\n') {
      word += letter;
    } else if (!word.empty()) {
      result.push_back(std::exchange(word, ""));
    }
  }
  return result;
}

TEST(Table, HasTheColumnsOfNcclTestsThenItsOwn) {
  const std::vector<std::string> titles = words(table_header().substr(table_header().find('\n')));
  EXPECT_EQ(titles[0], "#");
  EXPECT_THAT(std::vector<std::string>(titles.begin() + 1, titles.begin() + 14),
              ElementsAre("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw",
                          "busbw", "#wrong"));
  const std::string line = table_row(row_of(peer_sample(1000000, 20000, 2)), DataType::float32, ReduceOp::sum);
  EXPECT_THAT(words(line), ElementsAre("1000000", "250000", "float32", "sum", "-1", "20000", "0.050", "0.075", "0", "40000",
                                       "0.050", "0.075", "0", "20000", "20000", "40.0", "2.00", "2.00", "gloo", "ring", "tcp"));
}

TEST(Table, GivesReasonForEmptyRow) {
  Row row;
  row.library = "openmpi";
  row.unsupported = "MPI has no such type";
  EXPECT_THAT(table_row(row, DataType::float16, ReduceOp::sum), HasSubstr("openmpi: MPI has no such type"));
}

TEST(Table, EndsAsNcclTestsDoes) {
  EXPECT_EQ(table_tail(0, 3.2), "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.2\n");
  EXPECT_THAT(table_tail(3, 0), HasSubstr("# Out of bounds values : 3 FAILED"));
}

TEST(Table, CountsAllWrongElementsAveragesShoalOnly) {
  std::vector<Row> rows = {row_of(sample("shoal", 1000000, {20000})), row_of(sample("gloo", 1000000, {10}))};
  EXPECT_EQ(total_wrong(rows), 0U);
  rows[1].in_place->wrong = 3;
  rows[0].out_of_place->wrong = 4;
  EXPECT_EQ(total_wrong(rows), 7U);
  EXPECT_DOUBLE_EQ(average_busbw_gbs(rows), 0.075);
}

}  // namespace
}  // namespace shoal::perf
