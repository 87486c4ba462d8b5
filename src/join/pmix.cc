#include "src/join/pmix.h"

#include <fmt/format.h>

#include "src/join/socket.h"
#include "src/join/startup_watch.h"
#include "src/join/tcp_store.h"

#ifdef SHOAL_HAS_PMIX
#include <dlfcn.h>
#include <pmix.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
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

// PMIx counts its initialisations, so MPI in the same process is not affected. But mpirun treats an exit without finalisation
// as a failure, and finalising earlier would end PMIx before an MPI_Init that may follow.
void finalize_at_exit(decltype(&PMIx_Finalize) finalize) {
  static decltype(&PMIx_Finalize) call = nullptr;
  if (std::exchange(call, finalize) == nullptr) std::atexit([] { call(nullptr, 0); });
}

constexpr const char* kAddressKey = "shoal.store";
constexpr std::string_view kRefusal = "! ";  // precedes rank 0's message if it has no store
constexpr std::size_t kMaxWords = 1000;      // bytes of rank 0's message that are repeated

pmix_info_t info(const char* key) {
  pmix_info_t made;
  std::memset(&made, 0, sizeof made);
  std::strncpy(made.key, key, PMIX_MAX_KEYLEN);
  return made;
}

// The timeout for a PMIx call that waits for other ranks; without it the call would wait for ever. In whole seconds; PMIx takes
// 0 as "for ever".
pmix_info_t time_left(std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::seconds>(deadline - std::chrono::steady_clock::now()).count();
  pmix_info_t made = info(PMIX_TIMEOUT);
  made.value.type = PMIX_INT;
  made.value.data.integer = static_cast<int>(std::clamp<long long>(left, 1, std::numeric_limits<int>::max()));
  return made;
}

Status publish(const PmixLibrary& library, std::string words) {
  pmix_value_t value;
  std::memset(&value, 0, sizeof value);
  value.type = PMIX_STRING;
  value.data.string = words.data();
  if (const int code = library.put(PMIX_GLOBAL, kAddressKey, &value); code != PMIX_SUCCESS) return pmix_error("PMIx_Put", code);
  if (const int code = library.commit(); code != PMIX_SUCCESS) return pmix_error("PMIx_Commit", code);
  return {};
}

// Rank 0 opens its store and publishes its address, or the error.
Result<std::unique_ptr<TcpStoreServer>> serve(const PmixLibrary& library, const Launch& launch, const JobKey& given,
                                              OpenedStore* opened) {
  // PMIx publishes to the ranks of this job only, so it may carry the key if there is no other. But the key is visible on the
  // network between PMIx's daemons.
  const std::string secret = given.secret ? "-" : to_hex(random_key());
  if (!given.secret) opened->key = {key_from_text(secret), true, true};
  const std::string host = own_address();
  auto served = TcpStoreServer::start(host, 0, launch.job, opened->key.key);
  if (!served.ok()) {
    static_cast<void>(publish(library, std::string(kRefusal).append(served.status().message())));
    return served.status();
  }
  if (Status status = publish(library, fmt::format("{} {} {}", host, (*served)->port(), secret)); !status.ok()) return status;
  return served;
}

// Waits until all ranks have reached the fence, and the values that they published can be read.
Status meet(const PmixLibrary& library, const Launch& launch, std::chrono::steady_clock::time_point deadline) {
  startup_waits_for("all ranks at PMIx's fence (mpirun)");
  std::array<pmix_info_t, 2> how = {info(PMIX_COLLECT_DATA), time_left(deadline)};
  how[0].value.type = PMIX_BOOL;
  how[0].value.data.flag = true;
  const int code = library.fence(nullptr, 0, how.data(), how.size());
  if (code == PMIX_ERR_TIMEOUT) {
    return {StatusCode::timeout,
            fmt::format("startup under mpirun: not all of the {} ranks reached PMIx's fence before the deadline "
                        "(SHOAL_TIMEOUT); a rank has ended, hangs, or does not use shoal",
                        launch.size)};
  }
  return code == PMIX_SUCCESS ? Status() : pmix_error("PMIx_Fence", code);
}

// The value that rank 0 has published.
Result<std::string> ask(const PmixLibrary& library, pmix_proc_t root, std::chrono::steady_clock::time_point deadline) {
  root.rank = 0;
  const pmix_info_t limit = time_left(deadline);
  pmix_value_t* value = nullptr;
  const int code = library.get(&root, kAddressKey, &limit, 1, &value);
  if (code == PMIX_ERR_TIMEOUT) {
    return Status(StatusCode::timeout,
                  "startup under mpirun: rank 0 did not publish its address through PMIx before the deadline (SHOAL_TIMEOUT)");
  }
  if (code != PMIX_SUCCESS || value == nullptr) return pmix_error("PMIx_Get", code);
  return std::string(value->type == PMIX_STRING && value->data.string != nullptr ? value->data.string : "");
}

}  // namespace

Result<OpenedStore> open_pmix_store(const Launch& launch, const JobKey& given, std::chrono::steady_clock::time_point deadline) {
  const auto library = PmixLibrary::load();
  if (!library.ok()) return library.status();
  pmix_proc_t self;
  if (const int code = library->init(&self, nullptr, 0); code != PMIX_SUCCESS) return pmix_error("PMIx_Init", code);
  finalize_at_exit(library->finalize);

  OpenedStore opened{nullptr, given};
  // Rank 0 enters the fence after an error as well, or the other ranks would wait there in vain.
  auto served = launch.rank == 0 ? serve(*library, launch, given, &opened) : Result<std::unique_ptr<TcpStoreServer>>(nullptr);
  const Status met = meet(*library, launch, deadline);
  if (!served.ok()) return served.status();
  if (!met.ok()) return met;
  const auto open = [&](const std::string& host, int port) -> Result<OpenedStore> {
    const StoreAddress address{host, port, launch.job, opened.key.key};
    auto store = open_tcp_store(std::move(served).value(), address, local_ranks(launch), opened.key.secret, deadline);
    if (!store.ok()) return store.status();
    opened.store = std::move(store).value();
    return std::move(opened);
  };
  if (const auto& server = served.value(); server != nullptr) return open(own_address(), server->port());

  const auto told = ask(*library, self, deadline);
  if (!told.ok()) return told.status();
  if (told->starts_with(kRefusal)) {
    std::string why = told->substr(kRefusal.size(), kMaxWords);
    std::replace_if(
        why.begin(), why.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');  // safe for a terminal
    return Status(StatusCode::system_error, fmt::format("rank 0 could not open its store: {}", why));
  }
  std::istringstream words(*told);
  std::string host;
  std::string secret;
  int port = 0;
  if (!(words >> host >> port >> secret) || port <= 0 || port > 65535)
    return Status(StatusCode::internal, "rank 0 published a malformed store address through PMIx");
  if ((secret == "-") != given.secret) {
    return Status(
        StatusCode::mismatch,
        fmt::format(
            "rank {} has {} key and rank 0 has {}; give SHOAL_JOB_KEY to all ranks (mpirun -x SHOAL_JOB_KEY) or to none",
            launch.rank, given.secret ? "a" : "no", given.secret ? "none" : "one"));
  }
  if (!given.secret) opened.key = {key_from_text(secret), true, true};
  return open(host, port);
}

#else

Result<OpenedStore> open_pmix_store(const Launch&, const JobKey&, std::chrono::steady_clock::time_point) {
  return Status(StatusCode::unsupported, fmt::format("mpirun, but this build has no PMIx; {}", kAdvice));
}

#endif

}  // namespace shoal
