// The EC2 instance types with GPUs that shoal knows: counts and speeds, each row with its source. A plain value.
#pragma once

#include <span>
#include <string_view>

namespace shoal {

/// One instance type. Counts and rates are those of the documentation; detect_machine() finds what a machine really has.
struct Instance {
  std::string_view name;    ///< "p5.48xlarge"
  std::string_view alias;   ///< short name of the family's largest, "p5"; empty if there is none
  std::string_view gpu;     ///< "H100"
  int gpus;                 ///< of an instance
  int nvlink_gbyte_s;       ///< of a GPU, both directions together; 0: peers are reached over PCIe
  int gpu_memory_gbyte_s;   ///< of a GPU
  int pcie_generation;      ///< of a GPU's 16 lanes
  int efa_cards;            ///< network cards that carry an EFA device; 0: no EFA
  int card_gbit_s;          ///< of each of them
  int efa_generation;       ///< 1 .. 4 (Nitro v3 .. v6); 0: no EFA
  bool rdma_read;           ///< the EFA device reads a peer's memory
  bool rdma_write;          ///< the EFA device writes a peer's memory
  int latency_us;           ///< as aws-ofi-nccl reports it to NCCL; 0: aws-ofi-nccl has no entry
  int numa_nodes;           ///< 0: no source found
  int gpus_of_switch;       ///< GPUs behind one PCIe switch; 0: no source found
  int cards_of_switch;      ///< EFA cards behind the same switch
  int network_layers;       ///< in the output of DescribeInstanceTopology; 0: it does not know the type
  std::string_view source;  ///< the sources of the row, and which of its numbers have another source

  /// EFA cards for each GPU: 0.5 on p4d, 4 on p5.
  [[nodiscard]] constexpr double rails_of_gpu() const noexcept { return static_cast<double>(efa_cards) / gpus; }
};

/// All of them, oldest family first.
std::span<const Instance> instances();

/// By full name or alias; null if the table has no such type.
const Instance* find_instance(std::string_view name);

}  // namespace shoal
