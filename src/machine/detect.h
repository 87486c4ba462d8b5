// Detects the machine from several sources, in this order: the user's setting, the firmware, the metadata service, the devices.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/machine/hardware.h"
#include "src/machine/instances.h"

namespace shoal {

/// The sources to use. The defaults are those of a Linux system.
struct DetectOptions {
  std::string sysfs_root = "/sys";
  std::string instance_type;                            ///< set by the user; overrides every other source
  std::string metadata_url = "http://169.254.169.254";  ///< empty: no requests
  std::chrono::milliseconds metadata_budget{250};       ///< for all requests together
  bool always_ask = false;                              ///< request metadata even if nothing indicates EC2
};

/// From SHOAL_SYSFS_ROOT, SHOAL_INSTANCE_TYPE, SHOAL_METADATA_URL, SHOAL_METADATA_TIMEOUT.
/// Error: invalid_argument, naming the variable.
Result<DetectOptions> detect_options();

/// The detected machine, and the source of each fact.
struct FoundMachine {
  std::string type;                             ///< "p5.48xlarge"; empty if unknown
  std::string type_origin;                      ///< "SHOAL_INSTANCE_TYPE", "DMI product name", "instance metadata"
  const Instance* instance = nullptr;           ///< its row in the table; null if the table has none
  std::string instance_id;                      ///< "i-0..."
  std::map<std::string, std::string> metadata;  ///< the service's answers, by path
  Hardware hardware;
  std::vector<std::string> notes;  ///< contradictions between the sources, and what to do about them
};

/// The type comes from the user's setting, else from the DMI product name, else from the metadata service. On EC2 that service
/// also gives the zone and the placement group. Devices, cores and memory always come from sysfs. Nothing is fatal: facts that
/// cannot be found are left out, with a note if that is unexpected. The service is requested only if DMI identifies EC2, or DMI
/// is masked and the hypervisor or a device of Amazon's identifies EC2, or the user wants it: elsewhere the address may belong
/// to any server.
FoundMachine detect_machine(const DetectOptions& options);

}  // namespace shoal
