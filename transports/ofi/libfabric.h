// Rails on libfabric, which is loaded when it is first needed: without it this library works all the same.
#pragma once

#include <memory>
#include <vector>

#include <shoal/status.h>

#include "transports/ofi/ofi.h"
#include "transports/rails/rail.h"

namespace shoal::ofi {

using rails::Completion;
using rails::Fabric;
using rails::kAgain;
using rails::Operation;
using rails::Piece;
using rails::Rail;
using rails::RailRequest;
using rails::RailTraits;
using rails::Registration;

/// One device with one provider, as far as choosing among them goes.
struct Candidate {
  std::string provider;
  std::string device;
  std::string address;    ///< numeric, without a port; empty where the provider has addresses of its own
  bool writes = false;    ///< one-sided writes that carry 32 bits
  bool hardware = false;  ///< a network card that does the work, not a socket
  bool other_hosts = false;
  bool loopback = false;
  std::uint64_t bits_per_second = 0;  ///< 0: unknown
};

/// Which candidates to open, best first: indices. `candidates` has the order of libfabric's preference.
/// By capability: cards before sockets, the fastest, those that write before those that do not, then libfabric's order. One
/// provider; without `request.devices` those of its equally fast cards that are among `request.cards`, where none is the part
/// of them that falls to this rank; or one address for sockets, that of `request.near` where it is set.
/// Errors: unsupported, naming what there is.
Result<std::vector<std::size_t>> choose(const std::vector<Candidate>& candidates, const RailRequest& request);

/// The fabric of this process. Errors: unsupported, saying why there is none.
Result<std::shared_ptr<Fabric>> libfabric();

/// See ofi_providers().
Result<std::vector<OfiProvider>> libfabric_providers();

}  // namespace shoal::ofi
