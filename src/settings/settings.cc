#include "src/settings/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include <fmt/format.h>

namespace shoal {
namespace {

constexpr std::array kSettings{
    Setting{"SHOAL_RANK", "", "rank of this process (set by shoal run)"},
    Setting{"SHOAL_SIZE", "", "number of ranks (set by shoal run)"},
    Setting{"SHOAL_MASTER_ADDR", "",
            "host of rank 0, perhaps with a port (node01:4711, [::1]:4711); wins over what the launcher says"},
    Setting{"SHOAL_MASTER_PORT", "", "port of rank 0's store; wins over what the launcher says"},
    Setting{"SHOAL_JOB_ID", "", "name of the job; two jobs that meet on one port refuse each other"},
    Setting{"SHOAL_JOB_KEY", "", "secret of the job, 16 characters or more, the same on all ranks (made by shoal run)", true},
    Setting{"SHOAL_JOB_KEY_FILE", "", "file that holds it instead; not for every user's eyes"},
    Setting{"SHOAL_HOST_ADDRESS", "", "numeric address of this host that other hosts reach"},
    Setting{"SHOAL_SOCKET_IFNAME", "",
            "network interface for all traffic, for example eth0; over ucx UCX_NET_DEVICES comes first, and cards over ofi are "
            "named by SHOAL_RAILS"},
    Setting{"SHOAL_TIMEOUT", "300", "seconds until a call or the start-up fails"},
    Setting{
        "SHOAL_WARN_AFTER", "20",
        "seconds that a call or the start-up waits for other ranks before a line on standard error says for whom; again each "
        "time that doubles"},
    Setting{"SHOAL_LOST_AFTER", "30",
            "seconds for which another host may be silent over TCP, as when a cable is pulled, before its ranks are lost; 5 or "
            "more. Until then whatever comes back goes on"},
    Setting{"SHOAL_LEDGER", "",
            "folder in which each rank writes down which call it is in, for shoal doctor; off: nowhere. Default: shoal-UID in "
            "XDG_RUNTIME_DIR or /tmp"},
    Setting{"SHOAL_ALGORITHM", "",
            "use this algorithm for every all_reduce instead of the Selector's choice (rank 0's counts)"},
    Setting{"SHOAL_TRANSPORTS", "",
            "transports to use, best first: shm,tcp or tcp; shm,ofi or ofi (libfabric); shm,ucx or ucx (rank 0's counts). "
            "Default: shm,tcp, or shm,ofi where there is EFA"},
    Setting{"SHOAL_OFI_PROVIDER", "",
            "libfabric's provider for the transport ofi, for example efa or tcp;ofi_rxm. Default: by what it can do"},
    Setting{"SHOAL_OFI_LIBRARY", "libfabric.so.1", "libfabric for the transport ofi: a file, or a name that the loader finds"},
    Setting{"SHOAL_UCX_LIBRARY", "libucp.so.0", "UCX for the transport ucx, likewise"},
    Setting{
        "SHOAL_RAILS", "",
        "network devices or numeric addresses of this host to use together, as many on every rank, for example eth0,eth1: by "
        "ofi, and by tcp with SHOAL_SOCKETS_PER_PEER or more sockets"},
    Setting{"SHOAL_TILE_BYTES", "", "largest piece that moves at once (rank 0's counts); unset: 64K, between nodes 256K"},
    Setting{"SHOAL_SOCKETS_PER_PEER", "1",
            "TCP connections to each peer, 1 to 16: more where the network limits a single flow (rank 0's counts)"},
    Setting{
        "SHOAL_INTEGRITY", "auto",
        "on: payloads between hosts have check sums, and what was changed on the way is sent again; off: not; auto: on "
        "where they cost less than 3 % of the time on the wire as measured at start-up: up to about 2.4 Gbit/s; where nothing "
        "is measured over tcp alone, since cards check what they carry (rank 0's counts)"},
    Setting{
        "SHOAL_COMPRESSION", "off",
        "lossless: floats travel over TCP with their exponents packed, bit for bit the same, in 0.85 of the bytes (bfloat16: "
        "0.7); auto: where that costs less than 3 % of the time on the wire as measured at start-up: up to about 2.4 Gbit/s; "
        "off: as they are (rank 0's counts)"},
    Setting{
        "SHOAL_ENCRYPTION", "off",
        "on: all that moves over TCP is encrypted with keys made of the job's key, which must be a secret one (SHOAL_JOB_KEY, "
        "SHOAL_JOB_KEY_FILE, or made by shoal run, or on one host by mpirun); off: nothing is, but what goes through rank 0's "
        "store"},
    Setting{
        "SHOAL_SINGLE_COPY", "1",
        "0: never copy straight between the memories of two processes of a host, even where the system permits it; 1: what is "
        "larger than 128K only where that was measured at start-up to be faster; 2: whatever its size (rank 0's counts)"},
    Setting{"SHOAL_CORES", "",
            "cores that the ranks of this host have together, for example 0.5 where hosts are emulated; as found otherwise"},
    Setting{"SHOAL_TUNING", "",
            "file of measured times, made by shoal tune, that the Selector prefers to its model (rank 0's counts)"},
    Setting{"SHOAL_EXPLAIN", "0", "1: rank 0 says at the end which algorithms ran, why, and predicted against measured times"},
    Setting{
        "SHOAL_NUMERICS", "",
        "the bits of floating-point sums. Default: the same in every run, by the class of the network (up to 1.6 Gbit/s, up to "
        "70, up to 700, above); repeatable: by the shape of the job alone, nothing is measured; strict: the same wherever the "
        "ranks are placed, too; measured: those of what is fastest by exact costs (rank 0's counts)"},
    Setting{"SHOAL_INSTANCE_TYPE", "",
            "instance type, for example p5.48xlarge, where what the machine says of itself is wrong"},
    Setting{"SHOAL_SYSFS_ROOT", "/sys", "where the kernel describes the machine's devices"},
    Setting{"SHOAL_METADATA_URL", "http://169.254.169.254",
            "metadata service of the instance, a numeric address; off: never ask. Asked by shoal topology where something says "
            "that this is EC2, never when a job starts"},
    Setting{"SHOAL_METADATA_TIMEOUT", "0.25", "seconds for all that it is asked"},
    Setting{
        "SHOAL_PROGRESS_CORES", "near",
        "core of a rank's communication thread: near: close to the NIC that the rank uses, where the machine tells and is all "
        "the ranks' own; last: one of the last; off: any; or a list such as 11,23, of which, ascending, the i-th rank of the "
        "host takes the i-th. None is taken where cores are short, but for a list"},
    Setting{"SHOAL_PROGRESS_NICE", "0",
            "nice value that a rank's communication thread gives itself, -20 to 19; below 0 it gets a core before threads that "
            "compute, which needs CAP_SYS_NICE or a limit (ulimit -e); 0: that of the process"},
    Setting{"SHOAL_RANK_ORDER", "",
            "answer of DescribeInstanceTopology, a file, by which shoal run --hosts puts close hosts next to each other; with "
            "|COMMAND what a command prints. See shoal run --rank-order"},
    Setting{"SHOAL_MAX_SMS", "8", "multiprocessors of a CUDA device that shoal's kernels occupy at most, 1 to 1024"},
    Setting{
        "SHOAL_CUDA_TOGETHER", "auto",
        "1: kernels of ranks that share a CUDA device run at the same time, and may wait for each other; 0: they do not; auto: "
        "where one MPS server has them all (the same on all ranks)"},
    Setting{"SHOAL_CUDA_STAGING", "64M",
            "memory of a CUDA device that other ranks of the node read from, for each communicator (the same on all ranks)"},
    Setting{"SHOAL_PROBE", "1", "0: do not measure the links at start-up; the cost model uses its defaults (rank 0's counts)"},
};

constexpr double kMaxSeconds = 1e9;

Status bad(std::string_view name, std::string_view value, const std::string& wanted) {
  return {StatusCode::invalid_argument, fmt::format("{}='{}' is not {}", name, value, wanted)};
}

}  // namespace

std::span<const Setting> settings() { return kSettings; }

std::string setting(std::string_view name) {
  for (const Setting& known : kSettings) {
    if (name != known.name) continue;
    const char* value = std::getenv(known.name);
    return value == nullptr || *value == '\0' ? known.fallback : value;
  }
  fmt::print(stderr, "shoal: {} is not in the table of settings\n", name);
  std::abort();
}

Result<std::int64_t> integer_setting(std::string_view name, std::int64_t low, std::int64_t high) {
  const std::string text = setting(name);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return bad(name, text, fmt::format("a whole number from {} to {}", low, high));
  }
  return value;
}

