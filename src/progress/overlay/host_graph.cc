#include "src/progress/overlay/host_graph.h"

#include <algorithm>
#include <bit>

namespace shoal {
namespace {

int distance(int a, int b, int hosts) {
  const int up = b >= a ? b - a : b - a + hosts;
  return std::min(up, hosts - up);
}

/// The first live host after `host` on the ring, in steps of `step` (1 or -1); `host` itself where there is no other.
int next_live(int host, int step, const EndedHosts& ended) {
  const int hosts = ended.hosts();
  int next = host;
  do next = (next + step + hosts) % hosts;
  while (next != host && ended.contains(next));
  return next;
}

}  // namespace

std::vector<int> neighbours(int host, const EndedHosts& ended) {
  const int hosts = ended.hosts();
  std::vector<int> all{next_live(host, 1, ended), next_live(host, -1, ended)};
  for (int jump = 2; jump <= hosts / 2; jump *= 2) {
    all.push_back((host + jump) % hosts);
    all.push_back((host - jump + hosts) % hosts);
  }
  std::ranges::sort(all);
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::erase_if(all, [&](int other) { return other == host || ended.contains(other); });
  return all;
}

int next_hop(int from, int to, int hosts, std::span<const int> candidates) {
  int best = -1;
  int best_distance = distance(from, to, hosts);
  for (const int host : candidates) {
    const int left = distance(host, to, hosts);
    if (left >= best_distance) continue;
    best = host;
    best_distance = left;
  }
  return best;
}

}  // namespace shoal
