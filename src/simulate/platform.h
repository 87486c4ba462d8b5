// Platform: the nodes and the network of a cluster, as the SimGrid engine needs them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <shoal/status.h>

#include "src/topology/topology.h"

namespace shoal {

/// One kind of node and the network between such nodes. GB = 1e9 bytes; every rate is of payload, in one direction.
///
/// A rank is a worker (`cores` of a node, one at a time) with a port to the other ranks of its node and one to the network.
/// The node's NICs are dealt to its ranks in blocks: ranks share a NIC if there are fewer NICs, and a rank uses several as
/// one if there are more. Between the NICs the network is assumed to have full bisection bandwidth.
struct Platform {
  std::string name;
  std::string hardware;             ///< GPUs and rails, as text; may be empty
  std::string source;               ///< where the numbers come from, and which of them are assumed
  int ranks_per_node = 1;           ///< default of `shoal simulate`
  int nics = 1;                     ///< of a node
  double nic_gbit_s = 1;            ///< of each
  double network_latency_us = 25;   ///< one way, memory to memory
  double message_us = 0;            ///< of the worker at each end, for each message over the network
  double network_core_gbyte_s = 0;  ///< rate of a worker through the network stack; 0 = the NIC moves the data by itself
  int network_window = 64;          ///< tiles that a rank has on the network at once
  double flow_share = 0;            ///< of a NIC, lost by the receiver for each further flow that arrives at it
  double memory_gbyte_s = 5;        ///< between a rank and the other ranks of its node
  double node_memory_gbyte_s = 0;   ///< of all ranks of a node together; 0 = no limit
  double memory_latency_us = 0.5;   ///< inside the node
  double copy_gbyte_s = 0;          ///< rate of a worker to or from another rank of its node; 0 = the hardware copies
  double fold_gbyte_s = 8;          ///< bytes of one operand that a worker folds
  int cores = 0;                    ///< shared by the workers of a node; 0 = one each
  bool one_machine = false;         ///< the cores are those of all nodes together: an emulated cluster
};

/// The built-in platforms, in a fixed order: those of EC2 (one row of src/machine/instances each), plain Ethernet, and
/// bench/cluster.
std::span<const Platform> platforms();

/// A built-in platform by its name (for EC2 also the short one, "p5") or, if `name` ends in ".json", one from a JSON file: an
/// object whose keys are the members of Platform. Missing keys have the values above; `name` defaults to the file's. Errors:
/// not_found for an unknown name (lists the known ones), system_error for an unreadable file, invalid_argument naming the
/// offending key.
Result<Platform> find_platform(std::string_view name);

/// As find_platform() does with the text of a file; messages name `origin`.
Result<Platform> parse_platform(std::string_view json, std::string_view origin);

/// `nodes` x `ranks_per_node` ranks with the costs of `platform`, for the closed model (simulator.h), in which a node has one
/// port: all its NICs together. So in that model a rank that sends alone is as fast as the node; SimGrid is more precise.
Topology topology_of(const Platform& platform, int nodes, int ranks_per_node);

/// GB/s of bus bandwidth (nccl-tests) at which a hierarchical all_reduce would saturate the wires of the nodes: each node
/// moves 2 (N - 1) / N of the message. 0 for one node.
double wire_limit_gbyte_s(const Platform& platform, int nodes, int ranks);

/// ok if every number is valid; else invalid_argument naming it.
Status check(const Platform& platform);

}  // namespace shoal
