// Machines with random costs, for tests of predictions and choices.
#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "src/topology/topology.h"

namespace shoal::testing {

/// A machine with random costs, as start-up may measure them on a network of this rate.
inline Topology measured(const std::vector<int>& shape, double gbit_s, std::mt19937& random) {
  const auto between = [&](double low, double high) {
    return std::exp(std::uniform_real_distribution(std::log(low), std::log(high))(random));
  };
  Topology topology = Topology::ragged(shape);
  const double latency_us = between(8, 80);
  topology.cost[static_cast<std::size_t>(LinkClass::network)] = {latency_us, 1 / (118 * gbit_s),
                                                                 latency_us * between(0.1, 0.5)};
  topology.cost[static_cast<std::size_t>(LinkClass::shared_memory)] = {between(0.2, 4), 1 / between(2'000, 12'000)};
  topology.reduce_us_per_byte = 1 / between(4'000, 30'000);
  topology.one_copy_gain = between(0.5, 2);
  return topology;
}

/// Ranks of each node.
inline const std::vector<std::vector<int>> kShapes{{4},    {8},          {1, 1},   {1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1},
                                                   {2, 2}, {4, 4, 4, 4}, {3, 1, 2}};

}  // namespace shoal::testing
