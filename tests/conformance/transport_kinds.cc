#include "tests/conformance/transport_kinds.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "transports/loopback/loopback.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"

namespace shoal::conformance {

namespace {

/// A number of its own for every group of this test run. Taken before ranks are forked, so that they agree.
std::uint64_t next_job() {
  static std::uint64_t next = 0;
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return static_cast<std::uint64_t>(now) + ++next;
}

MakeEnd loopback_group(int ranks, const LoopbackOptions& options) {
  Result<LoopbackHub> hub = LoopbackHub::create(ranks, options);
  EXPECT_TRUE(hub.ok()) << hub.status().to_string();
  auto shared = std::make_shared<LoopbackHub>(std::move(hub).value());
  return [shared](int rank) { return shared->make_transport(rank); };
}

MakeEnd shm_group(int) {
  return [job = next_job()](int rank) {
    ShmOptions options;
    options.rank = rank;
    options.job_id = job;
    options.tile_bytes = 16 * 1024;
    options.slots = 4;
    return make_shm_transport(options);
  };
}

MakeEnd tcp_group(int ranks, bool integrity, bool encryption) {
  return [job = next_job(), ranks, integrity, encryption](int rank) {
    TcpOptions options;
    options.interface_or_address = "127.0.0.1";
    options.tile_bytes = 16 * 1024;
    options.integrity = integrity;
    options.encryption = encryption;
    options.job_id = job;
    options.rank = rank;
    options.size = ranks;
    return make_tcp_transport(options);
  };
}

}  // namespace

std::vector<TransportKind> transport_kinds() {
  LoopbackOptions plain;
  plain.window_bytes = 4096;
  plain.common_bytes = 4096;
  plain.tile_bytes = 16 * 1024;
  plain.capacity_tiles = 4;
  LoopbackOptions faulty = plain;
  faulty.seed = 7;
  faulty.mean_delay = std::chrono::microseconds(20);
  faulty.refuse_probability = 0.2;
  faulty.late_copy = true;
  return {
      {"loopback", "loopback", false, true, false, false, [plain](int ranks) { return loopback_group(ranks, plain); }},
      {"loopback_faulty", "loopback", false, true, true, false, [faulty](int ranks) { return loopback_group(ranks, faulty); }},
      {"shm_threads", "shm", false, true, false, false, shm_group},
      {"shm_processes", "shm", true, true, false, false, shm_group},
      {"shm_shared_threads", "shm", false, true, false, true, shm_group},
      {"shm_shared_processes", "shm", true, true, false, true, shm_group},
      {"tcp_threads", "tcp", false, false, false, false, [](int ranks) { return tcp_group(ranks, true, false); }},
      {"tcp_processes", "tcp", true, false, false, false, [](int ranks) { return tcp_group(ranks, false, false); }},
      {"tcp_encrypted_threads", "tcp", false, false, false, false, [](int ranks) { return tcp_group(ranks, false, true); }},
  };
}

}  // namespace shoal::conformance
