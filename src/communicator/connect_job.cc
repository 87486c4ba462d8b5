#include "src/communicator/connect_job.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "src/algorithms/algorithm.h"
#include "src/base/deadline.h"
#include "src/base/text.h"
#include "src/communicator/link_room.h"
#include "src/communicator/overlay/overlay_control.h"
#include "src/communicator/probe.h"
#include "src/communicator/tuning_file.h"
#include "src/communicator/usual_links.h"
#include "src/join/socket.h"
#include "src/join/startup_exchange.h"
#include "src/join/startup_watch.h"
#include "src/join/text_list.h"
#include "src/machine/cores.h"
#include "src/machine/placing.h"
#include "src/progress/progress_thread.h"
#include "src/progress/remote_control.h"
#include "src/settings/settings.h"
#include "transports/ofi/ofi.h"
#include "transports/shm/arena.h"
#include "transports/shm/host_memory.h"
#include "transports/shm/rendezvous.h"
#include "transports/shm/shm.h"
#include "transports/tcp/keeper_sockets.h"
#include "transports/tcp/tcp.h"
#include "transports/ucx/ucx.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kControlTileBytes = 4096;
constexpr std::size_t kNetworkTileBytes = 256 << 10;
constexpr std::size_t kTcpRoomBytes = 512 << 10;  // receive buffer of each socket
constexpr std::size_t kRailsRoomBytes = 1 << 20;  // in flight to a peer over ofi or ucx

// Rank 0's decisions: the configuration that it publishes, and what only rank 0 needs.
struct Decision {
  JobConfig config;
  TuningTable table;
  bool single_copy_always = false;
};

/// The value of `name`, which may be empty if the setting has no default. Errors: invalid_argument for a value not in `known`.
Result<std::string> setting_among(const char* name, std::initializer_list<std::string_view> known) {
  std::string value = setting(name);
  if (value.empty() || std::ranges::find(known, value) != known.end()) return value;
  return Status(StatusCode::invalid_argument, fmt::format("{}='{}' is not one of {}", name, value, fmt::join(known, ", ")));
}

/// Sets config.use_shm and config.network.
Status choose_transports(const CommunicatorOptions& options, JobConfig& config) {
  if (options.transports.empty()) {
    if (ofi_has_efa(setting("SHOAL_SYSFS_ROOT"))) config.network = Network::ofi;
    return {};
  }
  config.use_shm = false;
  config.network = Network::none;
  for (const std::string& name : split_at_commas(options.transports)) {
    Network network = Network::none;
    for (const Network known : {Network::tcp, Network::ofi, Network::ucx}) {
      if (name == to_string(known)) network = known;
    }
    if (name != "shm" && network == Network::none)
      return {StatusCode::invalid_argument, fmt::format("unknown transport '{}'; known: shm tcp ofi ucx", name)};
    if (network != Network::none && config.network != Network::none) {
      return {StatusCode::invalid_argument, fmt::format("transports '{}': give only one of tcp, ofi, ucx", options.transports)};
    }
    config.use_shm |= name == "shm";
    if (network != Network::none) config.network = network;
  }
  return {};
}

/// Sets config.integrity, config.encryption and config.compression. May set config.network to tcp if the user has not chosen
/// it.
Status choose_protection(const CommunicatorOptions& options, JobConfig& config) {
  const auto integrity = setting_among("SHOAL_INTEGRITY", {"auto", "on", "off"});
  if (!integrity.ok()) return integrity.status();
  if (*integrity == "on") config.integrity = Integrity::on;
  if (*integrity == "auto" && tcp_check_sums_are_fast()) config.integrity = Integrity::measured;
  const auto encryption = setting_among("SHOAL_ENCRYPTION", {"on", "off"});
  if (!encryption.ok()) return encryption.status();
  config.encryption = *encryption == "on";
  const auto compression = setting_among("SHOAL_COMPRESSION", {"off", "lossless", "auto"});
  if (!compression.ok()) return compression.status();
  if (*compression == "lossless") config.compression = Compression::lossless;
  if (*compression == "auto" && tcp_packing_is_fast()) config.compression = Compression::measured;
  const char* const needs_tcp = config.encryption            ? "SHOAL_ENCRYPTION=on"
                                : *compression == "lossless" ? "SHOAL_COMPRESSION=lossless"
                                                             : nullptr;
  if (config.network == Network::tcp || config.network == Network::none || needs_tcp == nullptr) return {};
  if (!options.transports.empty()) {
    return {StatusCode::unsupported, fmt::format("transport {} can neither encrypt nor compress; use tcp, or remove {}",
                                                 to_string(config.network), needs_tcp)};
  }
  config.network = Network::tcp;
  return {};
}

