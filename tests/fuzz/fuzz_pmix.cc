// What rank 0 publishes through PMIx under mpirun: host, port and key. The first byte selects value type and own key.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "src/join/pmix.h"
#include "src/join/tcp_store.h"
#include "tests/fuzz/fake_pmix.h"

namespace shoal {
namespace {

struct Destination {
  std::string host;
  int port = 0;
  Key key{};
};
Destination destination;

}  // namespace

/// Replaces the real one, which would connect.
Result<std::unique_ptr<Store>> open_tcp_store(std::unique_ptr<TcpStoreServer> /*server*/, const StoreAddress& address,
                                              const LocalRanks& /*ranks*/, bool /*meets*/,
                                              std::chrono::steady_clock::time_point /*deadline*/) {
  destination = {address.host, address.port, address.key};
  return Status(StatusCode::unsupported, "not connected");
}

/// Only launchers with an address call this.
Result<std::unique_ptr<Store>> make_tcp_store(const StoreAddress& /*address*/, bool /*is_server*/, const LocalRanks& /*ranks*/,
                                              bool /*meets*/, std::chrono::steady_clock::time_point /*deadline*/) {
  std::abort();
}

}  // namespace shoal

using namespace shoal;  // NOLINT(google-build-using-namespace): the rest is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  fake_pmix_set_value((data[0] & 2) != 0 ? PMIX_UINT64 : PMIX_STRING, (data[0] & 4) != 0 ? nullptr : text.data());
  const JobKey given{key_from_text("the key that the user has given"), (data[0] & 1) != 0};
  destination = {};
  const Launch launch{.launcher = "mpirun", .rank = 1, .size = 2, .master_host = {}, .job = "job"};
  const Status status = open_pmix_store(launch, given, std::chrono::steady_clock::now()).status();
  if (status.code() != StatusCode::unsupported) {
    const bool refused = status.code() == StatusCode::system_error && text.starts_with("! ");
    if (destination.port != 0 || (status.code() != StatusCode::internal && status.code() != StatusCode::mismatch && !refused))
      std::abort();
    if (std::ranges::any_of(status.message(), [](unsigned char each) { return std::iscntrl(each) != 0; })) std::abort();
    return 0;
  }
  if (destination.port < 1 || destination.port > 65535 || destination.host.empty()) std::abort();
  if (std::ranges::any_of(destination.host, [](unsigned char each) { return std::isspace(each) != 0; })) std::abort();
  // A secret key of this rank is never replaced by a received one.
  if ((destination.key.bytes == given.key.bytes) != given.secret) std::abort();
  return 0;
}
