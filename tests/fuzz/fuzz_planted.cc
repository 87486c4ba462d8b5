// A target with a planted fault, which the driver must find by mutations of an empty input.
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 10 && data[3] == 0x7f && data[4] == 0xff) std::abort();
  return 0;
}
