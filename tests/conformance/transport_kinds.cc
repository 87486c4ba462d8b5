#include "tests/conformance/transport_kinds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "tests/ofi/faulty_fabric.h"
#include "transports/loopback/loopback.h"
#include "transports/ofi/libfabric.h"
#include "transports/ofi/ofi.h"
#include "transports/shm/arena.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"
#include "transports/ucx/ucx.h"

namespace shoal::conformance {

namespace {

/// A job number for each group of this test run. Taken before the ranks are forked, so that all ranks use the same one.
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

MakeEnd tcp_group(int ranks, bool integrity, bool encryption, bool packing = false) {
  return [job = next_job(), ranks, integrity, encryption, packing](int rank) {
    TcpOptions options;
    options.interface_or_address = "127.0.0.1";
    options.tile_bytes = 16 * 1024;
    options.lend_from_bytes = 1;
    options.integrity = integrity;
    options.encryption = encryption;
    options.packing = packing;
    options.job_id = job;
    options.rank = rank;
    options.size = ranks;
    return make_tcp_transport(options);
  };
}

TransportKind on_request(const std::string& label, bool processes) {
  TransportKind kind{label, "tcp", processes, false, false, false, [](int ranks) { return tcp_group(ranks, true, false); }};
  kind.on_request = true;
  return kind;
}

/// Sets what the kinds over a vendor library have in common: one size of group and fewer tiles, because there are many such
/// kinds and each tile costs several system calls. `probe` returns why the library cannot be used. It is not called under
/// ThreadSanitizer, which does not see how the threads of such a library synchronize.
template <class Probe>
TransportKind over_library(TransportKind kind, const Probe& probe) {
  kind.sizes = {3};
  kind.slowness = 10;
#ifdef SHOAL_TSAN
  kind.unavailable = "the library below is not built for the sanitizer";
  static_cast<void>(probe);
#elif defined(SHOAL_ASAN)
  const bool wanted = std::getenv("SHOAL_TEST_LIBRARIES") != nullptr;
  kind.unavailable = wanted ? probe() : "it takes too long with the sanitizer: set SHOAL_TEST_LIBRARIES=1, as tests/long does";
#else
  kind.unavailable = probe();
#endif
  return kind;
}

/// `write_from` 0: all tiles are sent, none is written.
TransportKind ofi_kind(const std::string& label, bool processes, const std::string& provider, const std::string& device,
                       std::size_t write_from, const rails::testing::Faults* faults = nullptr, bool lent = false,
                       bool integrity = false) {
  const auto make_group = [=](int ranks) -> MakeEnd {
    std::shared_ptr<rails::testing::FaultState> state;
    if (faults != nullptr) {
      state = std::make_shared<rails::testing::FaultState>(*faults);
      state->start();
    }
    return [=, job = next_job()](int rank) {
      OfiOptions options;
      if (state != nullptr) {
        const auto inner = ofi::libfabric();
        if (!inner.ok()) return Result<std::unique_ptr<Transport>>(inner.status());
        options.fabric = std::make_shared<rails::testing::FaultyFabric>(*inner, state, rank);
      }
      if (lent) {
        shm::Arena* const arena = shm::Arena::instance();
        options.lasting_memory = {arena->base(), arena->size_bytes()};
        options.lasting_changes = [arena] { return arena->frees(); };
        options.lend_from_bytes = 1;
      }
      options.provider = provider;
      if (!device.empty()) options.devices = {device};
      options.tile_bytes = 16 * 1024;
      options.tiles_per_peer = 4;
      options.write_from_bytes = write_from;
      options.integrity = integrity;
      options.job_id = job;
      options.rank = rank;
      options.size = ranks;
      return make_ofi_transport(options);
    };
  };
  const auto probe = [&]() -> std::string {
    // Also loads libfabric, which keeps descriptors for the life of the process.
    static const auto providers = ofi_providers();
    if (!providers.ok()) return providers.status().message();
    const bool present =
        std::any_of(providers->begin(), providers->end(), [&](const auto& each) { return each.name == provider; });
    return present ? "" : fmt::format("libfabric has no provider {} here", provider);
  };
  return over_library({label, "ofi", processes, false, false, lent, make_group}, probe);
}

/// `wires`: the UCX transports (UCX_TLS) that the ranks may use, for processes only; empty: UCX chooses.
TransportKind ucx_kind(const std::string& label, bool processes, const std::string& wires = "", bool integrity = false) {
  const auto make_group = [wires, integrity](int ranks) -> MakeEnd {
    return [=, job = next_job()](int rank) {
      if (!wires.empty()) {
        // Set in the process of this rank alone: UCX reads these variables when a worker is made.
        ::setenv("UCX_TLS", wires.c_str(), 1);
        ::setenv("UCX_NET_DEVICES", wires == "tcp" ? "lo" : "all", 1);
        // Room for two tiles of 16 KiB: further tiles wait in the sender's memory until the receiver makes room.
        for (const char* const name : {"UCX_POSIX_FIFO_SIZE", "UCX_SYSV_FIFO_SIZE"}) ::setenv(name, "4", 1);
      }
      UcxOptions options;
      options.tile_bytes = 16 * 1024;
      options.tiles_per_peer = 4;
      options.integrity = integrity;
      options.job_id = job;
      options.rank = rank;
      options.size = ranks;
      return make_ucx_transport(options);
    };
  };
  const auto probe = [] {
#ifdef SHOAL_ASAN
    ::setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);  // UCX would otherwise intercept madvise
#endif
    static const auto version = ucx_version();
    return version.ok() ? std::string() : version.status().message();
  };
  return over_library({label, "ucx", processes, false, false, false, make_group}, probe);
}

}  // namespace

