// What rank 0 decides for all ranks of a job, and the text in which it says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <shoal/status.h>

#include "src/topology/topology.h"
#include "src/trust/proof.h"

namespace shoal {

/// What the bits of a sum may depend on: the class of the machine, exact costs, the shape of the job, nothing. See README.md,
/// "Which bits".
enum class Numerics : std::uint8_t { by_class = 0, measured = 1, repeatable = 2, strict = 3 };

/// Whether payloads between nodes have check sums; `measured`: over TCP where the wire is slow enough that they cost little.
enum class Integrity : std::uint8_t { off = 0, on = 1, measured = 2 };

/// Whether payloads between nodes travel packed; `measured`: where the wire is slow enough that it costs little.
enum class Compression : std::uint8_t { off = 0, lossless = 1, measured = 2 };

/// What connects the nodes, and the ranks of a node where shm is not used.
enum class Network : std::uint8_t { none = 0, tcp = 1, ofi = 2, ucx = 3 };
/// "tcp"; "" for none.
const char* to_string(Network network) noexcept;

struct JobConfig {
  std::uint64_t job_id = 0;
  std::string algorithm;
  bool use_shm = true;
  Network network = Network::tcp;
  std::size_t tile_bytes = 64 << 10;
  std::size_t network_tile_bytes = 64 << 10;  ///< of a large message between nodes; at least tile_bytes
  int sockets_per_peer = 1;
  Integrity integrity = Integrity::off;
  Compression compression = Compression::off;
  bool encryption = false;  ///< all that moves between nodes is encrypted
  bool single_copy = true;  ///< ranks of a host may copy straight from and to each other's memory
  bool probe = true;
  Numerics numerics = Numerics::by_class;
  bool tuned = false;  ///< there is a table of measured times, and rank 0 has it
  std::string salt;    ///< random text that makes the keys of this job's links others than those of any job before it
};

/// The key from which the ranks derive those of their links: nobody knows it who lacks `job_key` or has not read `config`.
Key link_key(const Key& job_key, const JobConfig& config);

/// The text to publish. It shows whether a reader has the same job key, and tells nothing else of it.
std::string to_text(const JobConfig& config, const Key& job_key);
/// Published instead where rank 0 cannot go on.
std::string refusal_text(const Status& status);

/// Errors: those of refusal_text(); mismatch where rank 0 has another job key; internal for anything that is no text of
/// to_text(), with the values in their ranges.
Result<JobConfig> parse_job_config(const std::string& text, const Key& job_key);

/// The costs of the links and of the reduction, and the cores of a node, as rank 0 publishes them.
std::string costs_text(const Topology& topology);
/// Takes them over into `topology`. Errors: internal for anything that is no text of costs_text(); `topology` is as it was.
Status read_costs(const std::string& text, Topology& topology);

}  // namespace shoal
