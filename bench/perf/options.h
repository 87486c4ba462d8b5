// The command line of shoal_perf: the letters of nccl-tests, and shoal's own options.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <shoal/status.h>
#include <shoal/types.h>

#include "bench/perf/sizes.h"
#include "bench/perf/statistics.h"

namespace shoal::perf {

struct Options {
  CollectiveKind collective = CollectiveKind::all_reduce;
  std::vector<std::size_t> sizes_bytes;
  std::vector<DataType> types;
  std::vector<ReduceOp> ops;
  int root = 0;

  int iterations = 0;  ///< in one block; 0 = enough to fill block_ms
  int warmup_iterations = 5;
  int check_iterations = 1;
  int rounds = 0;  ///< blocks of every library; 0 = as many as fit into seconds_per_size
  double block_ms = 4;
  double settle_ms = 0;  ///< at least one untimed call in any case
  double seconds_per_size = 2;
  int cycles = 1;  ///< 0 = forever
  int timeout_s = 300;
  RankTime rank_time = RankTime::maximum;
  bool blocking = true;

  std::vector<std::string> peers;
  bool all_openmpi_algorithms = false;
  bool shared_memory = false;  ///< shoal's buffers come from shoal::mem_alloc
  std::string transports;
  std::string algorithm;
  bool measure_limit = true;
  bool out_of_place_only = false;  ///< if the collective has that form
  bool normal_data = false;        ///< timed calls are on normally distributed floats, out of place
  double min_bandwidth_gbs = 0;    ///< 0 = no gate

  std::string json_path;
  std::string plot_path;
};

/// The parsed command line.
struct ParsedOptions {
  bool show_help = false;
  std::string help;
  Options options;
};

/// Reads the arguments (without the program's name). `min_bandwidth` is the text of NCCL_TESTS_MIN_BW, "" if it is not set.
/// Errors: invalid_argument or unsupported, with one line that names the wrong argument and the known values.
Result<ParsedOptions> parse_options(const std::vector<std::string>& arguments, const std::string& min_bandwidth = "");

}  // namespace shoal::perf
