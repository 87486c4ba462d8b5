// Measured times of algorithms, which the Selector prefers to its model: written by `shoal tune`, read from the file in
// SHOAL_TUNING.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <shoal/status.h>
#include <nlohmann/json_fwd.hpp>

#include "src/algorithms/algorithm.h"

namespace shoal {

/// How long `algorithm` took for one size. The element type does not matter: times depend on bytes.
struct Measurement {
  CollectiveKind kind = CollectiveKind::all_reduce;
  const Algorithm* algorithm = nullptr;
  std::size_t bytes = 0;  ///< of each rank's input
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
  int samples = 0;
};

/// The measurements among one set of ranks.
struct TunedShape {
  std::vector<int> node_of_rank;  ///< as in Topology
  std::string transports;         ///< as transports_between() writes them
  std::vector<Measurement> measurements;

  /// "2x4 over shm+tcp", for messages.
  [[nodiscard]] std::string name() const;
  /// True if the measurements hold for these ranks: every rank is on the same node as then, and the transports are the same.
  /// The table does not check the speed of links and cores; its author must ensure that, and the file says where it was
  /// measured.
  [[nodiscard]] bool matches(const Topology& topology, std::string_view transports_in_use) const;
};

/// A file of measurements.
struct TuningTable {
  std::vector<TunedShape> shapes;

  /// Null if no shape matches.
  [[nodiscard]] const TunedShape* find(const Topology& topology, std::string_view transports) const;
  /// "2x4 over shm+tcp, 1x4 over shm".
  [[nodiscard]] std::string names() const;
};

/// The transports that the ranks of `topology` use together: "shm", "tcp", "shm+tcp", or "local" for one rank; another
/// `network` replaces "tcp".
std::string transports_between(const Topology& topology, bool shared_memory_allowed = true, std::string_view network = "tcp");

/// Time of `algorithm` for `collective`, interpolated between the measurements next to its size: the logarithm of the time is
/// linear in the logarithm of the size. Nothing outside the sizes at which this algorithm was measured.
std::optional<double> measured_us(const TunedShape& tuned, const Algorithm& algorithm, const Collective& collective);

/// The smallest and the largest measured size of `kind`; nothing if none was measured.
std::optional<std::pair<std::size_t, std::size_t>> measured_range(const TunedShape& tuned, CollectiveKind kind);

/// The version that tables must have, "0.1.0": the speed of algorithms changes between versions.
std::string_view tuning_version();

/// A whole file that holds `shapes`, each as to_json(TunedShape) plus any fields that its writer added.
nlohmann::ordered_json tuning_file(nlohmann::ordered_json shapes);
nlohmann::ordered_json to_json(const TunedShape& tuned);

/// Reads the text of a file. Errors, all naming the entry: invalid_argument for malformed text, not_found for an algorithm
/// that this library lacks, unsupported for a file of another version.
Result<TuningTable> parse_tuning(std::string_view text);
/// Reads the output of to_json(). Errors as above.
Result<TunedShape> parse_tuned_shape(std::string_view text);

}  // namespace shoal
