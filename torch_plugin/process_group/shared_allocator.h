// An allocator of torch for memory that the ranks of a host share.
#pragma once

#include <memory>

#include <c10/core/Allocator.h>

namespace shoal::torch {

/// An allocator for CPU tensors whose memory comes from shoal::mem_alloc: reductions on it skip the first copy. One per
/// process. It throws c10::DistBackendError if no shared memory is left. Thread rule: any thread may call.
std::shared_ptr<c10::Allocator> shared_allocator();

}  // namespace shoal::torch