/// Sets config.probe and config.numerics.
Status choose_numerics(JobConfig& config) {
  const auto probe = integer_setting("SHOAL_PROBE", 0, 1);
  if (!probe.ok()) return probe.status();
  config.probe = *probe == 1;
  const auto overlay = integer_setting("SHOAL_OVERLAY", 0, 1);
  if (!overlay.ok()) return overlay.status();
  config.overlay = *overlay == 1;
  const auto numerics = setting_among("SHOAL_NUMERICS", {"measured", "repeatable", "strict"});
  if (!numerics.ok()) return numerics.status();
  if (*numerics == "measured") config.numerics = Numerics::measured;
  if (*numerics == "repeatable") config.numerics = Numerics::repeatable;
  if (*numerics == "strict") config.numerics = Numerics::strict;
  // Measurements differ from run to run, and so would choices that depend on them.
  if (config.numerics == Numerics::repeatable || config.numerics == Numerics::strict) config.probe = false;
  return {};
}

Result<Decision> decide(const CommunicatorOptions& options) {
  Decision decision;
  JobConfig& config = decision.config;
  config.salt = to_hex(random_key());
  config.job_id = std::random_device{}() | (static_cast<std::uint64_t>(std::random_device{}()) << 32);
  config.algorithm = options.algorithm;
  if (!config.algorithm.empty()) {
    if (const auto known = find_algorithm(config.algorithm); !known.ok()) return known.status();
  }
  if (Status status = choose_transports(options, config); !status.ok()) return status;
  const auto sockets = integer_setting("SHOAL_SOCKETS_PER_PEER", 1, 16);
  if (!sockets.ok()) return sockets.status();
  config.sockets_per_peer = static_cast<int>(*sockets);
  const auto connect = setting_among("SHOAL_CONNECT", {"all", "usual", "none"});
  if (!connect.ok()) return connect.status();
  if (*connect == "usual") config.connect = ConnectAtStart::usual;
  if (*connect == "none") config.connect = ConnectAtStart::none;
  if (Status status = choose_protection(options, config); !status.ok()) return status;
  const auto link_memory = bytes_setting("SHOAL_LINK_MEMORY", kLeastLinkMemory, kMostLinkMemory);
  if (!link_memory.ok()) return link_memory.status();
  config.link_memory_bytes = *link_memory;
  const auto single_copy = integer_setting("SHOAL_SINGLE_COPY", 0, 2);
  if (!single_copy.ok()) return single_copy.status();
  config.single_copy = *single_copy > 0;
  decision.single_copy_always = *single_copy == 2;
  if (Status status = choose_numerics(config); !status.ok()) return status;
  config.network_tile_bytes = kNetworkTileBytes;
  if (const std::string wanted = setting("SHOAL_TILE_BYTES"); !wanted.empty()) {
    const auto tile = parse_bytes(wanted);
    if (!tile.ok() || *tile < kLeastTileBytes || *tile > (8 << 20) || *tile % kLeastTileBytes != 0) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("SHOAL_TILE_BYTES='{}' is not a multiple of 4K from 4K to 8M", wanted));
    }
    config.tile_bytes = config.network_tile_bytes = *tile;
  }
  // Only rank 0 prints the report, but a malformed value fails all ranks.
  if (const auto explains = integer_setting("SHOAL_EXPLAIN", 0, 1); !explains.ok()) return explains.status();
  if (const std::string path = setting("SHOAL_TUNING"); !path.empty()) {
    auto table = read_tuning_file(path);
    if (!table.ok()) return table.status();
    config.tuned = true;
    decision.table = std::move(table).value();
  }
  return decision;
}

Topology topology_from(const std::vector<std::string>& identities) {
  Topology topology;
  std::map<std::string, int> nodes;
  for (const std::string& identity : identities) {
    topology.node_of_rank.push_back(nodes.try_emplace(identity, static_cast<int>(nodes.size())).first->second);
  }
  return topology;
}

// A transport during set-up, and the peers that it connects.
struct TransportSetup {
  std::unique_ptr<Transport> transport;
  std::vector<int> peers;
  std::string_view name;  ///< for messages
};

Result<std::vector<std::unique_ptr<Link>>> connect(TransportSetup& setup, const std::vector<std::string>& addresses,
                                                   ConnectDeadline time_limit) {
  std::vector<std::string> theirs;
  startup_waits_for(fmt::format("connections with {} ranks ({})", setup.peers.size(), setup.name));
  for (const int peer : setup.peers) theirs.push_back(addresses[static_cast<std::size_t>(peer)]);
  return setup.transport->connect(setup.peers, theirs, std::move(time_limit));
}

