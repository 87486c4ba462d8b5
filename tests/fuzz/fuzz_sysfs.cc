// Texts of the kernel: lists of cores, numbers, paths and rates.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "src/machine/sysfs.h"

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto cores = parse_cores(text);
  if (cores.ok()) {
    if (cores->size() > (1 << 16) || !std::is_sorted(cores->begin(), cores->end())) std::abort();
    if (!cores->empty() && (cores->front() < 0 || cores->back() >= (1 << 16))) std::abort();
    const auto again = parse_cores(format_cores(*cores));  // printing and parsing round-trip
    if (!again.ok() || *again != *cores) std::abort();
  }
  static_cast<void>(parse_hexadecimal(text));
  if (bridges_of_path(text).size() > 32) std::abort();
  for (const double rate : {parse_infiniband_rate(text), parse_ethernet_speed(text)}) {
    if (!std::isfinite(rate) || rate < 0) std::abort();
  }
  return 0;
}
