// Orders hosts by their place in the network, so that neighbours in rank order are close to each other.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

namespace shoal {

/// The places of instances in the network, from EC2's DescribeInstanceTopology.
struct NetworkTree {
  /// instance id -> zone, then network nodes from the top to the bottom (three or four), then the capacity block, which
  /// distinguishes the UltraServers under one node. Instances whose last entries are equal are nearest.
  std::map<std::string, std::vector<std::string>> paths;
  std::map<std::string, std::string> ids;  ///< DNS name, its first label or private address -> instance id
};

/// Adds the output of `aws ec2 describe-instance-topology` (member "Instances") or of `aws ec2 describe-instances`
/// ("Reservations", for the names of hosts). At most 100,000 instances.
/// Error: invalid_argument for other text.
Status add_answer(std::string_view json, NetworkTree& tree);

/// From files separated by commas, or from the output of a shell command: "topology.json,instances.json", "|aws ec2 ...".
/// Errors: system_error, timeout after a minute, invalid_argument naming the file.
Result<NetworkTree> read_network_tree(const std::string& source);

struct HostOrder {
  std::vector<std::size_t> order;    ///< positions in the given list
  std::vector<std::string> unknown;  ///< hosts that `tree` does not contain; they are placed last
};

/// Groups hosts (names, addresses or instance ids; "user@" is ignored) that share a network node, then within the groups those
/// that share a lower node, and so on. Groups and hosts otherwise keep the order of the list, so the first host stays first.
HostOrder order_hosts(const NetworkTree& tree, std::span<const std::string> hosts);

}  // namespace shoal
