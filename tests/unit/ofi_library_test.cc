// Calls to libfabric of several versions, and the use of its answers, over a fake library.
#include <dlfcn.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/mentions.h"
#include "tests/ofi/fake_libfabric.h"
#include "tests/unit/fake_machine.h"
#include "transports/ofi/libfabric.h"
#include "transports/ofi/ofi.h"

namespace shoal::ofi {
namespace {

using rails::testing::FakeLibfabric;

constexpr std::uint32_t version(std::uint32_t major, std::uint32_t minor) { return major << 16 | minor; }

// libfabric's numbers.
constexpr int kCudaApiPermitted = 10;
constexpr int kSharedMemoryPermitted = 11;
constexpr int kEfaRnrRetry = -0x0efa0000;
constexpr int kEfaEmulatedWrite = -0x0efa0000 + 2;

FakeLibfabric& control() {
  static FakeLibfabric* const control = [] {
    void* const library = ::dlopen(SHOAL_FAKE_LIBFABRIC, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::abort();
    const auto entry =
        reinterpret_cast<rails::testing::FakeLibfabricEntry>(::dlsym(library, rails::testing::kFakeLibfabricEntry));
    return entry();
  }();
  return *control;
}

/// Runs `body` in a child process, since a process loads libfabric only once. Returns its result, or the failure.
std::string in_process(const std::string& library, const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("SHOAL_OFI_LIBRARY", library.c_str(), 1);
    const std::string text = body();
    const ssize_t written = ::write(ends[1], text.data(), text.size());
    ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
  }
  ::close(ends[1]);
  std::string text;
  char buffer[512];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? text
                                                       : fmt::format("the child ended with status {:#x}: {}", status, text);
}

/// Opens a card. Returns the calls, traits and options as text.
std::string open_card(const FakeLibfabric& library) {
  return in_process(SHOAL_FAKE_LIBFABRIC, [&library]() -> std::string {
    control() = library;
    const auto fabric = libfabric();
    if (!fabric.ok()) return fabric.status().to_string();
    RailRequest request;
    request.provider = library.provider;
    request.operations = [](std::span<const RailTraits> rails) { return 5000 + rails.size(); };
    const auto rails = (*fabric)->open(request);
    if (!rails.ok()) return rails.status().to_string();
    const RailTraits& traits = rails->front()->traits();
    std::string text = fmt::format("api {}.{}, queue {}, {}, asked {}{}", control().asked_version >> 16,
                                   control().asked_version & 0xffff, control().queue_size,
                                   traits.max_write_bytes == 0 ? "no writes"
                                   : traits.emulated_writes    ? "emulated writes"
                                                               : "writes",
                                   control().gets, control().set_after_enable ? ", too late" : "");
    if (traits.local_peers_read) text += ", neighbours read";
    for (int i = 0; i < control().sets; ++i) {
      const auto& set = control().set[static_cast<std::size_t>(i)];
      text += fmt::format(", {}={}/{}", set.option, set.value, set.bytes);
    }
    return text;
  });
}

/// Opens provider "shm" of the real library while shared memory with the name that the provider uses exists already.
std::string open_shm_beside_old_memory() {
  return in_process("", []() -> std::string {
    ::unsetenv("SHOAL_OFI_LIBRARY");
    const auto fabric = libfabric();
    const auto providers = ofi_providers();
    if (!fabric.ok() || !providers.ok()) return fabric.status().to_string() + providers.status().to_string();
    if (std::none_of(providers->begin(), providers->end(), [](const auto& each) { return each.name == "shm"; }))
      return "no provider";
    const std::string name = fmt::format("/{}:{}:0", ::getpid(), ::getuid());
    const int memory = ::shm_open(name.c_str(), O_CREAT | O_RDWR | O_EXCL, 0600);
    const std::string junk(4096, '\x7f');
    const bool written = ::write(memory, junk.data(), junk.size()) == static_cast<ssize_t>(junk.size());
    RailRequest request;
    request.provider = "shm";
    const auto rails = (*fabric)->open(request);
    ::close(memory);
    ::shm_unlink(name.c_str());
    if (!written) return "shared memory of that name could not be created";
    return rails.ok() ? "opened" : rails.status().to_string();
  });
}

/// The keys of `count` registrations in a domain of `library`, or the error.
std::string keys_of(const FakeLibfabric& library, int count) {
  return in_process(SHOAL_FAKE_LIBFABRIC, [&library, count]() -> std::string {
    control() = library;
    const auto fabric = libfabric();
    if (!fabric.ok()) return fabric.status().to_string();
    RailRequest request;
    request.provider = library.provider;
    const auto rails = (*fabric)->open(request);
    if (!rails.ok()) return rails.status().to_string();
    std::array<std::byte, 64> memory{};
    std::string text;
    for (int i = 0; i < count; ++i) {
      const auto made = rails->front()->register_memory(memory, true);
      if (!made.ok()) return made.status().to_string();
      text += fmt::format("{} ", made->key);
    }
    return text;
  });
}

std::vector<std::uint64_t> numbers(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::uint64_t>(words), {}};
}

FakeLibfabric of_version(std::uint32_t is) {
  FakeLibfabric library;
  library.version = is;
  for (const int option : {kEfaRnrRetry, kCudaApiPermitted, kEfaEmulatedWrite, kSharedMemoryPermitted}) {
    if (is < version(1, 18) && option != kEfaRnrRetry) continue;
    if (is < version(1, 21) && option == kSharedMemoryPermitted) continue;
    library.known[static_cast<std::size_t>(library.options++)] = option;
  }
  return library;
}

std::string asked_of_efa() {
  return fmt::format(", {}=0/1, {}=0/1, {}=7/{}", kCudaApiPermitted, kSharedMemoryPermitted, kEfaRnrRetry, sizeof(std::size_t));
}

TEST(OfiLibrary, CardWithWritesIsWrittenTo) {
  for (const std::uint32_t is : {version(1, 18), version(1, 22), version(2, 6)}) {
    // Before 1.21, shared memory cannot be disabled.
    const std::string neighbours = is < version(1, 21) ? ", neighbours read" : "";
    EXPECT_EQ(open_card(of_version(is)), "api 1.18, queue 5001, writes, asked 1" + neighbours + asked_of_efa()) << is;
  }
}

TEST(OfiLibrary, EmulatedWritesAreRecognised) {
  for (const std::uint32_t is : {version(1, 18), version(2, 6)}) {
    FakeLibfabric library = of_version(is);
    library.emulates_writes = true;
    const std::string neighbours = is < version(1, 21) ? ", neighbours read" : "";
    EXPECT_EQ(open_card(library), "api 1.18, queue 5001, emulated writes, asked 1" + neighbours + asked_of_efa()) << is;
  }
}

// Provider efa of 1.17 has neither the options nor writes by the card.
TEST(OfiLibrary, OldProviderEmulatesWrites) {
  EXPECT_EQ(open_card(of_version(version(1, 17))),
            "api 1.17, queue 5001, emulated writes, asked 1, neighbours read" + asked_of_efa());
}

TEST(OfiLibrary, LocalPeersReadUnlessKnownOtherwise) {
  const auto local_peers_read = [](const char* provider) {
    FakeLibfabric library = of_version(version(1, 22));
    library.provider = provider;
    return open_card(library).find("neighbours read") != std::string::npos;
  };
  for (const char* const provider : {"shm", "psm3", "opx"}) EXPECT_TRUE(local_peers_read(provider)) << provider;
  for (const char* const provider : {"efa", "verbs", "tcp;ofi_rxm", "net"})
    EXPECT_FALSE(local_peers_read(provider)) << provider;
}

TEST(OfiLibrary, EfaOptionsAreNotReadFromOtherProviders) {
  for (const int unknown : {-92, -38}) {  // FI_ENOPROTOOPT, FI_ENOSYS
    FakeLibfabric library = of_version(version(1, 17));
    library.provider = "verbs";
    library.options = 0;
    library.unknown = unknown;
    EXPECT_EQ(open_card(library),
              fmt::format("api 1.17, queue 5001, writes, asked 0, {}=0/1, {}=0/1", kCudaApiPermitted, kSharedMemoryPermitted));
  }
}

// A peer that guesses a key could write into the memory.
TEST(OfiLibrary, MemoryKeysAreUnpredictable) {
  for (const bool takes_doubles : {false, true}) {
    for (const std::size_t bytes : {1, 2, 4, 8}) {
      FakeLibfabric library = of_version(version(1, 18));
      library.mr_key_size = bytes;
      library.takes_doubles = takes_doubles;
      const std::string text = keys_of(library, 200);
      const std::vector<std::uint64_t> keys = numbers(text);
      ASSERT_EQ(keys.size(), 200U) << text;
      EXPECT_EQ(std::set(keys.begin(), keys.end()).size(), keys.size()) << "a key was used twice: " << text;
      int neighbours = 0;
      int large = 0;
      for (std::size_t i = 0; i < keys.size(); ++i) {
        EXPECT_NE(keys[i], 0U);
        EXPECT_EQ(bytes < 8 ? keys[i] >> 8 * bytes : 0, 0U) << "too large for a key of " << bytes << " bytes";
        large += (keys[i] >> (8 * bytes - 1)) != 0 ? 1 : 0;
        neighbours += i > 0 && keys[i] - keys[i - 1] == 1 ? 1 : 0;
      }
      EXPECT_LT(neighbours, 10) << "the keys are consecutive: " << text;
      EXPECT_TRUE(large > 50 && large < 150) << "not all bits are used: " << text;
      EXPECT_NE(keys_of(library, 200), text) << "each process has other keys";
    }
  }
}

TEST(OfiLibrary, ProviderChosenKeysAreNotRequested) {
  FakeLibfabric library = of_version(version(1, 18));
  library.mr_mode = 1 << 6;  // FI_MR_PROV_KEY
  EXPECT_EQ(keys_of(library, 3), "0 0 0 ");
}

TEST(OfiLibrary, ExhaustedKeysAreReported) {
  FakeLibfabric library = of_version(version(1, 18));
  library.mr_key_size = 1;
  EXPECT_THAT(keys_of(library, 256), testing::Mentions("64 bytes", "ulimit -l"));
}

TEST(OfiLibrary, OldOrMissingLibraryIsReported) {
  EXPECT_THAT(open_card(of_version(version(1, 16))), testing::Mentions("libfabric", "1.16", "1.17"));
  const auto error = [] { return libfabric().status().message(); };
  EXPECT_THAT(in_process("/nowhere/libfabric.so.1", error), testing::Mentions("libfabric", "/nowhere/libfabric.so.1"));
  EXPECT_THAT(in_process("libc.so.6", error), testing::Mentions("libfabric", "functions"));
}

TEST(OfiLibrary, EfaNeedsMachineAndLibrary) {
  const auto has_efa = [](const std::string& machine, const char* provider) {
    return in_process(SHOAL_FAKE_LIBFABRIC, [&]() -> std::string {
      const fake::Folder folder;
      fake::write(fake::machine(machine), folder.path());
      control() = of_version(version(1, 18));
      control().provider = provider;
      const bool has = ofi_has_efa(folder.path());
      return fmt::format("{}{}", has, control().asked_version == 0 ? ", nothing loaded" : "");
    });
  };
  EXPECT_EQ(has_efa("p5", "efa"), "true");
  EXPECT_EQ(has_efa("p4d", "efa"), "true");
  EXPECT_EQ(has_efa("p5", "verbs"), "false");
  EXPECT_EQ(has_efa("laptop", "efa"), "false, nothing loaded");
}

TEST(SharedMemoryProvider, OpensDespiteMemoryOfAKilledProcess) {
  const std::string outcome = open_shm_beside_old_memory();
  if (outcome == "no provider") GTEST_SKIP() << "libfabric has no provider shm here";
  EXPECT_EQ(outcome, "opened");
}

}  // namespace
}  // namespace shoal::ofi
