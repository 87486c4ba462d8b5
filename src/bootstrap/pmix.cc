#include "src/bootstrap/pmix.h"

#include <fmt/format.h>

#include "src/bootstrap/socket.h"
#include "src/bootstrap/tcp_store.h"

#ifdef SHOAL_HAS_PMIX
#include <dlfcn.h>
#include <pmix.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>
#endif

namespace shoal {
namespace {

constexpr const char* kAdvice = "set SHOAL_MASTER_ADDR and SHOAL_MASTER_PORT (mpirun -x), or start the ranks with shoal run";

}  // namespace

#ifdef SHOAL_HAS_PMIX
namespace {

// The calls we need, resolved at run time.
struct PmixLibrary {
  decltype(&PMIx_Init) init = nullptr;
  decltype(&PMIx_Put) put = nullptr;
  decltype(&PMIx_Commit) commit = nullptr;
  decltype(&PMIx_Fence) fence = nullptr;
  decltype(&PMIx_Get) get = nullptr;
  decltype(&PMIx_Finalize) finalize = nullptr;

  static Result<PmixLibrary> load() {
    void* handle = ::dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr)
      return Status(StatusCode::unsupported, fmt::format("mpirun without PMIx ({}); {}", ::dlerror(), kAdvice));
    PmixLibrary library;
    const auto find = [handle](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(handle, name));
      return function != nullptr;
    };
    if (!find(library.init, "PMIx_Init") || !find(library.put, "PMIx_Put") || !find(library.commit, "PMIx_Commit") ||
        !find(library.fence, "PMIx_Fence") || !find(library.get, "PMIx_Get") || !find(library.finalize, "PMIx_Finalize")) {
      return Status(StatusCode::unsupported, fmt::format("libpmix.so.2 lacks a function; {}", kAdvice));
    }
    return library;
  }
};

Status pmix_error(const char* what, int code) {
  return {StatusCode::system_error, fmt::format("{} failed with PMIx status {}; {}", what, code, kAdvice)};
}

// PMIx counts its initialisations, so MPI in the same process does not mind; but mpirun calls an exit without finalisation a
// failure, and finalising earlier would end PMIx before an MPI_Init that may follow.
void finalize_at_exit(decltype(&PMIx_Finalize) finalize) {
  static decltype(&PMIx_Finalize) call = nullptr;
  if (std::exchange(call, finalize) == nullptr) std::atexit([] { call(nullptr, 0); });
}

constexpr const char* kAddressKey = "shoal.store";

}  // namespace

Result<OpenedStore> open_pmix_store(const Launch& launch, const JobKey& given, std::chrono::steady_clock::time_point deadline) {
  const auto library = PmixLibrary::load();
  if (!library.ok()) return library.status();
  pmix_proc_t self;
  if (const int code = library->init(&self, nullptr, 0); code != PMIX_SUCCESS) return pmix_error("PMIx_Init", code);
  finalize_at_exit(library->finalize);

  OpenedStore opened{nullptr, given.key};
  std::string address;
  if (launch.rank == 0) {
    // PMIx tells the ranks of this job only, so it may carry the key where there is no other.
    const std::string secret = given.secret ? "-" : to_hex(random_key());
    if (!given.secret) opened.key = key_from_text(secret);
    const std::string host = own_address();
    const auto port = free_port(host);
    if (!port.ok()) return port.status();
    auto served = make_tcp_store(host, *port, true, launch.job, opened.key, deadline);
    if (!served.ok()) return served.status();
    opened.store = std::move(served).value();
    address = fmt::format("{} {} {}", host, *port, secret);
    pmix_value_t value;
    std::memset(&value, 0, sizeof value);
    value.type = PMIX_STRING;
    value.data.string = address.data();
    if (const int code = library->put(PMIX_GLOBAL, kAddressKey, &value); code != PMIX_SUCCESS)
      return pmix_error("PMIx_Put", code);
    if (const int code = library->commit(); code != PMIX_SUCCESS) return pmix_error("PMIx_Commit", code);
  }
  pmix_info_t collect;
  std::memset(&collect, 0, sizeof collect);
  std::strncpy(collect.key, PMIX_COLLECT_DATA, PMIX_MAX_KEYLEN);
  collect.value.type = PMIX_BOOL;
  collect.value.data.flag = true;
  if (const int code = library->fence(nullptr, 0, &collect, 1); code != PMIX_SUCCESS) return pmix_error("PMIx_Fence", code);
  if (launch.rank == 0) return opened;

  pmix_proc_t root = self;
  root.rank = 0;
  pmix_value_t* value = nullptr;
  if (const int code = library->get(&root, kAddressKey, nullptr, 0, &value); code != PMIX_SUCCESS || value == nullptr) {
    return pmix_error("PMIx_Get", code);
  }
  address = value->type == PMIX_STRING && value->data.string != nullptr ? value->data.string : "";
  std::istringstream words(address);
  std::string host;
  std::string secret;
  int port = 0;
  if (!(words >> host >> port >> secret) || port <= 0 || port > 65535)
    return Status(StatusCode::internal, "what rank 0 published through PMIx is no address of a store");
  if ((secret == "-") != given.secret) {
    return Status(
        StatusCode::mismatch,
        fmt::format(
            "rank {} has {} key and rank 0 has {}; give SHOAL_JOB_KEY to all ranks (mpirun -x SHOAL_JOB_KEY) or to none",
            launch.rank, given.secret ? "a" : "no", given.secret ? "none" : "one"));
  }
  if (!given.secret) opened.key = key_from_text(secret);
  auto store = make_tcp_store(host, port, false, launch.job, opened.key, deadline);
  if (!store.ok()) return store.status();
  opened.store = std::move(store).value();
  return opened;
}

#else

Result<OpenedStore> open_pmix_store(const Launch&, const JobKey&, std::chrono::steady_clock::time_point) {
  return Status(StatusCode::unsupported, fmt::format("mpirun, but this build has no PMIx; {}", kAdvice));
}

#endif

}  // namespace shoal
