// Which links create() makes: the same choice at both ends of each, few where there are many ranks.
#include "src/communicator/usual_links.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "src/join/text_list.h"

namespace shoal {
namespace {

Topology hosts_of(const std::vector<int>& ranks_by_host) {
  Topology topology;
  for (std::size_t host = 0; host < ranks_by_host.size(); ++host)
    topology.node_of_rank.insert(topology.node_of_rank.end(), static_cast<std::size_t>(ranks_by_host[host]),
                                 static_cast<int>(host));
  return topology;
}

std::vector<std::vector<int>> peers_of_all(const Topology& topology, const std::string& algorithms) {
  std::vector<std::vector<int>> all;
  for (int rank = 0; rank < topology.ranks(); ++rank) {
    auto peers = usual_peers(topology, rank, algorithms);
    EXPECT_TRUE(peers.ok()) << peers.status().to_string();
    all.push_back(peers.ok() ? *peers : std::vector<int>());
  }
  return all;
}

TEST(UsualLinks, BothEndsDecideAlike) {
  for (const auto& shape : {std::vector<int>{1, 1}, {2, 2, 2}, {4, 1}, std::vector<int>(16, 2), std::vector<int>(5, 3)}) {
    for (const char* forced : {"", "ring", "hierarchical"}) {
      const Topology topology = hosts_of(shape);
      const auto all = peers_of_all(topology, usual_algorithms(topology, forced, 0));
      for (int rank = 0; rank < topology.ranks(); ++rank) {
        const std::vector<int>& peers = all[static_cast<std::size_t>(rank)];
        EXPECT_FALSE(peers.empty()) << "rank " << rank << " of " << topology.ranks();
        for (const int peer : peers)
          EXPECT_TRUE(std::ranges::binary_search(all[static_cast<std::size_t>(peer)], rank)) << rank << " and " << peer;
      }
    }
  }
}

TEST(UsualLinks, ManyRanksHaveFew) {
  const Topology topology = hosts_of(std::vector<int>(64, 2));
  for (const auto& peers : peers_of_all(topology, usual_algorithms(topology, "", 0))) EXPECT_LE(peers.size(), 32U);
}

TEST(UsualLinks, MalformedNamesAreRefused) {
  const Topology topology = hosts_of({1, 1});
  for (const std::string& text : {std::string(), std::string("4:ring"), join_texts(std::vector<std::string>{"ring", "ring"})})
    EXPECT_EQ(usual_peers(topology, 0, text).status().code(), StatusCode::internal) << text;
  const auto unknown = usual_peers(topology, 0, join_texts(std::vector<std::string>{"no", "such", "algorithm", ""}));
  ASSERT_TRUE(unknown.ok());
  EXPECT_TRUE(unknown->empty()) << "its calls connect their links themselves";
}

}  // namespace
}  // namespace shoal