// Control and data links must not be confused with each other: they differ in their job number (`salt`) and in their key.
TcpOptions tcp_options(const JobConfig& config, const Key& links, milliseconds lost_after, int rank, int size,
                       std::string_view role, std::uint64_t salt) {
  TcpOptions options;
  options.lost_after = lost_after;
  options.interface_or_address =
      setting("SHOAL_HOST_ADDRESS").empty() ? setting("SHOAL_SOCKET_IFNAME") : host_address_setting();
  options.sockets_per_peer = config.sockets_per_peer;
  options.tile_bytes = config.network_tile_bytes;
  options.integrity = config.integrity == Integrity::on;
  options.encryption = config.encryption;
  options.job_id = config.job_id ^ salt;
  options.tiles_per_socket = std::clamp<std::size_t>(kTcpRoomBytes / options.tile_bytes, 2, 64);
  options.link_memory_bytes = config.link_memory_bytes;
  options.key = derive_key(links, role);
  options.rank = rank;
  options.size = size;
  return options;
}

/// One step for several texts of each rank: for each rank those that it gave as `mine`.
Result<std::vector<std::vector<std::string>>> gather_texts(StartupExchange& exchange, std::string_view name,
                                                           const std::vector<std::string>& mine) {
  const auto all = exchange.all_gather(name, join_texts(mine));
  if (!all.ok()) return all.status();
  std::vector<std::vector<std::string>> found;
  for (const std::string& joined : *all) {
    auto texts = split_texts(joined, mine.size());
    if (!texts) {
      return Status(StatusCode::internal,
                    fmt::format("startup (step '{}'): the value of rank {} is malformed", name, found.size()));
    }
    found.push_back(*std::move(texts));
  }
  return found;
}

// How many of its NICs this rank may use: both ends of a link need the same number of rails, and a host may lack a NIC. A rank
// that publishes 0 sets no limit: it does not know its NICs, or the user has named them.
Result<std::size_t> agree_on_rails(StartupExchange& exchange, std::size_t cards) {
  const auto all = exchange.all_gather("cards", std::to_string(cards));
  if (!all.ok()) return all.status();
  for (const std::string& text : *all) {
    const auto theirs = parse_bytes(text);
    if (!theirs.ok()) return Status(StatusCode::internal, fmt::format("startup: '{}' is not a number of NICs", text));
    if (*theirs > 0) cards = std::min<std::size_t>(cards, *theirs);
  }
  return cards;
}

// The transport for data between nodes. `cards`: names of the NICs that this rank should use.
Result<std::unique_ptr<Transport>> make_network(const JobConfig& config, const Key& links, milliseconds lost_after, int rank,
                                                const Topology& topology, const std::vector<std::string>& cards) {
  TcpOptions as_tcp = tcp_options(config, links, lost_after, rank, topology.ranks(), "data", 0);
  const auto fill = [&](rails::Options& options) {
    options.tile_bytes = config.tile_bytes;  // without byte streams, more tiles must be in flight
    options.tiles_per_peer = std::clamp<std::size_t>(kRailsRoomBytes / options.tile_bytes, 4, 64);
    options.integrity = as_tcp.integrity;
    // Of the user's memory only that of mem_alloc() is known to stay mapped.
    if (shm::Arena* const arena = shm::Arena::instance(); arena != nullptr) {
      options.lasting_memory = {arena->base(), arena->size_bytes()};
      options.lasting_changes = [arena] { return arena->frees(); };
    }
    options.job_id = as_tcp.job_id;
    options.key = as_tcp.key;
    options.rank = rank;
    options.size = topology.ranks();
  };
  switch (config.network) {
    case Network::ofi: {
      OfiOptions options;
      fill(options);
      options.provider = setting("SHOAL_OFI_PROVIDER");
      if (const std::string rails = setting("SHOAL_RAILS"); !rails.empty()) options.devices = split_at_commas(rails);
      options.near = as_tcp.interface_or_address;
      options.cards = cards;
      options.share = topology.local_rank(rank);
      options.shares = static_cast<int>(topology.ranks_of_node(topology.node_of_rank[static_cast<std::size_t>(rank)]).size());
      return make_ofi_transport(options);
    }
    case Network::ucx: {
      UcxOptions options;
      fill(options);
      if (setting("SHOAL_RAILS").empty()) options.near = as_tcp.interface_or_address;
      return make_ucx_transport(options);
    }
    case Network::tcp:
    case Network::none:
      break;
  }
  if (const std::string rails = setting("SHOAL_RAILS"); !rails.empty()) {
    as_tcp.rails = split_at_commas(rails);
    as_tcp.sockets_per_peer = std::max(as_tcp.sockets_per_peer, static_cast<int>(as_tcp.rails.size()));
  }
  return make_tcp_transport(as_tcp);
}

