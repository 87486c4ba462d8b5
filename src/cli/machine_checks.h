// Whether a machine is fit for a job: what `shoal doctor --machine` looks at.
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
  std::string to_do;  ///< empty where nothing is
};
/// "ok", "note", "BAD", "?".
std::string to_string(MachineCheck::Verdict verdict);

/// Looks below `root` ("" for this machine; tests have trees of their own) at /sys, /proc, /dev and /opt. What only concerns
/// EFA or GPUs is checked where there are such devices, or where the table says that there should be.
std::vector<MachineCheck> check_machine(const FoundMachine& machine, const std::string& root);

/// Whether a group in what `aws ec2 describe-security-groups` printed lets EFA through: all protocols, in and out, from and to
/// itself. A rule for 0.0.0.0/0 does not count: EFA's traffic has no addresses that it could match.
/// Error: invalid_argument for what is no such answer.
Result<MachineCheck> check_security_groups(std::string_view json);

}  // namespace shoal
