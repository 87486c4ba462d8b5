// Memory that the other ranks of a host read directly, without a copy.
#pragma once

#include <cstddef>

#include <shoal/status.h>

namespace shoal {

/// Memory for the buffers of calls: ranks of the same host read it directly, without a copy. Otherwise it is ordinary memory:
/// any communicator of the process, made earlier or later, may use it in whole or in part.
///
/// At least `bytes` bytes, zero, page-aligned; a page is committed at its first write. After a fork, parent and child share
/// memory that was allocated before. Thread rule: any thread; not meant for the inner loop (takes a lock and changes page
/// tables). Errors: invalid_argument for 0 bytes; unsupported where the system has no memfd_create(2); system_error where the
/// process has no room left (it may hold as much as the machine has memory, at most 256 GiB).
Result<void*> mem_alloc(std::size_t bytes);

/// Frees memory that mem_alloc() returned. No call in flight may use it. Null is ignored. Thread rule: any thread. Errors:
/// invalid_argument for any other pointer; nothing is freed then.
Status mem_free(void* memory);

}  // namespace shoal
