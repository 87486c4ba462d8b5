// EC2's description of security groups, from a file given to `shoal doctor`.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/cli/machine_checks.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto check = check_security_groups({reinterpret_cast<const char*>(data), size});
  if (!check.ok()) return 0;
  const bool judged = check->verdict == MachineCheck::Verdict::good || check->verdict == MachineCheck::Verdict::bad;
  if (!judged || (check->verdict == MachineCheck::Verdict::bad && check->to_do.empty())) std::abort();
  return 0;
}
