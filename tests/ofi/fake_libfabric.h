// What a test says to, and hears from, a shared library that looks like libfabric (fake_libfabric.cc).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace shoal::rails::testing {

struct FakeLibfabric {
  // To be set before it is used.
  std::uint32_t version = 0;     ///< what fi_version() says, as FI_VERSION
  const char* provider = "efa";  ///< the only one, with one card
  bool emulates_writes = false;  ///< what FI_OPT_EFA_EMULATED_WRITE says
  int unknown = -92;             ///< what is answered to options that it does not know: -FI_ENOPROTOOPT
  int mr_mode = 0;               ///< of its domain
  std::size_t mr_key_size = 8;   ///< likewise
  bool takes_doubles = false;    ///< whether it registers a key once more that is in use
  int options = 0;               ///< of those in `known` so many are known
  std::array<int, 8> known{};    ///< options by number

  // What it was asked.
  struct Set {
    int option = 0;
    std::size_t bytes = 0;
    std::uint64_t value = 0;
  };
  std::uint32_t asked_version = 0;  ///< by fi_getinfo
  std::array<Set, 8> set{};
  int sets = 0;
  int gets = 0;  ///< of FI_OPT_EFA_EMULATED_WRITE
  bool set_after_enable = false;
  bool enabled = false;
  std::size_t queue_size = 0;
  std::array<std::uint64_t, 256> keys{};  ///< that memory was registered with
  int registered = 0;
};

/// Exported by the library under this name.
using FakeLibfabricEntry = FakeLibfabric* (*)();
inline constexpr const char* kFakeLibfabricEntry = "shoal_fake_libfabric";

}  // namespace shoal::rails::testing
