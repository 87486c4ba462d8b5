#include "src/communicator/request_checks.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "src/plan/call_buffers.h"

namespace shoal::internal {
namespace {

Status invalid(const Request& request, const std::string& what) {
  return {StatusCode::invalid_argument, fmt::format("{}{}: {}", call_name(request.kind), request.has_counts ? "_v" : "", what)};
}

/// More elements than this are no count, even in one of `shares` equal shares.
std::size_t largest_count(const Request& request, std::size_t shares) {
  const std::size_t bytes = std::max<std::size_t>(size_of(request.type), 1);  // check_arguments() refuses unknown types
  return static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max()) / bytes / shares;
}

/// The counts that the caller names `name`.
Status check_counts(const Request& request, Request::Counts counts, const char* name, int ranks) {
  if (counts.size() != static_cast<std::size_t>(ranks))
    return invalid(request, fmt::format("{} {} for {} ranks; one for each rank is needed", counts.size(), name, ranks));
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > largest_count(request, 1))
      return invalid(request, fmt::format("{}[{}], {}, is larger than memory (a negative number?)", name, i, counts[i]));
  }
  return {};
}

Status check_counts(const Request& request, int rank, int ranks) {
  if (request.kind != CollectiveKind::all_to_all) return check_counts(request, request.counts, "counts", ranks);
  if (Status status = check_counts(request, request.counts, "send_counts", ranks); !status.ok()) return status;
  if (Status status = check_counts(request, request.receive_counts, "receive_counts", ranks); !status.ok()) return status;
  const std::size_t sends = request.counts[static_cast<std::size_t>(rank)];
  const std::size_t receives = request.receive_counts[static_cast<std::size_t>(rank)];
  if (sends == receives) return {};
  return invalid(request,
                 fmt::format("send_counts[{0}] is {1}, but receive_counts[{0}] is {2}; on rank {0} the two must be equal", rank,
                             sends, receives));
}

const char* in_place_rule(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
      return "input and output overlap; in place means input == output + rank * count (the place of this rank's share)";
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::scatter:
      return "input and output overlap; in place means output == input + rank * count (the place of this rank's share)";
    case CollectiveKind::all_to_all:
      return "input and output overlap; an all_to_all is not done in place";
    default:
      return "input and output overlap without being equal";
  }
}

}  // namespace

std::string_view call_name(CollectiveKind kind) noexcept { return kind == CollectiveKind::receive ? "recv" : to_string(kind); }

Status check_arguments(const Request& request, const CallOptions& options, int rank, int ranks) {
  const CollectiveKind kind = request.kind;
  if (static_cast<int>(kind) >= kCollectiveKindCount && !is_message(kind))
    return {StatusCode::invalid_argument, fmt::format("unknown kind of call {}", static_cast<int>(kind))};
  if (request.has_counts && !deals_in_shares(kind))
    return {StatusCode::invalid_argument, fmt::format("{}: a call of this kind has no counts", call_name(kind))};
  if (options.timeout && options.timeout->count() <= 0)
    return invalid(request, fmt::format("a timeout of {} ms is not positive", options.timeout->count()));
  if (kind == CollectiveKind::barrier) return {};
  if (size_of(request.type) == 0) return invalid(request, fmt::format("unknown data type {}", static_cast<int>(request.type)));
  if (reduces(kind) && !supports(request.type, request.op)) {
    return invalid(request, static_cast<int>(request.op) >= kReduceOpCount
                                ? fmt::format("unknown reduction {}", static_cast<int>(request.op))
                                : fmt::format("{} is not defined on {}", to_string(request.op), to_string(request.type)));
  }
  if (request.has_counts) {
    if (Status status = check_counts(request, rank, ranks); !status.ok()) return status;
  }
  const bool equal_shares = deals_in_shares(kind) && !request.has_counts;
  const std::size_t count = count_of(request);
  if (count > largest_count(request, equal_shares ? static_cast<std::size_t>(ranks) : 1))
    return invalid(request, fmt::format("count {} is larger than memory (a negative number?)", count));
  const auto is_rank = [ranks](int number) { return number >= 0 && number < ranks; };
  if (has_root(kind) && !is_rank(request.root))
    return invalid(request, fmt::format("root {} is not a rank; the ranks are 0 to {}", request.root, ranks - 1));
  const bool any_peer = kind == CollectiveKind::receive && request.peer == kAnySource;
  if (is_message(kind) && !any_peer && !is_rank(request.peer))
    return invalid(request, fmt::format("peer {} is not a rank; the ranks are 0 to {}", request.peer, ranks - 1));
  return {};
}

Result<bool> check_buffers(const Request& request, const Collective& collective, int rank, int ranks) {
  switch (call_buffers(collective, ranks, rank).placement(request.input, request.output)) {
    case CallBuffers::Placement::missing:
      return invalid(request, "null buffer");
    case CallBuffers::Placement::overlapping:
      return invalid(request, in_place_rule(request.kind));
    case CallBuffers::Placement::in_place:
      return true;
    case CallBuffers::Placement::apart:
      break;
  }
  return false;
}

std::size_t count_of(const Request& request) noexcept {
  if (!request.has_counts) return request.count;
  std::size_t sum = 0;
  for (const std::size_t count : request.counts) sum = count > ~sum ? ~std::size_t{0} : sum + count;
  return sum;
}

Collective collective_of(const Request& request) {
  Collective collective{.kind = request.kind};
  if (request.kind == CollectiveKind::barrier) return collective;
  collective.count = count_of(request);
  collective.type = request.type;
  if (reduces(request.kind)) collective.op = request.op;
  if (has_root(request.kind)) collective.root = request.root;
  if (!request.has_counts) return collective;
  collective.counts = request.counts;
  if (request.kind != CollectiveKind::all_to_all) return collective;
  thread_local std::vector<std::size_t> both;  // keeps its memory, so that a repeated call allocates nothing
  both.assign(request.counts.begin(), request.counts.end());
  both.insert(both.end(), request.receive_counts.begin(), request.receive_counts.end());
  collective.counts = both;
  return collective;
}

}  // namespace shoal::internal
