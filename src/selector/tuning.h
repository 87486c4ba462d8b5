// Measured times of algorithms, which the Selector prefers to its model: what `shoal tune` writes and SHOAL_TUNING names.
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

/// What was measured between one set of ranks.
struct TunedShape {
  std::vector<int> node_of_rank;  ///< as in Topology
  std::string transports;         ///< as transports_between() writes them
  std::vector<Measurement> measurements;

  /// "2x4 over shm+tcp", for messages.
  [[nodiscard]] std::string name() const;
  /// True where the measurements hold for these ranks: every rank lives on the same node as it did then, and the wires are the
  /// same. What the wires and cores are like is for whoever ships the table to know; the file says where it was measured.
  [[nodiscard]] bool matches(const Topology& topology, std::string_view transports_in_use) const;
};

/// A file of measurements.
struct TuningTable {
  std::vector<TunedShape> shapes;

  /// Null where nothing matches.
  [[nodiscard]] const TunedShape* find(const Topology& topology, std::string_view transports) const;
  /// "2x4 over shm+tcp, 1x4 over shm".
  [[nodiscard]] std::string names() const;
};

/// The transports that the ranks of `topology` use together: "shm", "tcp", "shm+tcp", or "local" for one rank; with another
/// `network` that in the place of "tcp".
std::string transports_between(const Topology& topology, bool shared_memory_allowed = true, std::string_view network = "tcp");

/// Time of `algorithm` for `collective` by the measurements next to its size, between which the logarithm of the time is linear
/// in the logarithm of the size. Nothing outside the sizes that this algorithm was measured at.
std::optional<double> measured_us(const TunedShape& tuned, const Algorithm& algorithm, const Collective& collective);

/// The smallest and the largest size of `kind` that was measured; nothing where none was.
std::optional<std::pair<std::size_t, std::size_t>> measured_range(const TunedShape& tuned, CollectiveKind kind);

/// The version that tables must come from, "0.1.0": algorithms get faster or slower with it.
std::string_view tuning_version();

/// A whole file that holds `shapes`, each as to_json(TunedShape) with whatever its writer added.
nlohmann::ordered_json tuning_file(nlohmann::ordered_json shapes);
nlohmann::ordered_json to_json(const TunedShape& tuned);

/// Reads the text of a file. Errors, all saying which entry: invalid_argument for malformed text, not_found for an algorithm
/// that this library lacks, unsupported for a file of another version.
Result<TuningTable> parse_tuning(std::string_view text);
/// Reads what to_json() made. Errors as above.
Result<TunedShape> parse_tuned_shape(std::string_view text);

}  // namespace shoal
