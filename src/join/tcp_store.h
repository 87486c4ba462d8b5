// The store that rank 0 serves over TCP, for callers that already have the job's key.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include <shoal/store.h>

#include "src/trust/proof.h"

namespace shoal {

/// make_tcp_store() with this key instead of that of the settings.
Result<std::unique_ptr<Store>> make_tcp_store(const std::string& host, int port, bool is_server, std::string_view job,
                                              const Key& key, std::chrono::steady_clock::time_point deadline);

struct ServedStore {
  std::unique_ptr<Store> store;
  int port;
};
/// The server's store, on a free port, which no other process can take in between.
Result<ServedStore> serve_tcp_store(const std::string& host, std::string_view job, const Key& key,
                                    std::chrono::steady_clock::time_point deadline);

}  // namespace shoal
