// Rank 0's decisions for all ranks of a job, and the text in which rank 0 publishes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <shoal/status.h>

#include "src/topology/topology.h"
#include "src/trust/proof.h"

namespace shoal {

/// What the bits of a sum may depend on: the bandwidth class of the links, exact costs, the shape of the job, or nothing. See
/// README.md, "Which bits".
enum class Numerics : std::uint8_t { by_class = 0, measured = 1, repeatable = 2, strict = 3 };

/// Whether payloads between nodes have checksums; `measured`: over TCP if the link is so slow that checksums cost little.
enum class Integrity : std::uint8_t { off = 0, on = 1, measured = 2 };

/// Whether payloads between nodes are packed; `measured`: if the link is so slow that packing costs little.
enum class Compression : std::uint8_t { off = 0, lossless = 1, measured = 2 };

/// The transport between nodes, and between the ranks of a node where shm is not used.
enum class Network : std::uint8_t { none = 0, tcp = 1, ofi = 2, ucx = 3 };
/// "tcp"; "" for none.
const char* to_string(Network network) noexcept;

/// Which links to other hosts are connected at start-up; the others are connected at first use.
enum class ConnectAtStart : std::uint8_t { all = 0, usual = 1, none = 2 };

struct JobConfig {
  std::uint64_t job_id = 0;
  std::string algorithm;
  bool use_shm = true;
  Network network = Network::tcp;
  std::size_t tile_bytes = 64 << 10;
  std::size_t network_tile_bytes = 64 << 10;               ///< for large messages between nodes; at least tile_bytes
  std::size_t link_memory_bytes = std::size_t{256} << 20;  ///< of a rank, for links inside its host; as much for TCP
  int sockets_per_peer = 1;
  ConnectAtStart connect = ConnectAtStart::all;
  Integrity integrity = Integrity::off;
  Compression compression = Compression::off;
  bool encryption = false;  ///< all traffic between nodes is encrypted
  bool single_copy = true;  ///< ranks of a host may copy directly from and to each other's memory
  bool probe = true;
  bool overlay = false;  ///< control messages between hosts go through one rank of each host
  Numerics numerics = Numerics::by_class;
  bool tuned = false;  ///< rank 0 has a table of measured times
  std::string salt;    ///< random text, so that the link keys of this job differ from those of all earlier jobs
};

/// The key from which the ranks derive the keys of their links. Only a process with `job_key` and `config` can compute it.
Key link_key(const Key& job_key, const JobConfig& config);

/// The text to publish. A reader can check with it whether its job key is the same, and learns nothing else about the key.
std::string to_text(const JobConfig& config, const Key& job_key);
/// Errors: mismatch where rank 0 has another job key or version; internal for a text that is not from to_text(), or has a value
/// out of range.
Result<JobConfig> parse_job_config(const std::string& text, const Key& job_key);

/// The text in which rank 0 publishes the costs of the links and of the reduction, and the cores of a node.
std::string costs_text(const Topology& topology);
/// Reads them into `topology`. Errors: internal for a text that is not from costs_text(); `topology` is then unchanged.
Status read_costs(const std::string& text, Topology& topology);

}  // namespace shoal
