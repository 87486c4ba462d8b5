#include "torch_plugin/process_group/shared_allocator.h"

#include <cstddef>

#include <c10/util/Exception.h>

#include <shoal/memory.h>

namespace shoal::torch {
namespace {

void free_piece(void* piece) { static_cast<void>(mem_free(piece)); }

class SharedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, nullptr, cpu};
    Result<void*> memory = mem_alloc(bytes);
    if (!memory.ok()) C10_THROW_ERROR(DistBackendError, "shoal: " + memory.status().message());
    return {*memory, *memory, free_piece, cpu};
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return free_piece; }
  void copy_data(void* target, const void* source, std::size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

}  // namespace

std::shared_ptr<c10::Allocator> shared_allocator() {
  static const auto allocator = std::make_shared<SharedAllocator>();
  return allocator;
}

}  // namespace shoal::torch
