// OverlayActions: what a HostControl wants done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/progress/overlay/message.h"

namespace shoal {

/// A process of another host.
struct Endpoint {
  int host = 0;
  int rank = 0;  ///< of the job

  bool operator==(const Endpoint&) const = default;
};

/// The owner of the HostControl does it in the order of these members, then clears it. Thread rule: a value.
struct OverlayActions {
  struct Send {
    int host = 0;  ///< with which a connection is up
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };

  std::optional<std::uint64_t> claim;   ///< write this term and this rank to the board, if its term is the one before
  bool beat = false;                    ///< add one to the beat on the board, if this rank is still the keeper there
  std::vector<OverlayMessage> publish;  ///< for all ranks of this host, by the board; for this one as well
  std::vector<Send> send;               ///< in this order on each connection
  std::vector<Endpoint> disconnect;
  std::vector<Endpoint> connect;  ///< two processes have one connection, whichever asks for it; it may exist

  [[nodiscard]] bool empty() const noexcept {
    return !claim && !beat && publish.empty() && send.empty() && disconnect.empty() && connect.empty();
  }
};

}  // namespace shoal
