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
            "host of rank 0, optionally with a port (node01:4711, [::1]:4711); overrides the launcher's value"},
    Setting{"SHOAL_MASTER_PORT", "", "port of rank 0's store; overrides the launcher's value"},
    Setting{"SHOAL_JOB_ID", "", "name of the job; a store refuses ranks of a job with another name"},
    Setting{"SHOAL_JOB_KEY", "", "secret of the job, 16 characters or more, the same on all ranks (made by shoal run)", true},
    Setting{"SHOAL_JOB_KEY_FILE", "", "file that holds the job key; must not be readable by other users"},
    Setting{"SHOAL_HOST_ADDRESS", "", "numeric address under which other hosts reach this host"},
    Setting{"SHOAL_SOCKET_IFNAME", "",
            "network interface for all traffic, for example eth0; with ucx, UCX_NET_DEVICES takes precedence; with ofi, "
            "SHOAL_RAILS names the devices"},
    Setting{"SHOAL_TIMEOUT", "300", "seconds until a call or the start-up fails"},
    Setting{
        "SHOAL_WARN_AFTER", "20",
        "seconds that a call or the start-up waits for other ranks before it names them in a line on standard error; repeated "
        "each time the wait has doubled"},
    Setting{"SHOAL_LOST_AFTER", "30",
            "seconds for which another host may be silent over TCP, for example with a pulled cable, before its ranks count as "
            "lost; 5 or more. A connection that recovers earlier continues"},
    Setting{"SHOAL_FLIGHT_RECORD", "",
            "folder for the flight records: each rank records its current call there, for shoal doctor; off: no record. "
            "Default: shoal-UID in XDG_RUNTIME_DIR or /tmp"},
    Setting{"SHOAL_ALGORITHM", "",
            "use this algorithm for every all_reduce instead of the Selector's choice (rank 0's value applies)"},
    Setting{"SHOAL_TRANSPORTS", "",
            "transports to use, best first: shm,tcp or tcp; shm,ofi or ofi (libfabric); shm,ucx or ucx (rank 0's value "
            "applies). Default: shm,tcp, or shm,ofi on hosts with EFA"},
    Setting{"SHOAL_OFI_PROVIDER", "",
            "libfabric's provider for the transport ofi, for example efa or tcp;ofi_rxm. Default: chosen by its features"},
    Setting{"SHOAL_OFI_LIBRARY", "libfabric.so.1", "libfabric for the transport ofi: a file, or a name that the loader finds"},
    Setting{"SHOAL_UCX_LIBRARY", "libucp.so.0", "UCX for the transport ucx: a file, or a name that the loader finds"},
    Setting{"SHOAL_RAILS", "",
            "network devices or numeric addresses of this host to use together, the same number on every rank, for example "
            "eth0,eth1: by ofi, and by tcp with SHOAL_SOCKETS_PER_PEER or more sockets"},
    Setting{"SHOAL_TILE_BYTES", "",
            "size of a tile, the largest piece that moves at once (rank 0's value applies); unset: 64K, between nodes 256K"},
    Setting{"SHOAL_LINK_MEMORY", "256M",
            "memory of a rank for the links that it uses inside its host, and as much for the buffers of its TCP links, 1M to "
            "1024G. Inside a host, beyond it further links get two tiles of buffer instead of up to 16; where even that is too "
            "much for all ranks of a host, tiles become smaller, down to 4K. A rank whose TCP links hold more returns buffers "
            "without data to the system within a second, and at once beyond twice the value (rank 0's value applies)"},
    Setting{"SHOAL_SOCKETS_PER_PEER", "1",
            "TCP connections to each peer, 1 to 16; use more where the network limits a single flow (rank 0's value applies)"},
    Setting{
        "SHOAL_CONNECT", "usual",
        "which TCP connections between ranks are made at start-up. all; usual: those that all_reduce, barrier and broadcast "
        "need; none. A call makes the others when it first needs them. ofi and ucx make all (rank 0's value applies)"},
    Setting{
        "SHOAL_INTEGRITY", "auto",
        "checksums of payloads between hosts. on: corrupted data is detected and retransmitted; off: no checksums; auto: on "
        "where they cost less than 3 % of the time on the wire as measured at start-up, up to about 2.4 Gbit/s; where nothing "
        "is measured, over tcp only, since other NICs check what they carry (rank 0's value applies)"},
    Setting{
        "SHOAL_COMPRESSION", "off",
        "lossless: floats travel over TCP with packed exponents, in 0.85 of the bytes (bfloat16: 0.7), and arrive bit for bit "
        "the same; auto: lossless where it costs less than 3 % of the time on the wire as measured at start-up, up to about "
        "2.4 Gbit/s; off: not compressed (rank 0's value applies)"},
    Setting{"SHOAL_ENCRYPTION", "off",
            "on: all TCP traffic is encrypted with keys derived from the job's key, which must be secret (SHOAL_JOB_KEY, "
            "SHOAL_JOB_KEY_FILE, or made by shoal run, or on one host by mpirun); off: only the traffic of rank 0's store is "
            "encrypted"},
    Setting{
        "SHOAL_SINGLE_COPY", "1",
        "direct copies between the memories of two processes of a host. 0: never, even where the system permits them; 1: for "
        "pieces larger than 128K only where they were measured at start-up to be faster; 2: for any size (rank 0's value "
        "applies)"},
    Setting{"SHOAL_CORES", "",
            "number of cores that the ranks of this host share, for example 0.5 where hosts are emulated. Default: as found"},
    Setting{"SHOAL_WAIT", "auto",
            "what a thread does while its call waits for other ranks. auto: it polls for some microseconds where each rank can "
            "have "
            "a core, yields for some tens, then sleeps; spin: it polls; yield: it yields to other threads; block: it sleeps at "
            "once. The progress thread sleeps while it has nothing to do"},
    Setting{"SHOAL_TUNING", "",
            "file of measured times, written by shoal tune, that the Selector prefers to its model (rank 0's value applies)"},
    Setting{"SHOAL_EXPLAIN", "0",
            "1: at the end rank 0 prints which algorithms ran, why, and their predicted and measured times"},
    Setting{
        "SHOAL_NUMERICS", "",
        "what the bits of floating-point sums depend on. Default: the class of the network (up to 1.6 Gbit/s, up to 70, up to "
        "700, above), so that they are the same in every run; repeatable: only the shape of the job, nothing is measured; "
        "strict: nothing, not even the placement of ranks; measured: the algorithm that is fastest by exact costs (rank 0's "
        "value applies)"},
    Setting{"SHOAL_INSTANCE_TYPE", "", "instance type, for example p5.48xlarge; overrides the detected type"},
    Setting{"SHOAL_SYSFS_ROOT", "/sys", "folder in which the kernel describes the machine's devices"},
    Setting{"SHOAL_METADATA_URL", "http://169.254.169.254",
            "metadata service of the instance, a numeric address; off: no requests. Used by shoal topology where the machine "
            "looks like EC2, never when a job starts"},
    Setting{"SHOAL_METADATA_TIMEOUT", "0.25", "seconds for all requests to the metadata service together"},
    Setting{
        "SHOAL_PROGRESS_CORES", "near",
        "core of a rank's progress thread. near: close to the NIC that the rank uses, if the topology is known and the job has "
        "the machine to itself; last: one of the last cores; off: any core; or a list such as 11,23: the i-th rank of the host "
        "takes the i-th core in ascending order. Where cores are scarce, only a list has an effect"},
    Setting{"SHOAL_PROGRESS_NICE", "0",
            "nice value of a rank's progress thread, -20 to 19. Below 0 the thread gets a core before computing threads, which "
            "needs CAP_SYS_NICE or a limit (ulimit -e); 0: that of the process"},
    Setting{"SHOAL_RANK_ORDER", "",
            "file with the output of DescribeInstanceTopology, by which shoal run --hosts makes nearby hosts neighbours; "
            "|COMMAND: the output of a command. See shoal run --rank-order"},
    Setting{"SHOAL_MAX_SMS", "8", "maximum number of multiprocessors of a CUDA device that shoal's kernels occupy, 1 to 1024"},
    Setting{
        "SHOAL_CUDA_TOGETHER", "auto",
        "1: kernels of ranks that share a CUDA device run at the same time, and may wait for each other; 0: they do not; auto: "
        "1 where one MPS server serves all of them (the same on all ranks)"},
    Setting{"SHOAL_CUDA_STAGING", "64M",
            "memory of a CUDA device that other ranks of the node read from, for each communicator (the same on all ranks)"},
    Setting{
        "SHOAL_OVERLAY", "1",
        "1: control messages between hosts go through one rank of each host; 0: each rank has connections with all ranks of "
        "other hosts (rank 0's value applies)"},
    Setting{"SHOAL_PROBE", "1",
            "0: do not measure the links at start-up; the cost model uses its defaults (rank 0's value applies)"},
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

// The bound avoids overflow when the time is added to the clock, which counts nanoseconds in 64 bits.
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

Result<std::uint64_t> bytes_setting(std::string_view name, std::uint64_t low, std::uint64_t high) {
  const std::string text = setting(name);
  const auto bytes = parse_bytes(text);
  if (bytes.ok() && *bytes >= low && *bytes <= high) return bytes;
  return bad(name, text, fmt::format("a size from {} to {}", format_bytes(low), format_bytes(high)));
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
