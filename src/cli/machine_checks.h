// Whether a machine is ready for a job: the checks of `shoal doctor --machine`.
#pragma once

#include <string>
#include <vector>

#include <shoal/status.h>

#include "src/machine/detect.h"

namespace shoal {

/// One finding.
struct MachineCheck {
  enum class Verdict { good, note, bad, unknown };
  std::string what;  ///< "EFA devices"
  Verdict verdict = Verdict::good;
  std::string found;  ///< "31 of 32"
  std::string to_do;  ///< how to fix it; may be empty
};
/// "ok", "note", "BAD", "?".
std::string to_string(MachineCheck::Verdict verdict);

/// Reads /sys, /proc, /dev and /opt below `root` ("" for this machine; tests have trees of their own). EFA and GPUs are checked
/// only if there are such devices, or should be according to the table.
std::vector<MachineCheck> check_machine(const FoundMachine& machine, const std::string& root);

/// Whether a group in the output of `aws ec2 describe-security-groups` allows EFA traffic: all protocols, in and out, from and
/// to itself. A rule for 0.0.0.0/0 is not enough, because EFA traffic has no addresses that it could match.
/// Error: invalid_argument for other text.
Result<MachineCheck> check_security_groups(std::string_view json);

}  // namespace shoal
