#include "bench/perf/options.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

namespace shoal::perf {
namespace {

/// The arguments that CLI11 cannot interpret.
struct RawOptions {
  std::string collective = "all_reduce";
  std::string begin = "4";
  std::string end = "64M";
  std::string step;
  std::string type = "float";
  std::string op = "sum";
  std::string peers;
  std::string openmpi_algorithms = "default";
  std::string memory = "ordinary";
  std::string data = "integers";
  int factor = 4;
  int rank_time = static_cast<int>(RankTime::maximum);
  int blocking = 1;
  bool no_limit = false;
};

Status invalid(std::string message) { return Status(StatusCode::invalid_argument, std::move(message)); }

void declare(CLI::App& app, RawOptions& raw, Options& options) {
  app.option_defaults()->multi_option_policy(
      CLI::MultiOptionPolicy::TakeLast);  // as in nccl-tests, so that scripts can override options
  app.add_option("--collective", raw.collective,
                 "all_reduce, broadcast, all_gather, reduce_scatter, reduce, gather, scatter, all_to_all or barrier")
      ->capture_default_str();
  app.add_option("-b,--minbytes", raw.begin, "smallest size; K, M and G (KiB, MiB, GiB) are powers of 1024")
      ->capture_default_str();
  app.add_option("-e,--maxbytes", raw.end, "largest size")->capture_default_str();
  app.add_option("-i,--stepbytes", raw.step, "add this to get the next size, instead of -f");
  app.add_option("-f,--stepfactor", raw.factor, "multiply by this to get the next size")->capture_default_str();
  app.add_option("-d,--datatype", raw.type, "data type, a comma list, or all")->capture_default_str();
  app.add_option("-o,--op", raw.op, "sum, prod, min, max, avg, band, bor, bxor, a comma list, or all")->capture_default_str();
  app.add_option("-r,--root", options.root, "root of a broadcast, reduce, gather or scatter")->capture_default_str();
  app.add_option("-n,--iters", options.iterations, "calls in one timed block; 0 = enough to fill --block-ms")
      ->capture_default_str();
  app.add_option("-w,--warmup_iters", options.warmup_iterations, "untimed calls at the start")->capture_default_str();
  app.add_option("-c,--check", options.check_iterations, "calls whose results are checked, 0 = none")->capture_default_str();
  app.add_option("--rounds", options.rounds, "timed blocks of every library; 0 = as many as fit into --size-seconds, 5 to 31")
      ->capture_default_str();
  app.add_option("--block-ms", options.block_ms, "target length of a block")->capture_default_str();
  app.add_option("--settle-ms", options.settle_ms,
                 "untimed calls at the start of each turn, for ranks that outnumber cores: the previous library disturbs")
      ->capture_default_str();
  app.add_option("--size-seconds", options.seconds_per_size, "time to spend on one size")->capture_default_str();
  app.add_option("-N,--run_cycles", options.cycles, "repeat everything this often, 0 = forever")->capture_default_str();
  app.add_option("-T,--timeout", options.timeout_s, "seconds until a call fails with a timeout")->capture_default_str();
  app.add_option("-a,--average", raw.rank_time,
                 "time of a block: 0 = rank 0, 1 = average, 2 = minimum, 3 = maximum of the ranks")
      ->capture_default_str();
  app.add_option("-z,--blocking", raw.blocking, "1 = blocking calls; 0 = asynchronous calls, each waited for")
      ->capture_default_str();
  app.add_option("--peer", raw.peers, "run these libraries too, interleaved: openmpi,gloo");
  app.add_option("--openmpi-algorithms", raw.openmpi_algorithms,
                 "default = its own choice; all = try all at each size, measure the best")
      ->capture_default_str();
  app.add_option("--transport", options.transports, "force shoal's transports: tcp, ofi, ucx, or shm,tcp");
  app.add_option("--algorithm", options.algorithm, "force shoal's algorithm");
  app.add_option("--memory", raw.memory, "allocator of shoal's buffers: ordinary, or shoal")->capture_default_str();
  app.add_option("--data", raw.data,
                 "timed data: integers (small), or normal (normally distributed floats like gradients, out of place)")
      ->capture_default_str();
  app.add_flag("--out-of-place", options.out_of_place_only, "only the out-of-place form, if there is one: half the time");
  app.add_flag("--no-limit", raw.no_limit, "do not measure the throughput limit of the network between the nodes");
  app.add_option("--min-bw", options.min_bandwidth_gbs, "exit with 1 if the average bus bandwidth (GB/s) is below this");
  app.add_option("-J,--json", options.json_path, "write the results to this file");
  app.add_option("--plot", options.plot_path, "draw the results into this SVG file");
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::size_t start = 0;
  while (start <= list.size() && !list.empty()) {
    const std::size_t comma = std::min(list.find(',', start), list.size());
    parts.push_back(list.substr(start, comma - start));
    start = comma + 1;
  }
  return parts;
}

template <typename Value, typename Parse>
Result<std::vector<Value>> parse_list(const std::string& text, int known, Parse parse) {
  std::vector<Value> values;
  if (text == "all") {
    for (int i = 0; i < known; ++i) values.push_back(static_cast<Value>(i));
    return values;
  }
  for (const std::string& name : split(text)) {
    Result<Value> value = parse(name);
    if (!value.ok()) return value.status();
    values.push_back(*value);
  }
  if (values.empty()) return parse("").status();
  return values;
}

Status interpret_sizes(const RawOptions& raw, Options& options) {
  SizeRange range;
  range.factor = raw.factor;
  const std::pair<const std::string*, std::size_t*> sizes[] = {
      {&raw.begin, &range.begin_bytes}, {&raw.end, &range.end_bytes}, {&raw.step, &range.step_bytes}};
  for (const auto& [text, value] : sizes) {
    if (text == &raw.step && text->empty()) continue;
    Result<std::size_t> size = parse_size(*text);
    if (!size.ok()) return size.status();
    *value = *size;
  }
  if (!raw.step.empty() && range.step_bytes == 0) return invalid("-i 0 does not change the size; use a step in bytes");
  Result<std::vector<std::size_t>> list = list_sizes(range);
  if (!list.ok()) return list.status();
  options.sizes_bytes = *std::move(list);
  return {};
}

Status interpret_calls(const RawOptions& raw, Options& options) {
  Result<CollectiveKind> collective = parse_collective(raw.collective);
  if (!collective.ok()) return collective.status();
  options.collective = *collective;
  if (options.collective == CollectiveKind::barrier) options.sizes_bytes = {0};

  auto types = parse_list<DataType>(raw.type, kDataTypeCount, parse_data_type);
  if (!types.ok()) return types.status();
  options.types = *std::move(types);
  auto ops = parse_list<ReduceOp>(raw.op, kReduceOpCount, parse_reduce_op);
  if (!ops.ok()) return ops.status();
  options.ops = *std::move(ops);
  if (!reduces(options.collective)) options.ops = {ReduceOp::sum};

  // With "all", impossible pairs are left out of the table; pairs requested by name must exist.
  for (const DataType type : options.types) {
    for (const ReduceOp op : options.ops) {
      if (!supports(type, op) && raw.type != "all" && raw.op != "all") {
        return invalid(fmt::format("operation {} is not defined on {}; use an integer type", to_string(op), to_string(type)));
      }
    }
  }
  return {};
}

Status interpret_counts(const RawOptions& raw, Options& options) {
  struct Least {
    const char* flag;
    double value;
    double least;
  };
  const Least limits[] = {
      {"-r", static_cast<double>(options.root), 0},
      {"-n", static_cast<double>(options.iterations), 0},
      {"-w", static_cast<double>(options.warmup_iterations), 0},
      {"-c", static_cast<double>(options.check_iterations), 0},
      {"-N", static_cast<double>(options.cycles), 0},
      {"-T", static_cast<double>(options.timeout_s), 1},
      {"--rounds", static_cast<double>(options.rounds), 0},
      {"--block-ms", options.block_ms, 0.01},
      {"--settle-ms", options.settle_ms, 0},
      {"--size-seconds", options.seconds_per_size, 0},
      {"--min-bw", options.min_bandwidth_gbs, 0},
  };
  for (const Least& limit : limits) {
    if (!(limit.value >= limit.least))
      return invalid(fmt::format("{} {} is too small; use {} or more", limit.flag, limit.value, limit.least));
  }
  if (raw.rank_time < 0 || raw.rank_time > 3) return invalid(fmt::format("-a {} is unknown; use 0, 1, 2 or 3", raw.rank_time));
  if (raw.blocking < 0 || raw.blocking > 1) return invalid(fmt::format("-z {} is unknown; use 0 or 1", raw.blocking));
  options.rank_time = static_cast<RankTime>(raw.rank_time);
  options.blocking = raw.blocking == 1;
  options.measure_limit = !raw.no_limit;
  return {};
}

Status interpret_libraries(const RawOptions& raw, Options& options) {
  options.peers = split(raw.peers);
  for (std::size_t i = 0; i < options.peers.size(); ++i) {
    const std::string& peer = options.peers[i];
    if (peer.empty()) return invalid(fmt::format("--peer '{}' has an empty name", raw.peers));
    if (peer == "shoal") return invalid("--peer shoal: shoal itself always runs; name other libraries");
    if (std::find(options.peers.begin(), options.peers.begin() + static_cast<std::ptrdiff_t>(i), peer) !=
        options.peers.begin() + static_cast<std::ptrdiff_t>(i)) {
      return invalid(fmt::format("--peer names {} twice", peer));
    }
  }
  if (raw.openmpi_algorithms != "default" && raw.openmpi_algorithms != "all") {
    return invalid(fmt::format("--openmpi-algorithms '{}' is unknown; use default or all", raw.openmpi_algorithms));
  }
  options.all_openmpi_algorithms = raw.openmpi_algorithms == "all";
  if (raw.memory != "ordinary" && raw.memory != "shoal") {
    return invalid(fmt::format("--memory '{}' is unknown; use ordinary or shoal", raw.memory));
  }
  options.shared_memory = raw.memory == "shoal";
  if (raw.data != "integers" && raw.data != "normal")
    return invalid(fmt::format("--data '{}' is unknown; use integers or normal", raw.data));
  options.normal_data = raw.data == "normal";
  if (options.normal_data && options.types != std::vector{DataType::float32})
    return invalid("--data normal works only with -d float");
  options.out_of_place_only |= options.normal_data;  // repeated sums in place overflow
  return {};
}

}  // namespace

Result<ParsedOptions> parse_options(const std::vector<std::string>& arguments, const std::string& min_bandwidth) {
  CLI::App app("shoal_perf: times shoal's collectives and, on request, other libraries", "shoal_perf");
  RawOptions raw;
  ParsedOptions parsed;
  Options& options = parsed.options;
  declare(app, raw, options);
  if (!min_bandwidth.empty()) {
    try {
      options.min_bandwidth_gbs = std::stod(min_bandwidth);
    } catch (const std::exception&) {
      return invalid(fmt::format("NCCL_TESTS_MIN_BW '{}' is not a number", min_bandwidth));
    }
  }
  try {
    // CLI11 expects the arguments in reverse order.
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    parsed.show_help = true;
    parsed.help = app.help();
    return parsed;
  } catch (const CLI::ParseError& error) {
    return invalid(fmt::format("{} (--help lists the options)", error.what()));
  }
  for (const auto interpret : {interpret_sizes, interpret_calls, interpret_counts, interpret_libraries}) {
    if (Status status = interpret(raw, options); !status.ok()) return status;
  }
  return parsed;
}

}  // namespace shoal::perf
