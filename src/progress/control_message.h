// ControlMessage: what a peer has sent over the control plane, or what has happened to it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <shoal/status.h>

#include "src/topology/group_name.h"

namespace shoal {

struct ControlMessage {
  enum class Kind : std::uint32_t {
    abort = 1,     ///< closes the communicator, for the reason in `status`
    farewell = 2,  ///< close notice: left the communicator in order; `payload`: its last calls, a CallHistory
    goodbye = 3,   ///< exit notice: left all communicators in order
    death = 4,     ///< its connection broke, or its process ended, without an exit notice; `status`: how
    waits = 5,     ///< has waited for long in a call of the communicator; `payload`: for which ranks
    calls = 6,     ///< is in other calls than this rank; `payload`: the calls that it has made, a CallHistory
  };
  Kind kind = Kind::abort;
  GroupName group;  ///< unused in an exit notice or a death
  int rank = 0;     ///< of the job
  Status status;
  std::vector<std::byte> payload;

  /// The message that `rank` has sent as these bytes. Safe for any of them; nothing where `kind` is not one that a peer sends.
  static std::optional<ControlMessage> parse(int rank, std::uint32_t kind, const GroupName& group,
                                             std::span<const std::byte> payload);
};

/// Payloads have at most so many bytes; longer ones are cut.
inline constexpr std::size_t kMostControlBytes = 4096;

/// The Status in an abort's payload: one byte StatusCode, then the message. Safe for any bytes; never ok.
Status parse_abort(int from, std::span<const std::byte> data);

}  // namespace shoal
