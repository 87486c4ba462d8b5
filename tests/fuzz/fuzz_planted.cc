// A target with a fault: the driver must find it by mutations of nothing at all.
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 10 && data[3] == 0x7f && data[4] == 0xff) std::abort();
  return 0;
}
