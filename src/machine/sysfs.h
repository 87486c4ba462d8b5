// Reads the Hardware of a machine from the kernel's files under /sys.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

#include "src/machine/hardware.h"

namespace shoal {

/// Core or node numbers of a text such as "0-3,8,10-11\n", ascending, each once. At most 65,536 of them, all below that.
/// Error: invalid_argument for anything else; an empty text is an empty list.
Result<std::vector<int>> parse_cores(std::string_view text);

/// "0x1d0f\n" or "1d0f" -> 0x1d0f; nothing for any other text, or for more than 32 bits.
std::optional<unsigned> parse_hexadecimal(std::string_view text);

/// The bridges above a device, from its path below /sys/devices: "pci0000:44/0000:44:00.0/0000:4f:00.0" -> the first two.
std::vector<std::string> bridges_of_path(std::string_view path);

/// Gbit/s from "100 Gb/sec (4X EDR)" of an InfiniBand port, or from "25000" (Mbit/s) of an Ethernet interface; 0 for other
/// text.
double parse_infiniband_rate(std::string_view text);
double parse_ethernet_speed(std::string_view text);

/// A file of one short line, without white space at its ends; empty where it cannot be read.
std::string read_line(const std::string& path);

/// Cores, GPUs and NICs below `root` (usually /sys). Entries that cannot be read are left out: a container may see only a part.
Hardware read_hardware(const std::string& root);

/// NUMA nodes and cores only.
Hardware read_cores(const std::string& root);

}  // namespace shoal
