// Which machine this is: the ladder of sources from what the user says down to what the devices tell.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/machine/hardware.h"
#include "src/machine/instances.h"

namespace shoal {

/// Where to look. The defaults are those of a Linux system.
struct DetectOptions {
  std::string sysfs_root = "/sys";
  std::string instance_type;                            ///< what the user says; wins
  std::string metadata_url = "http://169.254.169.254";  ///< empty: never ask
  std::chrono::milliseconds metadata_budget{250};       ///< for all questions together
  bool always_ask = false;                              ///< whether or not something says that this is EC2
};

/// From SHOAL_SYSFS_ROOT, SHOAL_INSTANCE_TYPE, SHOAL_METADATA_URL, SHOAL_METADATA_TIMEOUT.
/// Error: invalid_argument, naming the variable.
Result<DetectOptions> detect_options();

/// What was found, and how.
struct FoundMachine {
  std::string type;                             ///< "p5.48xlarge"; empty where nothing told
  std::string type_origin;                      ///< "SHOAL_INSTANCE_TYPE", "DMI product name", "instance metadata"
  const Instance* instance = nullptr;           ///< its row in the table; null where that has none
  std::string instance_id;                      ///< "i-0..."
  std::map<std::string, std::string> metadata;  ///< what the service said, by path
  Hardware hardware;
  std::vector<std::string> notes;  ///< what does not fit together, and what to do about it
};

/// The ladder: what the user says; the DMI product name; on EC2 the metadata service, which also tells zone and placement
/// group; devices, cores and memory from sysfs in any case. Nothing of it is fatal: what cannot be found is left out, with a
/// note where that is a surprise. The service is not asked unless DMI says that this is EC2 or, where DMI is masked, a device
/// of Amazon's or the hypervisor does (elsewhere the address may be anybody's), or the user wants it; what it says of the type
/// counts only where DMI does not know it.
FoundMachine detect_machine(const DetectOptions& options);

}  // namespace shoal