std::vector<TransportKind> transport_kinds() {
  // Behaviour that EFA permits, over sockets: see tests/ofi.
  static const rails::testing::Faults disorder{.seed = 11, .show = 0.4, .blank = 0.2, .again = 0.05, .storm = 5};
  static const rails::testing::Faults segments{
      .seed = 12, .show = 0.5, .again = 0.05, .storm = 3, .segment_bytes = 8192, .twice = 0.2};
  static const rails::testing::Faults small_messages{.seed = 13, .show = 0.5, .max_message_bytes = 8192, .no_writes = true};
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
      {"tcp_packed_threads", "tcp", false, false, false, false, [](int ranks) { return tcp_group(ranks, true, false, true); }},
      {"tcp_packed_processes", "tcp", true, false, false, false,
       [](int ranks) { return tcp_group(ranks, false, false, true); }},
      on_request("tcp_on_request_threads", false),
      on_request("tcp_on_request_processes", true),
      {"tcp_encrypted_threads", "tcp", false, false, false, false, [](int ranks) { return tcp_group(ranks, false, true); }},
      ofi_kind("ofi_rxm_sent_threads", false, "tcp;ofi_rxm", "127.0.0.1", 0),
      ofi_kind("ofi_rxm_sent_processes", true, "tcp;ofi_rxm", "127.0.0.1", 0),
      ofi_kind("ofi_net_written_processes", true, "net", "127.0.0.1", 1024),
      ofi_kind("ofi_rxd_sent_processes", true, "udp;ofi_rxd", "127.0.0.1", 0),
      ofi_kind("ofi_shm_sent_processes", true, "shm", "", 0),
      ofi_kind("ofi_shm_written_processes", true, "shm", "", 1024),
      ofi_kind("ofi_net_lent_processes", true, "net", "127.0.0.1", 1024, nullptr, true),
      ofi_kind("ofi_disorder_sent_processes", true, "tcp;ofi_rxm", "127.0.0.1", 0, &disorder),
      ofi_kind("ofi_segments_written_threads", false, "net", "127.0.0.1", 1024, &segments),
      ofi_kind("ofi_small_messages_processes", true, "tcp;ofi_rxm", "127.0.0.1", 1024, &small_messages),
      ofi_kind("ofi_summed_written_processes", true, "net", "127.0.0.1", 1024, &disorder, false, true),
      ucx_kind("ucx_threads", false),
      ucx_kind("ucx_processes", true),
      ucx_kind("ucx_tcp_processes", true, "tcp"),
      ucx_kind("ucx_shm_processes", true, "shm"),
      ucx_kind("ucx_summed_processes", true, "shm", true),
  };
}

}  // namespace shoal::conformance
