// What read_hardware() finds on a fake machine.
#pragma once

#include "src/machine/sysfs.h"
#include "tests/unit/fake_machine.h"

namespace shoal::fake {

inline Hardware hardware_of(const Machine& machine) {
  const Folder folder;
  write(machine, folder.path());
  return read_hardware(folder.path());
}

}  // namespace shoal::fake
