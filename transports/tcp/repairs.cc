#include "transports/tcp/repairs.h"

#include <atomic>

namespace shoal::tcp {
namespace {

std::atomic<std::uint64_t> tiles{0};
std::atomic<std::uint64_t> connections{0};

}  // namespace

void count_repaired_tile() noexcept { tiles.fetch_add(1, std::memory_order_relaxed); }
void count_repaired_connection() noexcept { connections.fetch_add(1, std::memory_order_relaxed); }
Repairs repairs() noexcept { return {tiles.load(std::memory_order_relaxed), connections.load(std::memory_order_relaxed)}; }

}  // namespace shoal::tcp
