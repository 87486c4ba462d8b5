#include "src/cuda/shares.h"

#include <algorithm>
#include <utility>

#include "kernels/partition.h"

namespace shoal::cuda {
namespace {

std::size_t vectors_of(std::size_t count, std::size_t element_bytes) {
  const std::size_t per_vector = kernels::kVectorBytes / element_bytes;
  return count / per_vector + (count % per_vector != 0 ? 1 : 0);
}

}  // namespace

Part given(const Collective& what, int rank) noexcept {
  switch (what.kind) {
    case CollectiveKind::broadcast:
    case CollectiveKind::scatter:
      return rank == what.root ? Part::all : Part::nothing;
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
      return Part::own;
    case CollectiveKind::barrier:
      return Part::nothing;
    default:
      return Part::all;
  }
}

Part taken(const Collective& what, int rank) noexcept {
  switch (what.kind) {
    case CollectiveKind::reduce:
    case CollectiveKind::gather:
      return rank == what.root ? Part::all : Part::nothing;
    case CollectiveKind::broadcast:
      return rank == what.root ? Part::nothing : Part::all;
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::scatter:
      return Part::own;
    case CollectiveKind::barrier:
      return Part::nothing;
    default:
      return Part::all;
  }
}

std::pair<std::size_t, std::size_t> part_of(std::size_t count, std::size_t element_bytes, std::size_t index,
                                            std::size_t pieces) noexcept {
  const std::size_t per_vector = kernels::kVectorBytes / element_bytes;
  const std::size_t vectors = vectors_of(count, element_bytes);
  const auto border = [&](std::size_t i) {  // the product of all vectors and i may not fit
    return std::min(count, (vectors / pieces * i + vectors % pieces * i / pieces) * per_vector);
  };
  return {border(index), border(index + 1)};
}

Shares::Shares(const Collective& what, int ranks) noexcept
    : what_(what), element_bytes_(size_of(what.type)), shares_(deals_in_shares(what.kind) ? ranks : 1) {}

std::size_t Shares::elements(int share) const noexcept {
  return what_.counts.empty() ? what_.count : what_.counts[static_cast<std::size_t>(share)];
}

std::size_t Shares::pieces(std::size_t bytes, bool one) const noexcept {
  const std::size_t room = bytes / kernels::kVectorBytes;
  const auto shares = static_cast<std::size_t>(shares_);
  if (what_.counts.empty() || one) {
    std::size_t largest = 0;
    for (int share = 0; share < (what_.counts.empty() ? 1 : shares_); ++share) largest = std::max(largest, elements(share));
    const std::size_t vectors = vectors_of(largest, element_bytes_);
    const std::size_t each = std::max<std::size_t>(one ? room : room / shares, 1);
    return vectors / each + (vectors % each != 0 ? 1 : 0);
  }
  std::size_t all = 0;
  for (int share = 0; share < shares_; ++share) all += vectors_of(elements(share), element_bytes_);
  if (all == 0) return 0;
  if (all <= room) return 1;
  const std::size_t each = room > shares ? room - shares : 1;  // every share may be rounded up to one more vector
  return all / each + (all % each != 0 ? 1 : 0);
}

std::vector<Run> Shares::runs(std::size_t index, std::size_t pieces, bool aligned) const {
  std::vector<Run> runs(static_cast<std::size_t>(shares_));
  std::size_t before = 0;
  std::size_t row = 0;
  for (int share = 0; share < shares_; ++share) {
    const auto [first, last] = part_of(elements(share), element_bytes_, index, pieces);
    runs[static_cast<std::size_t>(share)] = {before + first, last - first, row};
    before += elements(share);
    const std::size_t bytes = (last - first) * element_bytes_;
    row += aligned ? vectors_of(last - first, element_bytes_) * kernels::kVectorBytes : bytes;
  }
  return runs;
}

}  // namespace shoal::cuda
