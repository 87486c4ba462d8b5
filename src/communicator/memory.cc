#include <shoal/memory.h>

#include "transports/shm/arena.h"

namespace shoal {

Result<void*> mem_alloc(std::size_t bytes) {
  shm::Arena* arena = shm::Arena::instance();
  if (arena == nullptr)
    return Status(StatusCode::unsupported, "shared memory: not available on this system (memfd_create, mmap)");
  return arena->allocate(bytes);
}

Status mem_free(void* memory) {
  if (memory == nullptr) return {};
  shm::Arena* arena = shm::Arena::instance();
  if (arena == nullptr)
    return {StatusCode::invalid_argument, "shared memory: mem_free of a pointer that mem_alloc did not return"};
  return arena->free(memory);
}

}  // namespace shoal
