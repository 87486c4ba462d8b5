// make_fake_machine p5 DIR: writes a fake /sys tree of such a machine into DIR, for tests of the command line.
#include <cstdio>

#include "tests/unit/fake_machine.h"

int main(int count, char** arguments) {
  if (count != 3) {
    std::fputs("make_fake_machine p4d|p5|g5|laptop|plain DIR\n", stderr);
    return 2;
  }
  shoal::fake::write(shoal::fake::machine(arguments[1]), arguments[2]);
  return 0;
}
