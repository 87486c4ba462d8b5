// Rails on libfabric, which is loaded at first use: shoal also works on hosts without it.
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

/// One device with one provider: the properties by which choose() selects.
struct Candidate {
  std::string provider;
  std::string device;
  std::string address;    ///< numeric, without a port; empty where the provider has addresses of its own
  bool writes = false;    ///< one-sided writes that carry 32 bits
  bool hardware = false;  ///< a network card, not a socket
  bool other_hosts = false;
  bool loopback = false;
  std::uint64_t bits_per_second = 0;  ///< 0: unknown
};

/// Indices of the candidates to open, best first. `candidates` is in libfabric's order of preference.
/// By capability: cards before sockets, faster before slower, with one-sided writes before without, then libfabric's order. All
/// chosen candidates have one provider. Without `request.devices` these are its equally fast cards that are in `request.cards`;
/// where none is, this rank's share of its equally fast cards; for sockets one address, that of `request.near` where it is set.
/// Errors: unsupported, naming the available candidates.
Result<std::vector<std::size_t>> choose(const std::vector<Candidate>& candidates, const RailRequest& request);

/// The fabric of this process. Errors: unsupported, with the reason.
Result<std::shared_ptr<Fabric>> libfabric();

/// See ofi_providers().
Result<std::vector<OfiProvider>> libfabric_providers();

}  // namespace shoal::ofi
