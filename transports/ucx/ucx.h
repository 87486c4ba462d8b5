// The ucx transport: ordered links over UCX, which chooses its transports (UCX_TLS, UCX_NET_DEVICES).
#pragma once

#include <memory>
#include <string>

#include <shoal/status.h>

#include "transports/rails/rails.h"
#include "transports/transport.h"

namespace shoal {

/// Options of a ucx transport beside those of all links over rails.
struct UcxOptions : rails::Options {
  /// The interface or address of this host whose network devices UCX uses, unless UCX_NET_DEVICES is set; empty: UCX chooses.
  /// UCX's transports within a host are used in any case.
  std::string near;
};

/// Opens a ucx transport. See transport.h for its use and thread rule.
/// Errors: invalid_argument for options out of range, and for an interface that does not exist; unsupported where UCX is not
/// installed; system_error with UCX's text.
Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options);

/// UCX's version, for `shoal doctor`. Errors: unsupported, with the reason.
Result<std::string> ucx_version();

}  // namespace shoal
