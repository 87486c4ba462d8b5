// HostTable: which ranks of a job run on which host.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shoal {

/// The same on all hosts. Hosts have numbers from 0, in the order of their lowest rank. Thread rule: immutable.
class HostTable {
 public:
  /// `host_of_rank`: as Topology::node_of_rank.
  explicit HostTable(std::span<const int> host_of_rank) : host_of_rank_(host_of_rank.begin(), host_of_rank.end()) {
    for (std::size_t rank = 0; rank < host_of_rank_.size(); ++rank) {
      const auto host = static_cast<std::size_t>(host_of_rank_[rank]);
      if (host >= ranks_.size()) ranks_.resize(host + 1);
      ranks_[host].push_back(static_cast<int>(rank));
    }
  }

  [[nodiscard]] int hosts() const noexcept { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int ranks() const noexcept { return static_cast<int>(host_of_rank_.size()); }
  [[nodiscard]] int host_of(int rank) const { return host_of_rank_[static_cast<std::size_t>(rank)]; }
  /// Ascending.
  [[nodiscard]] const std::vector<int>& ranks_of(int host) const { return ranks_[static_cast<std::size_t>(host)]; }

 private:
  std::vector<int> host_of_rank_;
  std::vector<std::vector<int>> ranks_;  // by host
};

}  // namespace shoal