Result<WaitPolicy> wait_policy() {
  const std::string wanted = setting("SHOAL_WAIT");
  if (wanted == "auto") return WaitPolicy::automatic;
  if (wanted == "spin") return WaitPolicy::spin;
  if (wanted == "yield") return WaitPolicy::yield;
  if (wanted == "block") return WaitPolicy::block;
  return Status(StatusCode::invalid_argument, fmt::format("SHOAL_WAIT='{}' is not auto, spin, yield or block", wanted));
}

Result<std::int64_t> progress_nice() { return integer_setting("SHOAL_PROGRESS_NICE", -20, 19); }

Result<std::shared_ptr<Executor>> make_executor(ProgressEngineParts parts, const std::vector<int>& progress_cores,
                                                int local_size) {
  const auto nice = progress_nice();
  if (!nice.ok()) return nice.status();
  const bool spare_cores = parts.cores >= 2 * local_size && parts.wait != WaitPolicy::block;
  auto engine = std::make_shared<ProgressEngine>(std::move(parts));
  if (Status status = engine->status(); !status.ok()) return status;
  const ProgressThread::Place place{progress_cores, spare_cores, static_cast<int>(*nice)};
  if (Status status = ProgressThread::instance().add(engine, place); !status.ok()) return status;
  const Group everybody = Group::whole(engine->parts().rank, engine->parts().topology);
  return Executor::create(std::move(engine), everybody);
}

// Sets the parts that depend on this process only. Returns how long another host may be silent (SHOAL_LOST_AFTER).
Result<milliseconds> begin(ProgressEngineParts& parts, int rank) {
  parts.rank = rank;
  parts.device = &host_device();
  parts.cores = allowed_cores();
  if (Status status = check_progress_cores(); !status.ok()) return status;
  if (const auto nice = progress_nice(); !nice.ok()) return nice.status();
  const auto wait = wait_policy();
  if (!wait.ok()) return wait.status();
  parts.wait = *wait;
  const auto warn_after = time_setting("SHOAL_WARN_AFTER");
  if (!warn_after.ok()) return warn_after.status();
  parts.warn_after = *warn_after;
  return time_setting("SHOAL_LOST_AFTER");
}

Result<ConnectedJob> connect_alone(const CommunicatorOptions& options) {
  ProgressEngineParts parts;
  if (const auto lost_after = begin(parts, 0); !lost_after.ok()) return lost_after.status();
  const auto decision = decide(options);
  if (!decision.ok()) return decision.status();
  parts.topology = Topology::uniform(1, 1);
  const OwnPlace place = own_place({{affinity_cores()}, parts.cores}, 0, false);
  auto executor = make_executor(std::move(parts), place.progress_cores, 1);
  if (!executor.ok()) return executor.status();
  return ConnectedJob{std::move(executor).value(), "local", {}, {}};
}

// Resources that are open during the start-up.
struct Opened {
  ProgressEngineParts parts;
  TransportSetup control{{}, {}, "control"};
  std::unique_ptr<tcp::KeeperSockets> keeper;  ///< of the overlay, where the job uses it
  TransportSetup shm{{}, {}, "shared memory"};
  TransportSetup network{{}, {}, "network"};
};

/// The steps by which the ranks of a job connect: the same ones in the same order on every rank.
class JobStart {
 public:
  JobStart(StartupExchange& exchange, Opened& opened, int rank, int size, const JobKey& key, const std::string& job,
           CommunicatorOptions& options)
      : exchange_(exchange),
        opened_(opened),
        parts_(opened.parts),
        rank_(rank),
        size_(size),
        key_(key),
        job_(job),
        options_(options) {}

  Result<ConnectedJob> run() {
    using Step = Status (JobStart::*)();
    for (const Step step : {&JobStart::prepare, &JobStart::find_hosts, &JobStart::find_cores, &JobStart::open_flight_record,
                            &JobStart::divide_peers, &JobStart::open_control, &JobStart::open_transports,
                            &JobStart::connect_all, &JobStart::measure}) {
      if (Status status = (this->*step)(); !status.ok()) return status;
    }
    return finish();
  }

