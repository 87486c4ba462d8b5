#include "torch_plugin/ddp/transfer_order.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace shoal::ddp {

std::vector<std::size_t> transfer_order(const std::vector<Transfer>& transfers) {
  std::vector<std::size_t> waiting(transfers.size());
  std::iota(waiting.begin(), waiting.end(), std::size_t{0});
  std::vector<std::size_t> order;
  double free_at = 0;
  while (!waiting.empty()) {
    // Ready ones compare by need alone, the others come after them by when they are ready.
    const auto next = std::ranges::min_element(waiting, {}, [&](std::size_t index) {
      const Transfer& transfer = transfers[index];
      return std::tuple(std::max(transfer.ready_s, free_at), transfer.needed_at, index);
    });
    free_at = std::max(transfers[*next].ready_s, free_at) + transfers[*next].wire_s;
    order.push_back(*next);
    waiting.erase(next);
  }
  return order;
}

}  // namespace shoal::ddp
