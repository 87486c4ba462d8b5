// Memory that the other ranks of a host read where it lies.
#pragma once

#include <cstddef>

#include <shoal/status.h>

namespace shoal {

/// Memory for the buffers of calls: what lies here is not copied on its way to ranks of the same host. It is ordinary memory
/// otherwise, and may be given to any communicator of the process, made before or after it, in whole or in part.
///
/// At least `bytes` bytes, zero, page-aligned; pages exist from the first write on. After a fork, parent and child share what
/// was allocated before. Thread rule: any thread; not meant for the inner loop (takes a lock and changes page tables). Errors:
/// invalid_argument for 0 bytes; unsupported where the system has no memfd_create(2); system_error where the process has no
/// room left (it may hold as much as the machine has memory, at most 256 GiB).
Result<void*> mem_alloc(std::size_t bytes);

/// Gives memory back that mem_alloc() returned. No call may be in flight that uses it. Thread rule: any thread. Errors:
/// invalid_argument for anything else; nothing happens then, nor for null.
Status mem_free(void* memory);

}  // namespace shoal