 private:
  [[nodiscard]] const JobConfig& config() const noexcept { return decision_.config; }
  [[nodiscard]] bool uses_overlay() const { return config().overlay && hosts_->hosts() > 1; }
  [[nodiscard]] int node() const { return parts_.topology.node_of_rank[static_cast<std::size_t>(rank_)]; }
  [[nodiscard]] ConnectDeadline time_limit() {
    return ConnectDeadline(exchange_.deadline(), [this] { return exchange_.check(); });
  }

  /// What this process and rank 0 decide without other ranks.
  Status prepare() {
    const auto lost_after = begin(parts_, rank_);
    if (!lost_after.ok()) return lost_after.status();
    lost_after_ = *lost_after;
    if (rank_ != 0) return {};
    auto decision = decide(options_);
    if (!decision.ok()) return decision.status();
    decision_ = std::move(decision).value();
    return {};
  }

  /// The settings that count, which are rank 0's.
  Status agree(const std::string& config_of_rank_0) {
    if (rank_ != 0) {
      auto config = parse_job_config(config_of_rank_0, key_.key);
      if (!config.ok()) return config.status();
      decision_.config = std::move(config).value();
    }
    if (setting("SHOAL_ENCRYPTION") == "on" && !config().encryption) {
      return {StatusCode::mismatch,
              fmt::format("SHOAL_ENCRYPTION is on for rank {} and off for rank 0; set the same value for all ranks", rank_)};
    }
    if (config().encryption && !key_.secret) {
      return {StatusCode::invalid_argument,
              "SHOAL_ENCRYPTION=on needs a secret job key, and this job has none: give all ranks the same "
              "SHOAL_JOB_KEY_FILE (or SHOAL_JOB_KEY), or start them with 'shoal run' or mpirun, which create one"};
    }
    link_key_ = link_key(key_.key, config());
    options_.algorithm = config().algorithm;
    return {};
  }

  Status find_hosts() {
    const std::string mine = rank_ == 0 ? to_text(config(), key_.key) : std::string();
    const auto hosts =
        gather_texts(exchange_, "node", {node_identity(), affinity_text(), shm_peers_see_end() ? "seen" : "", mine});
    if (!hosts.ok()) return hosts.status();
    if (Status status = agree(hosts->front()[3]); !status.ok()) return status;
    std::vector<std::string> identities;
    for (const auto& host : *hosts) {
      identities.push_back(host[0]);
      masks_.push_back(host[1]);
    }
    parts_.topology = topology_from(identities);
    // By the largest host: the ranks of a group must have the same tiles.
    if (config().use_shm)
      decision_.config.tile_bytes =
          tile_that_fits(config().tile_bytes, most_ranks_of_a_node(parts_.topology), config().link_memory_bytes);
    std::vector<bool> sees_end;
    for (const auto& host : *hosts) sees_end.push_back(!host[2].empty());
    hosts_ = control_hosts(parts_.topology, config().use_shm, sees_end);
    local_control_ = config().use_shm && std::ranges::all_of(parts_.topology.ranks_of_node(node()), [&](int local) {
                       return !(*hosts)[static_cast<std::size_t>(local)][2].empty();
                     });
    if (!config().encryption || !key_.told || parts_.topology.nodes() <= 1) return {};
    return {StatusCode::invalid_argument,
            "SHOAL_ENCRYPTION=on between hosts cannot use the key that mpirun created, because mpirun's daemons transmit "
            "it unencrypted; give all ranks the same SHOAL_JOB_KEY_FILE"};
  }

  /// The cores of the host's ranks, and the place of this rank's progress thread.
  Status find_cores() {
    std::vector<std::string> local_masks;
    HostRanks host;
    for (const int local : parts_.topology.ranks_of_node(node())) {
      local_masks.push_back(masks_[static_cast<std::size_t>(local)]);
      host.masks.push_back(cores_of_mask(local_masks.back()));
    }
    // Launchers bind ranks to cores of their own: the cores that count are those of all ranks of the node together.
    parts_.cores = node_cores(local_masks, quota_cores());
    parts_.topology.cores_per_node = parts_.cores;
    if (!setting("SHOAL_CORES").empty()) {
      const auto cores = positive_setting("SHOAL_CORES", 1e6, "cores");
      if (!cores.ok()) return cores.status();
      parts_.topology.cores_per_node = *cores;
      parts_.cores = static_cast<int>(*cores);
    }
    host.cores = parts_.cores;
    const bool takes_cards = config().network == Network::ofi && setting("SHOAL_RAILS").empty();
    place_ = own_place(host, parts_.topology.local_rank(rank_), takes_cards);
    if (!takes_cards) place_.nics.clear();
    return {};
  }