Result<double> positive_setting(std::string_view name, double high, std::string_view unit) {
  const std::string text = setting(name);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(value > 0) || value > high) {
    return bad(name, text, fmt::format("a positive number of {}, at most {}", unit, high));
  }
  return value;
}

// The bound keeps sums with the clock, which counts nanoseconds in 64 bits, within their range.
Result<std::chrono::milliseconds> time_setting(std::string_view name) {
  const auto seconds = positive_setting(name, kMaxSeconds, "seconds");
  if (!seconds.ok()) return seconds.status();
  return std::chrono::milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(*seconds * 1000)));
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const auto refuse = [&] {
    return Status(StatusCode::invalid_argument,
                  fmt::format("'{}' is not a size: write 65536, 64K, 64KiB, 4MiB or 1G (powers of 1024)", text));
  };
  if (error != std::errc()) return refuse();
  int shift = -1;
  if (unit.empty() || unit == "B") shift = 0;
  if (unit == "K" || unit == "k" || unit == "KiB") shift = 10;
  if (unit == "M" || unit == "MiB") shift = 20;
  if (unit == "G" || unit == "GiB") shift = 30;
  if (shift < 0 || value > (~std::uint64_t{0} >> shift)) return refuse();
  return value << shift;
}

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 4> kUnits{"bytes", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (unit + 1 < kUnits.size() && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

}  // namespace shoal
