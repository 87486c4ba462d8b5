// Zero-copy: which payloads of a link are sent from the caller's memory.
#pragma once

#include <cstddef>
#include <span>

#include "transports/rails/handshake.h"
#include "transports/rails/link_shape.h"
#include "transports/rails/send_window.h"

namespace shoal::rails {

class Hub;

/// Lends payloads to the rails of one link: those in lasting memory, which it registers, and any payload where the rail can
/// be redirected to a copy later. Thread rule: that of the transport.
class Lender {
 public:
  Lender(Hub& hub, const LinkShape& shape, const RemoteEnd& remote) : hub_(hub), shape_(shape), remote_(remote) {}

  /// False where `data` must be copied instead. Precondition: `loan` has ended.
  bool lend(Loan& loan, std::span<const std::byte> data);
  /// Ends the registrations; no effect where nothing is lent.
  void end(Loan& loan) noexcept;

 private:
  [[nodiscard]] bool can_redirect() const noexcept;

  Hub& hub_;
  const LinkShape& shape_;
  const RemoteEnd& remote_;
};

}  // namespace shoal::rails
