// The kernels on the host: the work of the device's threads, here in a loop, by the same code. For the tests and their fake
// device; far too slow for anything else.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "kernels/dispatch.h"
#include "kernels/fold.h"
#include "kernels/fused.h"

namespace shoal::kernels {

/// `memory` turns addresses of the device into ones that the host may touch.
template <class Memory>
void run_on_host(const FoldParameters& p, const Memory& memory, std::size_t threads) {
  Fold fold{};
  for (int k = 0; k < p.source_count; ++k) {
    Source source = p.sources[k];
    fold.sources[k] = memory(resolve(source));
  }
  fold.source_count = p.source_count;
  for (int j = 0; j < 2; ++j) fold.targets[j] = p.targets[j] == nullptr ? nullptr : memory(p.targets[j]);
  fold.count = p.count;
  fold.divisor = p.divisor;
  visit_variant(p.type, p.op, p.divisor, [&](auto variant) {
    using V = decltype(variant);
    for (std::size_t thread = 0; thread < threads; ++thread) {
      fold_thread<typename V::Element, typename V::Op, V::kDivides>(fold, thread, threads);
    }
  });
}

template <class Memory>
void run_on_host(const CopyParameters& p, const Memory& memory, std::size_t threads) {
  for (int s = 0; s < p.segment_count; ++s) {
    const CopyParameters::Segment& segment = p.segments[s];
    if (segment.bytes == 0) continue;
    const std::byte* source = memory(resolve(segment.source));
    std::byte* target = memory(segment.target);
    for (std::size_t thread = 0; thread < threads; ++thread) copy_thread(target, source, segment.bytes, thread, threads);
  }
}

/// One block at a time, as a device may run them. False where it has stopped because of `cancelled`. The pointers of `p` are
/// addresses of the host already.
inline bool run_on_host(const FusedParameters& p, std::size_t threads) {
  const std::size_t element_bytes = size_of(p.type);
  const auto meet = [&](int block, std::uint32_t epoch) {
    for (int r = 0; r < p.ranks; ++r) {
      std::atomic_ref(p.flags[r][flag_index(p.rank, block)]).store(epoch, std::memory_order_release);
    }
    for (int r = 0; r < p.ranks; ++r) {
      std::atomic_ref flag(p.flags[p.rank][flag_index(r, block)]);
      while (!reached(flag.load(std::memory_order_acquire), epoch)) {
        if (std::atomic_ref(*p.cancelled).load(std::memory_order_relaxed) != 0) return false;
        std::this_thread::yield();
      }
    }
    return true;
  };
  for (int block = 0; block < p.blocks; ++block) {
    for (std::size_t t = 0; t < threads; ++t) fused_give(p, element_bytes, block, t, threads);
    if (!meet(block, p.epoch + 1)) return false;
    Fold fold{};
    set_fused_fold(fold, p, element_bytes, block);
    visit_variant(p.type, p.op, p.divisor, [&](auto variant) {
      using V = decltype(variant);
      for (std::size_t t = 0; t < threads; ++t) fold_thread<typename V::Element, typename V::Op, V::kDivides>(fold, t, threads);
    });
    if (!p.two_shot) continue;
    if (!meet(block, p.epoch + 2)) return false;
    for (std::size_t t = 0; t < threads; ++t) fused_take(p, element_bytes, block, t, threads);
  }
  return true;
}

}  // namespace shoal::kernels
