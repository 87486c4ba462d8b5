// Interface between a test and fake_libfabric.cc, a shared library with libfabric's entry points: what the test sets, and
// what the library records.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace shoal::rails::testing {

struct FakeLibfabric {
  // Set by the test before first use.
  std::uint32_t version = 0;     ///< result of fi_version(), as FI_VERSION
  const char* provider = "efa";  ///< the only provider, with one card
  bool emulates_writes = false;  ///< value of FI_OPT_EFA_EMULATED_WRITE
  int unknown = -92;             ///< result for unknown options: -FI_ENOPROTOOPT
  int mr_mode = 0;               ///< of the domain
  std::size_t mr_key_size = 8;   ///< of the domain
  bool takes_doubles = false;    ///< whether a key that is in use can be registered again
  int options = 0;               ///< number of valid entries in `known`
  std::array<int, 8> known{};    ///< known options, by number

  // Recorded calls.
  struct Set {
    int option = 0;
    std::size_t bytes = 0;
    std::uint64_t value = 0;
  };
  std::uint32_t asked_version = 0;  ///< passed to fi_getinfo
  std::array<Set, 8> set{};
  int sets = 0;
  int gets = 0;  ///< reads of FI_OPT_EFA_EMULATED_WRITE
  bool set_after_enable = false;
  bool enabled = false;
  std::size_t queue_size = 0;
  std::array<std::uint64_t, 256> keys{};  ///< keys under which memory was registered
  int registered = 0;
};

/// Exported by the library under this name.
using FakeLibfabricEntry = FakeLibfabric* (*)();
inline constexpr const char* kFakeLibfabricEntry = "shoal_fake_libfabric";

}  // namespace shoal::rails::testing
