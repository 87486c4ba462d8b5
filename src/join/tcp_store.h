// The store that rank 0 serves over TCP, for callers that already have the job's key.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include <shoal/store.h>

#include "src/join/tcp_store_server.h"
#include "src/trust/proof.h"

namespace shoal {

/// Where rank 0 serves the store of a job.
struct StoreAddress {
  std::string host;
  int port = 0;
  std::string job;
  Key key{};
};

/// What the launcher says of a rank and of those that it has started on the same host.
struct LocalRanks {
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 0;  ///< 0: unknown
};

/// Opens the store. `server`: on rank 0, where the store is served already; else null. `meets`: the ranks of a host meet at
/// one of them, the keeper, which passes their values on (store_relay.h). They do so by a Unix socket whose name is derived
/// from the job's key, so it must be secret. Where they cannot meet, each connects to rank 0. Errors: those of
/// make_tcp_store().
Result<std::unique_ptr<Store>> open_tcp_store(std::unique_ptr<TcpStoreServer> server, const StoreAddress& address,
                                              const LocalRanks& ranks, bool meets,
                                              std::chrono::steady_clock::time_point deadline);

/// As above; rank 0 (`is_server`) serves the store.
Result<std::unique_ptr<Store>> make_tcp_store(const StoreAddress& address, bool is_server, const LocalRanks& ranks, bool meets,
                                              std::chrono::steady_clock::time_point deadline);

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
