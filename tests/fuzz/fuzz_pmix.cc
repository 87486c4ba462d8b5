// What rank 0 of mpirun tells the others through PMIx: a host, a port and a key. The first byte says what this rank has.
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

struct Visit {
  std::string host;
  int port = 0;
  Key key{};
};
Visit visit;

}  // namespace

/// In place of the one that would go there.
Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool /*is_server*/, std::string_view /*job*/,
                                              const Key& key, std::chrono::steady_clock::time_point /*deadline*/) {
  visit = {host, port, key};
  return Status(StatusCode::unsupported, "nobody goes there");
}

/// Not for a rank that is not the first.
Result<ServedStore> serve_tcp_store(const std::string& /*host*/, std::string_view /*job*/, const Key& /*key*/,
                                    std::chrono::steady_clock::time_point /*deadline*/) {
  std::abort();
}

}  // namespace shoal

using namespace shoal;  // NOLINT(google-build-using-namespace): the rest is one function

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  fake_pmix_says((data[0] & 2) != 0 ? PMIX_UINT64 : PMIX_STRING, (data[0] & 4) != 0 ? nullptr : text.data());
  const JobKey given{key_from_text("the key that the user has given"), (data[0] & 1) != 0};
  visit = {};
  const Launch launch{.launcher = "mpirun", .rank = 1, .size = 2, .master_host = {}, .job = "job"};
  const Status status = open_pmix_store(launch, given, std::chrono::steady_clock::now()).status();
  if (status.code() != StatusCode::unsupported) {
    const bool refused = status.code() == StatusCode::system_error && text.starts_with("! ");
    if (visit.port != 0 || (status.code() != StatusCode::internal && status.code() != StatusCode::mismatch && !refused))
      std::abort();
    if (std::ranges::any_of(status.message(), [](unsigned char each) { return std::iscntrl(each) != 0; })) std::abort();
    return 0;
  }
  if (visit.port < 1 || visit.port > 65535 || visit.host.empty()) std::abort();
  if (std::ranges::any_of(visit.host, [](unsigned char each) { return std::isspace(each) != 0; })) std::abort();
  // Its own key never gives way to one from outside.
  if ((visit.key.bytes == given.key.bytes) != given.secret) std::abort();
  return 0;
}
