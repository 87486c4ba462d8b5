#include "src/machine/detect.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "src/machine/metadata.h"
#include "src/machine/sysfs.h"
#include "src/settings/settings.h"

namespace shoal {
namespace {

constexpr std::array<std::string_view, 6> kMetadataPaths{
    "instance-type",   "instance-id", "placement/availability-zone-id", "placement/group-name", "placement/partition-number",
    "placement/region"};
constexpr std::size_t kMaxTypeName = 64;

/// "p5.48xlarge", "u-3tb1.56xlarge": letters, digits and dashes with one dot inside.
bool is_instance_type(std::string_view text) {
  const std::size_t dot = text.find('.');
  return dot != std::string_view::npos && dot > 0 && dot + 1 < text.size() &&
         text.find('.', dot + 1) == std::string_view::npos && text.size() <= kMaxTypeName &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.'; });
}

/// The machine according to the firmware.
struct Firmware {
  bool silent = true;  // no information, for example hidden by a container
  bool ec2 = false;
  std::string type;         // empty if the product name is not an instance type, as on machines that run under Xen
  std::string instance_id;  // likewise
};

Firmware read_firmware(const std::string& root) {
  const auto read = [&](const char* name) { return read_line(root + "/devices/virtual/dmi/id/" + name); };
  Firmware found;
  for (const char* name : {"sys_vendor", "board_vendor", "bios_vendor", "bios_version"}) {
    std::string text = read(name);
    found.silent &= text.empty();
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
    found.ec2 |= text.find("amazon") != std::string::npos;
  }
  if (!found.ec2) return found;
  if (std::string product = read("product_name"); is_instance_type(product)) found.type = std::move(product);
  if (std::string tag = read("board_asset_tag"); tag.starts_with("i-")) found.instance_id = std::move(tag);
  return found;
}

/// For a silent firmware: whether the hypervisor identifies itself as EC2, or there is a device of Amazon's.
bool hints_at_ec2(const std::string& root) {
  const std::string uuid = read_line(root + "/hypervisor/uuid");
  if (uuid.starts_with("ec2") || uuid.starts_with("EC2")) return true;
  std::error_code none;
  for (const auto& device : std::filesystem::directory_iterator(root + "/bus/pci/devices", none)) {
    if (read_line((device.path() / "vendor").string()) == "0x1d0f") return true;
  }
  return false;
}

void ask_metadata(const DetectOptions& options, FoundMachine& machine) {
  const auto endpoint = parse_endpoint(options.metadata_url);
  if (!endpoint.ok()) {
    machine.notes.push_back(endpoint.status().message());
    return;
  }
  auto texts = read_metadata(*endpoint, kMetadataPaths, options.metadata_budget);
  if (!texts.ok()) {
    machine.notes.push_back(texts.status().message() +
                            "; zone and placement group are unknown (in a container, the hop limit of the instance's metadata "
                            "options must be 2 or more)");
    return;
  }
  machine.metadata = std::move(texts).value();
}

/// Uses the service's type if no better source has one; adds a note if the sources contradict each other.
void weigh_metadata(FoundMachine& machine) {
  const auto said = [&](const char* path) {
    const auto found = machine.metadata.find(path);
    return found == machine.metadata.end() ? std::string() : found->second;
  };
  if (const std::string type = said("instance-type"); !type.empty() && !is_instance_type(type)) {
    machine.notes.push_back(fmt::format("the metadata service reports the type '{}', which is not an instance type", type));
  } else if (!type.empty() && machine.type.empty()) {
    machine.type = type;
    machine.type_origin = "instance metadata";
  } else if (!type.empty() && type != machine.type) {
    machine.notes.push_back(fmt::format("the metadata service reports the type {}, but {} gives {}, which is used", type,
                                        machine.type_origin, machine.type));
  }
  if (const std::string id = said("instance-id"); machine.instance_id.empty() && id.starts_with("i-")) machine.instance_id = id;
}

/// Compares the devices with the table.
void compare_with_table(FoundMachine& machine) {
  if (machine.instance == nullptr) {
    if (!machine.type.empty()) {
      machine.notes.push_back(
          fmt::format("the table of instance types does not have {}; only the detected devices are used", machine.type));
    }
    return;
  }
  const Instance& row = *machine.instance;
  const auto& nics = machine.hardware.nics;
  const int cards =
      static_cast<int>(std::count_if(nics.begin(), nics.end(), [](const Nic& n) { return n.kind == Nic::Kind::efa; }));
  const int gpus = static_cast<int>(machine.hardware.gpus.size());
  if (cards != row.efa_cards) {
    machine.notes.push_back(fmt::format("found {} EFA devices, {} has {}{}", cards, row.name, row.efa_cards,
                                        cards > row.efa_cards ? ""
                                                              : ": attach an EFA interface to each network card, and let the "
                                                                "container see all of them"));
  }
  if (gpus != row.gpus) machine.notes.push_back(fmt::format("found {} GPUs, {} has {}", gpus, row.name, row.gpus));
  for (const Nic& nic : nics) {
    if (nic.kind != Nic::Kind::efa || nic.efa_generation == row.efa_generation) continue;
    machine.notes.push_back(fmt::format("the EFA device {} is of generation {}, the table has {} for {}", nic.place.address,
                                        nic.efa_generation, row.efa_generation, row.name));
    break;
  }
}

}  // namespace

Result<DetectOptions> detect_options() {
  DetectOptions options;
  options.sysfs_root = setting("SHOAL_SYSFS_ROOT");
  options.instance_type = setting("SHOAL_INSTANCE_TYPE");
  options.metadata_url = setting("SHOAL_METADATA_URL");
  if (options.metadata_url == "off") options.metadata_url.clear();
  const auto seconds = positive_setting("SHOAL_METADATA_TIMEOUT", 60, "seconds");
  if (!seconds.ok()) return seconds.status();
  options.metadata_budget = std::chrono::milliseconds(std::max(1L, std::lround(*seconds * 1000)));
  if (!options.metadata_url.empty()) {
    if (const auto endpoint = parse_endpoint(options.metadata_url); !endpoint.ok()) {
      return Status(StatusCode::invalid_argument, "SHOAL_METADATA_URL: " + endpoint.status().message());
    }
  }
  return options;
}

FoundMachine detect_machine(const DetectOptions& options) {
  FoundMachine machine;
  const Firmware firmware = read_firmware(options.sysfs_root);
  machine.instance_id = firmware.instance_id;
  if (!options.instance_type.empty()) {
    machine.type = options.instance_type;
    machine.type_origin = "SHOAL_INSTANCE_TYPE";
  } else if (!firmware.type.empty()) {
    machine.type = firmware.type;
    machine.type_origin = "DMI product name";
  }
  const bool ec2 = firmware.ec2 || (firmware.silent && hints_at_ec2(options.sysfs_root));
  if ((ec2 || options.always_ask) && !options.metadata_url.empty()) {
    ask_metadata(options, machine);
    weigh_metadata(machine);
  }
  machine.instance = find_instance(machine.type);
  if (machine.instance != nullptr) machine.type = machine.instance->name;  // the user may have given an alias
  machine.hardware = read_hardware(options.sysfs_root);
  compare_with_table(machine);
  return machine;
}

}  // namespace shoal
