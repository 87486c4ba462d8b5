// The checks of a Request, and what it asks of the algorithms.
#pragma once

#include <cstddef>
#include <string_view>

#include <shoal/communicator.h>
#include <shoal/request.h>
#include <shoal/status.h>

#include "src/schedule/program.h"

namespace shoal::internal {

/// The name of the public functions for calls of `kind`, without _v.
[[nodiscard]] std::string_view call_name(CollectiveKind kind) noexcept;
[[nodiscard]] constexpr bool is_message(CollectiveKind kind) noexcept {
  return kind == CollectiveKind::send || kind == CollectiveKind::receive;
}

/// All checks but those of buffers, for the call of `rank` among `ranks` ranks.
Status check_arguments(const Request& request, const CallOptions& options, int rank, int ranks);
/// Checks the buffers of the request, whose collective is `collective`; returns whether the call is in place.
Result<bool> check_buffers(const Request& request, const Collective& collective, int rank, int ranks);
/// The collective that `request` describes: what the kind does not use has its default. The counts of an all_to_all_v are valid
/// until the next use of this function in this thread.
[[nodiscard]] Collective collective_of(const Request& request);
/// Elements of the message or share; the sum of the counts where there are counts, at most the largest number.
[[nodiscard]] std::size_t count_of(const Request& request) noexcept;

}  // namespace shoal::internal