  Status open_flight_record() {
    auto flight_record = FlightRecord::create({config().job_id, job_, rank_, parts_.topology.node_of_rank},
                                              parts_.topology.local_rank(rank_) == 0);
    if (!flight_record.ok()) return flight_record.status();
    parts_.flight_record = std::move(flight_record).value();
    parts_.tile_bytes = config().tile_bytes;
    return {};
  }

  /// Which transport connects this rank with each peer.
  Status divide_peers() {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const bool same_node = parts_.topology.node_of_rank[static_cast<std::size_t>(peer)] == node();
      if (!(same_node && local_control_) && !uses_overlay()) opened_.control.peers.push_back(peer);
      if (!(same_node && config().use_shm) && config().network == Network::none) {
        return {StatusCode::unsupported, fmt::format("rank {} runs on another host, in another container or as another "
                                                     "user, where shm cannot connect it; allow tcp, ofi or "
                                                     "ucx as well (SHOAL_TRANSPORTS=shm,tcp)",
                                                     peer)};
      }
      (same_node && config().use_shm ? opened_.shm : opened_.network).peers.push_back(peer);
    }
    return {};
  }

  /// Connections for control messages to the ranks with which this one shares no memory.
  Status open_control() {
    if (opened_.control.peers.empty() && !uses_overlay()) return {};
    TcpOptions options = tcp_options(config(), link_key_, lost_after_, rank_, size_, "control", 0x636F6E74726F6C);
    options.sockets_per_peer = 1;
    options.tile_bytes = kControlTileBytes;
    options.tiles_per_socket = 2;
    options.integrity = config().integrity != Integrity::off;  // cheap, because control messages are small
    // Control messages must survive the failure of a rail, as data does.
    if (auto rails = split_at_commas(setting("SHOAL_RAILS")); rails.size() > 1) options.rails = std::move(rails);
    const auto open = [&options](auto make, auto& target, bool without_rails) -> Status {
      auto made = make(options);
      if (!made.ok() && without_rails) {
        options.rails.clear();  // they may be NICs without an IP address
        made = make(options);
      }
      if (!made.ok()) return made.status();
      target = std::move(made).value();
      return {};
    };
    const bool without_rails = config().network != Network::tcp;
    if (uses_overlay()) return open(tcp::KeeperSockets::open, opened_.keeper, without_rails);
    return open(make_tcp_transport, opened_.control.transport, without_rails);
  }

  Status open_transports() {
    if (!opened_.shm.peers.empty()) {
      ShmOptions options;
      options.rank = rank_;
      options.job_id = config().job_id;
      options.tile_bytes = config().tile_bytes;
      options.slots = ring_slots(opened_.shm.peers.size());
      options.link_memory_bytes = config().link_memory_bytes;
      options.single_copy = config().single_copy;
      auto made = make_shm_transport(options);
      if (!made.ok()) return made.status();
      opened_.shm.transport = std::move(made).value();
    }
    if (config().network == Network::ofi) {
      const auto rails = agree_on_rails(exchange_, place_.nics.size());
      if (!rails.ok()) return rails.status();
      place_.nics.resize(*rails);
    }
    if (opened_.network.peers.empty()) return {};
    auto made = make_network(config(), link_key_, lost_after_, rank_, parts_.topology, place_.nics);
    if (!made.ok()) return made.status();
    opened_.network.transport = std::move(made).value();
    return {};
  }

  Status connect_all() {
    const auto address_of = [](const TransportSetup& setup) {
      return setup.transport == nullptr ? std::string() : setup.transport->address();
    };
    const std::string control = opened_.keeper != nullptr ? opened_.keeper->address() : address_of(opened_.control);
    // Rank 0 does not know yet whether another rank can open fewer links than it.
    const bool chooses = rank_ == 0 && connects_usual();
    const auto all = gather_texts(exchange_, "addresses",
                                  {control, address_of(opened_.shm), address_of(opened_.network), std::to_string(own_budget()),
                                   chooses ? usual_algorithms(parts_.topology, config().algorithm, 0) : ""});
    if (!all.ok()) return all.status();
    if (Status status = agree_on_budget(*all); !status.ok()) return status;
    const auto addresses = [&all](std::size_t i) {
      std::vector<std::string> found;
      for (const auto& of_rank : *all) found.push_back(of_rank[i]);
      return found;
    };
    if (Status status = connect_control(addresses(0)); !status.ok()) return status;
    if (Status status = add_links(opened_.shm, addresses(1)); !status.ok()) return status;
    if (Status status = add_local_control(); !status.ok()) return status;
    if (Status status = choose_links(all->front()[4]); !status.ok()) return status;
    if (!uses_overlay()) return add_links(opened_.network, addresses(2));
    auto overlay = start_overlay(addresses(0));
    if (!overlay.ok()) return overlay.status();
    if (Status status = add_links(opened_.network, addresses(2)); !status.ok()) return status;
    startup_waits_for("connections for control messages between hosts");
    return (*overlay)->wait_connected(time_limit());
  }

  [[nodiscard]] bool connects_usual() const {
    return opened_.network.transport != nullptr && config().connect == ConnectAtStart::usual;
  }

  /// Which links to other hosts are connected at start. `algorithms`: as rank 0 has chosen them, without a limit of links.
  Status choose_links(const std::string& algorithms) {
    if (opened_.network.transport == nullptr || config().connect == ConnectAtStart::all) return {};
    std::vector<int> peers;
    if (connects_usual()) {
      auto usual =
          usual_peers(parts_.topology, rank_,
                      most_links_ == 0 ? algorithms : usual_algorithms(parts_.topology, config().algorithm, most_links_));
      if (!usual.ok()) return usual.status();
      peers = std::move(usual).value();
    }
    opened_.network.transport->connect_only(peers);
    return {};
  }

  /// Control messages between hosts.
  Result<OverlayControl*> start_overlay(std::vector<std::string> addresses) {
    std::unique_ptr<shm::HostMemory> memory;
    if (hosts_->ranks_of(hosts_->host_of(rank_)).size() > 1) {
      auto opened = open_host_memory(*parts_.transports.back());
      if (!opened.ok()) return opened.status();
      memory = std::move(opened).value();
    }
    auto overlay =
        OverlayControl::start(*hosts_, rank_, lost_after_, std::move(opened_.keeper), std::move(addresses), std::move(memory));
    if (!overlay.ok()) return overlay.status();
    OverlayControl* const started = overlay->get();
    parts_.control->add(std::move(overlay).value());
    return started;
  }

  /// With how many ranks of other hosts this process can have connections for data.
  [[nodiscard]] std::size_t own_budget() const {
    constexpr std::size_t kForControl = 2;  // descriptors for each peer
    // With few peers 3 each; with many, most are not watched by a descriptor (transports/shm/peer_watch.h).
    constexpr std::size_t kForPeerInHost = 3;
    constexpr std::size_t kForHost = 24;
    const auto sockets = static_cast<std::size_t>(config().sockets_per_peer) + 1;
    const auto in_host = static_cast<std::size_t>(std::ranges::count_if(
        opened_.network.peers, [&](int peer) { return parts_.topology.link_class(rank_, peer) != LinkClass::network; }));
    const std::size_t shared_memory = std::min(kForPeerInHost * opened_.shm.peers.size(), kForHost);
    return link_budget(kForControl * opened_.control.peers.size() + shared_memory + sockets * in_host, sockets);
  }

  /// The smallest budget counts, since all ranks choose the same algorithms.
  Status agree_on_budget(const std::vector<std::vector<std::string>>& of_ranks) {
    std::size_t least = of_ranks.size();
    for (const auto& texts : of_ranks) {
      const auto theirs = parse_bytes(texts[3]);
      if (!theirs.ok()) return {StatusCode::internal, "startup: a rank published a malformed number of connections"};
      least = std::min<std::size_t>(least, *theirs);
    }
    if (config().network == Network::tcp && least + 1 < of_ranks.size()) most_links_ = std::max(static_cast<int>(least), 1);
    return {};
  }

  Status connect_control(const std::vector<std::string>& addresses) {
    parts_.control = std::make_unique<ControlPlane>();
    if (opened_.control.transport == nullptr) return {};
    auto links = connect(opened_.control, addresses, time_limit());
    if (!links.ok()) return links.status();
    parts_.control->add(std::make_unique<RemoteControl>(std::move(opened_.control.transport), std::move(links).value()));
    return {};
  }

  /// Control messages between the ranks of this host go through the memory that they share now.
  Status add_local_control() {
    if (!local_control_ || opened_.shm.peers.empty()) return {};
    auto local = std::make_unique<LocalControl>(*parts_.transports.back(), rank_, opened_.shm.peers);
    if (!local->usable()) return {StatusCode::internal, "start-up: the shared memory has too little room for control messages"};
    parts_.control->add(std::move(local));
    return {};
  }

  Status add_links(TransportSetup& setup, const std::vector<std::string>& addresses) {
    if (setup.transport == nullptr) return {};
    auto links = connect(setup, addresses, time_limit());
    if (!links.ok()) return links.status();
    for (auto& link : *links) {
      parts_.links.push_back(std::move(link));
      parts_.transport_of_link.push_back(static_cast<std::uint32_t>(parts_.transports.size()));
    }
    parts_.transports.push_back(std::move(setup.transport));
    return {};
  }

  Status measure() {
    if (decision_.single_copy_always)
      parts_.topology.one_copy_gain = std::numeric_limits<float>::max();  // set by the user, not measured
    auto costs = measure_costs(exchange_, parts_, config().probe);
    if (!costs.ok()) return costs.status();
    costs_ = std::move(costs).value();
    return {};
  }

  /// What depends on the costs of the links.
  void protect_payloads() {
    // A link that was not measured may be slow or fast. Then only TCP gets checksums: its own checksums are weak, whereas NICs
    // check what they carry.
    const bool sums_pay = config().probe ? check_sums_cost_little(parts_.topology) : config().network == Network::tcp;
    if (config().integrity == Integrity::measured && sums_pay) {
      for (const auto& transport : parts_.transports) transport->use_check_sums();
    }
    if (config().compression == Compression::lossless ||
        (config().compression == Compression::measured && packing_costs_little(parts_.topology))) {
      for (const auto& transport : parts_.transports) transport->use_packing();
    }
  }

  Result<ConnectedJob> finish() {
    ConnectedJob job{{},
                     transports_between(parts_.topology, config().use_shm, to_string(config().network)),
                     config().numerics,
                     {},
                     most_links_};
    const bool tunes = rank_ == 0 && config().tuned;
    const std::string tuning = tunes ? tuning_text(decision_.table, parts_.topology, job.transports) : std::string();
    const auto ready = exchange_.last_all_gather("ready", join_texts(std::vector{costs_, tuning}));
    if (!ready.ok()) return ready.status();
    const auto of_rank_0 = split_texts(ready->front(), 2);
    if (!of_rank_0) return Status(StatusCode::internal, "rank 0 published malformed costs");
    if (rank_ != 0) {
      if (Status status = read_costs(of_rank_0->front(), parts_.topology); !status.ok()) return status;
    }
    protect_payloads();
    auto tuned = read_tuning(of_rank_0->back());
    if (!tuned.ok()) return tuned.status();
    job.tuned = std::move(tuned).value();
    const int local_size = static_cast<int>(parts_.topology.ranks_of_node(node()).size());
    auto executor = make_executor(std::move(parts_), place_.progress_cores, local_size);
    if (!executor.ok()) return executor.status();
    job.executor = std::move(executor).value();
    return job;
  }

  StartupExchange& exchange_;
  Opened& opened_;
  ProgressEngineParts& parts_;
  const int rank_;
  const int size_;
  const JobKey& key_;
  const std::string& job_;
  CommunicatorOptions& options_;
  std::chrono::milliseconds lost_after_{0};
  Decision decision_;
  Key link_key_{};
  std::optional<HostTable> hosts_;  // of the overlay
  bool local_control_ = false;      // control messages in this host need no connections
  std::vector<std::string> masks_;  // of the cores of each rank
  int most_links_ = 0;              // ConnectedJob::most_links
  std::string costs_;               // of the links, as rank 0 publishes them
  OwnPlace place_;
};

}  // namespace

