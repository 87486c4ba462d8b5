// The transports that the suite runs over. To add one: one entry in transport_kinds.cc.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <shoal/status.h>

#include "transports/transport.h"

namespace shoal::conformance {

/// Makes the transport of one rank of a group; called in the rank's own thread or process.
using MakeEnd = std::function<Result<std::unique_ptr<Transport>>(int rank)>;

struct TransportKind {
  std::string label;       ///< names the tests
  std::string transport;   ///< what name() must return
  bool processes = false;  ///< every rank is a forked process; otherwise a thread
  bool windows = false;    ///< has shared_window()
  bool refuses = false;    ///< try_send() may return false although there is room
  bool shared = false;     ///< payloads are sent from memory that the peers can read in place
  std::function<MakeEnd(int ranks)> make_group;
  std::vector<int> sizes = {2, 3, 5};  ///< ranks of the groups that it is tested with
  int slowness = 1;                    ///< long cases move this many times fewer tiles
  bool on_request = false;             ///< no link is connected at start, each by a request
  std::string unavailable = {};        ///< why it cannot be tested on this machine; empty where it can
};

inline void PrintTo(const TransportKind& kind, std::ostream* out) { *out << kind.label; }

std::vector<TransportKind> transport_kinds();

}  // namespace shoal::conformance
