// The ucx transport: ordered links over UCX, which chooses the wires (UCX_TLS, UCX_NET_DEVICES).
#pragma once

#include <memory>
#include <string>

#include <shoal/status.h>

#include "transports/rails/rails.h"
#include "transports/transport.h"

namespace shoal {

/// What a ucx transport needs to know beside what all links over rails do.
struct UcxOptions : rails::Options {
  /// The interface or address of this host that UCX's network devices are those of, unless UCX_NET_DEVICES says otherwise;
  /// empty: UCX's choice. Wires within a host are used all the same.
  std::string near;
};

/// Opens a ucx transport. See transport.h for its use and thread rule.
/// Errors: invalid_argument for options out of range, and for an interface that is not there; unsupported where UCX is not
/// there; system_error in its words.
Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options);

/// Its version, for `shoal doctor`. Errors: unsupported, saying why there is none.
Result<std::string> ucx_version();

}  // namespace shoal