Result<ConnectedJob> connect_job(Store* store, int rank, int size, const JobKey& key, const std::string& job,
                                 std::chrono::steady_clock::time_point deadline, CommunicatorOptions& options) {
  if (size == 1) return connect_alone(options);
  if (Status status = store->enter(rank, size); !status.ok()) {
    store->leave();
    return status;
  }
  const AbsentRanks absent([store, size] { return store->absent(size); });
  StartupExchange exchange(*store, rank, size, deadline);
  auto opened = std::make_unique<Opened>();
  auto connected = JobStart(exchange, *opened, rank, size, key, job, options).run();
  if (connected.ok()) {
    store->leave();
    return connected;
  }
  const Status cause = exchange.abort(connected.status());
  // A rank that has already finished the exchange no longer reads the store, so the control plane carries the cause as well.
  if (ControlPlane* const control = opened->parts.control.get(); control != nullptr) {
    std::vector<int> others(static_cast<std::size_t>(size));
    std::iota(others.begin(), others.end(), 0);
    control->send_abort({}, others, {cause.code(), fmt::format("rank {} aborted the startup: {}", rank, cause.message())});
    control->finish();
  }
  store->leave();  // an orderly leave: the cause is published
  opened.reset();  // not earlier: a peer that loses a connection reads the cause from the store
  exchange.leave();
  return cause;
}

}  // namespace shoal
