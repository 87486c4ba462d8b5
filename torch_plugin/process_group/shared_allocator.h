// Memory that the ranks of a host share, as torch allocates it.
#pragma once

#include <memory>

#include <c10/core/Allocator.h>

namespace shoal::torch {

/// An allocator for CPU tensors whose memory comes from shoal::mem_alloc: what is reduced there is not copied first. One for
/// the process. It throws c10::DistBackendError where there is no memory left to share. Thread rule: any thread may call.
std::shared_ptr<c10::Allocator> shared_allocator();

}  // namespace shoal::torch
