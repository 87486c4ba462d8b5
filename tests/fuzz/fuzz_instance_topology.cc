// EC2's description of the network location of instances, from a file or a command.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "src/machine/rank_order.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  NetworkTree tree;
  if (!add_answer({reinterpret_cast<const char*>(data), size}, tree).ok()) return 0;
  std::vector<std::string> hosts{"i-1", "me@ip-10-0-0-1", "nobody", ""};
  for (const auto& [id, path] : tree.paths) hosts.push_back(id);
  for (const auto& [name, id] : tree.ids) hosts.push_back("x@" + name);
  const HostOrder order = order_hosts(tree, hosts);
  std::vector<bool> seen(hosts.size(), false);  // each host exactly once for any answer
  for (const std::size_t host : order.order) {
    if (host >= hosts.size() || seen[host]) std::abort();
    seen[host] = true;
  }
  if (order.order.size() != hosts.size()) std::abort();
  return 0;
}
