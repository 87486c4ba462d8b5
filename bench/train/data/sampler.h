// Which images a rank uses in an epoch, and in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal::data {

/// The order of torch.utils.data.DistributedSampler(dataset, num_replicas=ranks, rank=rank, shuffle=shuffle, seed=seed) after
/// set_epoch(epoch): the same permutation of torch.randperm, padded from its own start until every rank has equally many,
/// dealt out round robin. The first `skip` images of the permutation are left out, because other ranks have used them. `size`
/// must be at least 1 and at most 2^32 / 20 (torch permutes larger sets differently), 0 <= rank < ranks, skip < size.
std::vector<std::size_t> distributed_order(std::size_t size, int rank, int ranks, bool shuffle, std::uint64_t seed,
                                           std::uint64_t epoch, std::size_t skip = 0);

}  // namespace shoal::data
