#include "src/machine/instances.h"

#include <array>

namespace shoal {
namespace {

// Abbreviations of the sources:
// ac: EC2 guide, "Accelerated computing" and "EFA on accelerated instance types" (ac, efa-acc-inst-types).
// efa: EC2 guide, "Elastic Fabric Adapter", the table of generations and RDMA (efa).
// topology: EC2 guide, "Instance topology", prerequisites.
// ofi: aws-ofi-nccl at 2daf7d30, src/platform-aws.cpp (latency) and topology/*.xml (switches, NUMA).
// NVLink, memory: NVIDIA's figures for each generation; no page of AWS has them.
constexpr std::array kInstances{
    Instance{"g4dn.12xlarge", "", "T4", 4, 0, 320, 3, 1, 50, 1, false, false, 0, 0, 0, 0, 0,
             "ac, efa; memory: NVIDIA T4 data sheet"},
    Instance{"g4dn.metal", "g4dn", "T4", 8, 0, 320, 3, 1, 100, 1, false, false, 0, 0, 0, 0, 0,
             "ac, efa; memory: NVIDIA T4 data sheet"},
    Instance{"p3dn.24xlarge", "p3dn", "V100", 8, 300, 900, 3, 1, 100, 1, false, false, 150, 2, 0, 0, 3,
             "ac, efa, topology, ofi; NVLink, memory: NVIDIA V100 data sheet; two NUMA nodes unverified"},
    Instance{"p4d.24xlarge", "p4d", "A100 40GB", 8, 600, 1555, 4, 4, 100, 1, true, false, 75, 2, 2, 1, 3,
             "ac, efa, topology, ofi (p4d-24xl-topo.xml); NVLink, memory: NVIDIA A100 data sheet"},
    Instance{"p4de.24xlarge", "p4de", "A100 80GB", 8, 600, 2039, 4, 4, 100, 1, true, false, 75, 2, 2, 1, 3,
             "ac, efa, topology, ofi (p4de-24xl-topo.xml); NVLink, memory: NVIDIA A100 data sheet"},
    Instance{"g5.48xlarge", "g5", "A10G", 8, 0, 600, 4, 1, 100, 1, false, false, 75, 2, 0, 0, 0,
             "ac, efa, ofi (g5.48xl-topo.xml: four GPUs a NUMA node, the card on the second); memory: NVIDIA A10G data sheet"},
    Instance{"p5.4xlarge", "", "H100", 1, 0, 3350, 5, 1, 100, 2, true, true, 75, 0, 1, 1, 3,
             "ac, efa, topology, ofi; memory: NVIDIA H100 data sheet"},
    Instance{
        "p5.48xlarge", "p5", "H100", 8, 900, 3350, 5, 32, 100, 2, true, true, 75, 2, 1, 4, 3,
        "ac, efa, topology, ofi; switches: PCI tree of a machine (libfabric-efa-demo); NVLink, memory: NVIDIA H100 data sheet"},
    Instance{"p5e.48xlarge", "p5e", "H200", 8, 900, 4800, 5, 32, 100, 2, true, true, 75, 2, 1, 4, 3,
             "ac, efa, topology, ofi; switches as p5, which aws-ofi-nccl treats alike; NVLink, memory: NVIDIA H200 data sheet"},
    Instance{"p5en.48xlarge", "p5en", "H200", 8, 900, 4800, 5, 16, 200, 3, true, true, 35, 2, 2, 4, 3,
             "ac, efa, topology, ofi; two GPUs a switch: a comment in ofi, unverified; two NUMA nodes unverified; NVLink, "
             "memory: NVIDIA H200 data sheet"},
    Instance{"g6.48xlarge", "g6", "L4", 8, 0, 300, 4, 1, 100, 2, true, true, 0, 0, 0, 0, 0,
             "ac, efa, AWS Batch guide (gpu-jobs: 100 Gbit/s); one card assumed from that; memory: NVIDIA L4 data sheet"},
    Instance{"g6e.48xlarge", "g6e", "L40S", 8, 0, 864, 4, 4, 100, 2, true, true, 0, 0, 0, 0, 3,
             "ac, efa, topology; memory: NVIDIA L40S data sheet"},
    Instance{"g7e.48xlarge", "g7e", "RTX PRO 6000", 8, 0, 1597, 5, 4, 400, 4, true, true, 35, 0, 0, 0, 3,
             "ac, efa, topology, ofi; memory: NVIDIA RTX PRO 6000 data sheet"},
    Instance{"p6-b200.48xlarge", "p6-b200", "B200", 8, 1800, 8000, 5, 8, 400, 4, true, true, 35, 2, 2, 2, 4,
             "ac, efa, topology, ofi; two GPUs a switch: a comment in ofi, unverified; two NUMA nodes unverified; NVLink, "
             "memory: NVIDIA B200 data sheet"},
    Instance{"p6-b300.48xlarge", "p6-b300", "B300", 8, 1800, 8000, 6, 16, 400, 4, true, true, 35, 2, 0, 0, 4,
             "ac (17 cards, the first without EFA), efa, topology, ofi; two NUMA nodes unverified; NVLink, memory: NVIDIA B300 "
             "data sheet"},
    Instance{"p6e-gb200.36xlarge", "p6e-gb200", "GB200", 4, 1800, 8000, 6, 8, 200, 3, true, true, 35, 2, 0, 0, 3,
             "ac (pairs of cards share 400 Gbit/s for each GPU; elsewhere it says 3,200 in all), efa, topology, ofi; NVLink, "
             "memory: NVIDIA GB200 data sheet; its NVLink joins up to 72 GPUs of several instances, which no model here has"},
};

}  // namespace

std::span<const Instance> instances() { return kInstances; }

const Instance* find_instance(std::string_view name) {
  if (name.empty()) return nullptr;
  for (const Instance& instance : kInstances) {
    if (name == instance.name || name == instance.alias) return &instance;
  }
  return nullptr;
}

}  // namespace shoal
