#include "tests/torch/fake_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/torch.h>

namespace shoal::fake {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr std::uint32_t kSeed = 20;
constexpr int kPoolStreams = 5;
constexpr unsigned char kFreed = 0xEE, kJunk = 0xA5;
// No address in user space has this bit.
constexpr std::uintptr_t kTag = std::uintptr_t{1} << 50;

template <typename T>
T* tagged(T* memory) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(memory) | kTag);
}
template <typename T>
T* memory_of(T* address) {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(address) & ~kTag);
}

std::atomic<std::uint32_t> common_seed{kSeed};

class Queue {
 public:
  explicit Queue(std::uint32_t number) : number_(number) {
    std::thread([this] { run(); }).detach();  // a queue lives as long as the process
  }

  void push(std::function<void()> step) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      steps_.push_back(std::move(step));
    }
    changed_.notify_all();
  }
  bool idle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return steps_.empty();
  }
  void wait_until_idle() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return steps_.empty(); });
  }

 private:
  void run() {
    std::uniform_int_distribution<int> late_us(300, 1500);
    std::uint32_t seed = 0;
    std::mt19937 random;
    for (;;) {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !steps_.empty(); });
      const std::function<void()> step = std::move(steps_.front());
      lock.unlock();
      if (const std::uint32_t wanted = common_seed + number_; wanted != seed) random.seed(seed = wanted);
      std::this_thread::sleep_for(std::chrono::microseconds(late_us(random)));
      step();
      lock.lock();
      steps_.pop_front();
      changed_.notify_all();
    }
  }

  const std::uint32_t number_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> steps_;  ///< the first one is running
};

/// All streams of all devices. A stream's number is its index; number 0 is a device's default stream.
class Streams {
 public:
  Queue& queue(const c10::Stream& stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return at(stream.device_index(), static_cast<std::size_t>(stream.id()));
  }
  c10::Stream from_pool(c10::DeviceIndex index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stream(index, 1 + taken_[static_cast<std::size_t>(index)]++ % kPoolStreams);
  }
  c10::Stream make(c10::DeviceIndex index) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t number = std::max<std::size_t>(queues_[static_cast<std::size_t>(index)].size(), 1 + kPoolStreams);
    at(index, number);
    return stream(index, static_cast<int>(number));
  }
  static c10::Stream stream(c10::DeviceIndex index, int number) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kType, index), number);
  }
  void wait_until_idle() {
    for (bool idle = false; !idle;) {  // the end of a step may be the beginning of another
      std::vector<Queue*> all;
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const auto& of_device : queues_)
          for (const auto& queue : of_device)
            if (queue) all.push_back(queue.get());
      }
      for (Queue* queue : all) queue->wait_until_idle();
      idle = std::ranges::all_of(all, [](Queue* queue) { return queue->idle(); });
    }
  }

 private:
  Queue& at(c10::DeviceIndex index, std::size_t number) {
    std::vector<std::unique_ptr<Queue>>& of_device = queues_[static_cast<std::size_t>(index)];
    if (of_device.size() <= number) of_device.resize(number + 1);
    if (!of_device[number]) of_device[number] = std::make_unique<Queue>(100U * index + static_cast<std::uint32_t>(number));
    return *of_device[number];
  }

  std::mutex mutex_;
  std::array<std::vector<std::unique_ptr<Queue>>, kDevices> queues_;
  std::array<int, kDevices> taken_{};
};

Streams& streams() {
  static Streams& all = *new Streams;  // its threads run until the process ends
  return all;
}

class Event {
 public:
  void record(const c10::Stream& stream) {
    const int number = ++state_->recorded;
    streams().queue(stream).push([state = state_, number] {
      const std::lock_guard<std::mutex> lock(state->mutex);
      state->reached = std::max(state->reached, number);
      state->changed.notify_all();
    });
  }
  void block(const c10::Stream& stream) const {
    streams().queue(stream).push([state = state_, number = state_->recorded] { state->wait(number); });
  }
  void synchronize() const { state_->wait(state_->recorded); }
  [[nodiscard]] bool query() const {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    return state_->reached >= state_->recorded;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int recorded = 0;  ///< used only by the thread that owns the event
    int reached = 0;
    void wait(int number) {
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return reached >= number; });
    }
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

thread_local c10::DeviceIndex this_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : this_device; }
c10::Stream current_stream(c10::Device device) {
  const c10::DeviceIndex index = index_of(device);
  return Streams::stream(index, static_cast<int>(current_streams[static_cast<std::size_t>(index)]));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(this_device, index_of(device))};
  }
  c10::Device getDevice() const override { return {kType, this_device}; }
  void setDevice(c10::Device device) const override { this_device = index_of(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { this_device = index_of(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  c10::Stream getStream(c10::Device device) const override { return current_stream(device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return Streams::stream(index_of(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return streams().from_pool(index_of(device)); }
  c10::Stream getNewStream(c10::Device device, int) const override { return streams().make(index_of(device)); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::StreamId before = std::exchange(current_streams[static_cast<std::size_t>(stream.device_index())], stream.id());
    return Streams::stream(stream.device_index(), static_cast<int>(before));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return &streams().queue(stream); }
  bool queryStream(const c10::Stream& stream) const override { return streams().queue(stream).idle(); }
  void synchronizeStream(const c10::Stream& stream) const override { streams().queue(stream).wait_until_idle(); }
  void synchronizeDevice(c10::DeviceIndex) const override { streams().wait_until_idle(); }  // of all devices

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->record(stream);
  }
  void block(void* event, const c10::Stream& stream) const override { static_cast<Event*>(event)->block(stream); }
  bool queryEvent(void* event) const override { return static_cast<Event*>(event)->query(); }
  void synchronizeEvent(void* event) const override { static_cast<Event*>(event)->synchronize(); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

  void recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const override;
};

/// One allocation of device memory.
struct Block {
  std::vector<unsigned char> memory;
  c10::Stream stream;  ///< the stream of the allocation
  std::uint64_t number = 0;
  std::mutex mutex;
  std::vector<c10::Stream> used_in;
  Block(std::size_t bytes, c10::Stream made_in) : memory(bytes, kFreed), stream(made_in) {}
};

std::mutex blocks_mutex;
std::vector<Block*>& freed_blocks() {
  static std::vector<Block*>& blocks = *new std::vector<Block*>;
  return blocks;
}
/// Allocations in use, by start address.
std::map<const unsigned char*, Block*>& used_blocks() {
  static auto& blocks = *new std::map<const unsigned char*, Block*>;
  return blocks;
}

Block* make_block(std::size_t bytes, c10::Stream made_in) {
  static std::uint64_t made = 0;
  auto* block = new Block(bytes, made_in);
  const std::lock_guard<std::mutex> lock(blocks_mutex);
  block->number = ++made;
  used_blocks()[block->memory.data()] = block;
  return block;
}

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  {
    const std::lock_guard<std::mutex> lock(blocks_mutex);
    used_blocks().erase(block->memory.data());
  }
  for (const c10::Stream& stream : block->used_in) {
    Event last_use;
    last_use.record(stream);
    last_use.block(block->stream);
  }
  streams().queue(block->stream).push([block] {
    std::ranges::fill(block->memory, kFreed);
    const std::lock_guard<std::mutex> lock(blocks_mutex);
    freed_blocks().push_back(block);
  });
}

void Guard::recordDataPtrOnStream(const c10::DataPtr& pointer, const c10::Stream& stream) const {
  if (pointer.get_deleter() != &free_block) return;
  auto* block = static_cast<Block*>(pointer.get_context());
  const std::lock_guard<std::mutex> lock(block->mutex);
  if (stream != block->stream) block->used_in.push_back(stream);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device(kType, this_device);
    if (bytes == 0) return {nullptr, device};
    Block* block = make_block(bytes, current_stream(device));
    return {tagged(block->memory.data()), block, &free_block, device};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(memory_of(to), memory_of(from), bytes);
  }
};

/// Pinned memory: start and size.
std::mutex pinned_mutex;
std::map<const char*, std::size_t>& pinned_pieces() {
  static auto& pieces = *new std::map<const char*, std::size_t>;
  return pieces;
}

void free_pinned(void* memory) {
  {
    const std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned_pieces().erase(static_cast<const char*>(memory));
  }
  std::free(memory);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::kCPU)};
    void* memory = std::malloc(bytes);
    std::memset(memory, kJunk, bytes);
    const std::lock_guard<std::mutex> lock(pinned_mutex);
    pinned_pieces()[static_cast<const char*>(memory)] = bytes;
    return {memory, memory, &free_pinned, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

bool is_pinned(const void* address) {
  const std::lock_guard<std::mutex> lock(pinned_mutex);
  const auto after = pinned_pieces().upper_bound(static_cast<const char*>(address));
  if (after == pinned_pieces().begin()) return false;
  const auto& [begin, bytes] = *std::prev(after);
  return static_cast<const char*>(address) < begin + bytes;
}

c10::Allocator& pinned_allocator() {
  static PinnedAllocator allocator;
  return allocator;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  bool isPinnedPtr(const void* address) const override { return is_pinned(address); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_allocator(); }
  // at::manual_seed() asks for it.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex /*device*/) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
};

DeviceAllocator device_allocator;

at::Tensor empty_in(at::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                    std::optional<at::Device> where, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(where.value_or(c10::Device(kType)));
  return at::detail::empty_generic(sizes, &device_allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   type.value_or(at::kFloat), format);
}

at::Tensor empty_strided_in(at::IntArrayRef sizes, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                            std::optional<at::Layout>, std::optional<at::Device> where, std::optional<bool>) {
  const c10::DeviceGuard guard(where.value_or(c10::Device(kType)));
  return at::detail::empty_strided_generic(sizes, strides, &device_allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type.value_or(at::kFloat));
}

/// The same elements as a CPU tensor, which owns nothing: as on a GPU, the owner frees the memory and has to know its users.
at::Tensor elements_of(const at::Tensor& tensor) {
  at::Tensor elements = at::from_blob(memory_of(tensor.data_ptr()), tensor.sizes(), tensor.strides(),
                                      at::TensorOptions(at::kCPU).dtype(tensor.dtype()));
  if (tensor.is_conj()) elements._set_conj(true);
  if (tensor.is_neg()) elements._set_neg(true);
  return elements;
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (to.numel() == 0) return to;
  const at::Tensor& on_fake = to.is_privateuseone() ? to : from;
  const at::Tensor& other = to.is_privateuseone() ? from : to;
  TORCH_CHECK(other.is_cpu() || other.device() == on_fake.device(), "fake: a copy between two devices");
  const bool in_order = !other.is_cpu() || (non_blocking && is_pinned(other.data_ptr()));
  const c10::Stream stream = current_stream(on_fake.device());
  // Host memory is kept until then, as torch's allocators of pinned memory keep it.
  const at::Tensor source = from.is_cpu() ? from : elements_of(from);
  const at::Tensor target = to.is_cpu() ? to : elements_of(to);
  streams().queue(stream).push([source, target] {
    const at::NoGradGuard no_grad;
    target.copy_(source);
  });
  if (!in_order) {
    Event end;
    end.record(stream);
    end.synchronize();
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  TORCH_CHECK(from.sizes() == to.sizes(), "fake: cannot resize");
  return copy_from(from, to, false);
}

at::Tensor& fill(at::Tensor& tensor, const at::Scalar& value) {
  if (tensor.numel() == 0) return tensor;
  streams().queue(current_stream(tensor.device())).push([elements = elements_of(tensor), value]() mutable {
    const at::NoGradGuard no_grad;
    elements.fill_(value);
  });
  return tensor;
}

void on_the_cpu(const c10::OperatorHandle& op, ::torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

[[maybe_unused]] const bool installed = [] {
  c10::register_privateuse1_backend("fake");
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  c10::SetAllocator(kType, &device_allocator);
  return true;
}();

}  // namespace

at::Device device(int index) { return {kType, static_cast<c10::DeviceIndex>(index)}; }

c10::Stream new_stream(int index) { return streams().make(static_cast<c10::DeviceIndex>(index)); }

at::Tensor on_device(const at::Tensor& tensor, int index) {
  const at::Tensor pinned = at::detail::empty_generic(tensor.sizes(), &pinned_allocator(),
                                                      c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.scalar_type(), {});
  pinned.copy_(tensor);
  return at::empty(tensor.sizes(), tensor.options().device(device(index))).copy_(pinned, /*non_blocking=*/true);
}

void keep_busy(int index, int steps) {
  for (int i = 0; i < steps; ++i) streams().queue(current_stream(device(index))).push([] {});
}

BusyStream::BusyStream(int index) {
  streams().queue(current_stream(device(index))).push([released = released_] { released->wait(false); });
}

void BusyStream::release() {
  *released_ = true;
  released_->notify_all();
}

void set_seed(std::uint32_t seed) { common_seed = seed; }

bool freed_memory_is_untouched() {
  streams().wait_until_idle();
  std::vector<Block*> freed;
  {
    const std::lock_guard<std::mutex> lock(blocks_mutex);
    std::swap(freed, freed_blocks());
  }
  bool untouched = true;
  for (const Block* block : freed) {
    untouched = untouched && std::ranges::all_of(block->memory, [](unsigned char byte) { return byte == kFreed; });
    delete block;
  }
  return untouched;
}

namespace {
Queue& queue_of(void* stream) {
  return stream != nullptr ? *static_cast<Queue*>(stream) : streams().queue(Streams::stream(this_device, 0));
}
}  // namespace

void enqueue(void* stream, std::function<void()> step) { queue_of(stream).push(std::move(step)); }
void synchronize(void* stream) { queue_of(stream).wait_until_idle(); }
int current_device() { return this_device; }
void set_current_device(int index) { this_device = static_cast<c10::DeviceIndex>(index); }

void* allocate(std::size_t bytes) { return tagged(make_block(bytes, current_stream(device(this_device)))->memory.data()); }

void release(void* memory) {
  Block* block = nullptr;
  {
    const std::lock_guard<std::mutex> lock(blocks_mutex);
    block = used_blocks().at(memory_of(static_cast<unsigned char*>(memory)));
  }
  free_block(block);
}

std::optional<Allocation> allocation_of(const void* address) {
  const auto* wanted = memory_of(static_cast<const unsigned char*>(address));
  if (wanted == address) return std::nullopt;
  const std::lock_guard<std::mutex> lock(blocks_mutex);
  const auto after = used_blocks().upper_bound(wanted);
  if (after == used_blocks().begin()) return std::nullopt;
  const auto& [begin, block] = *std::prev(after);
  if (wanted >= begin + block->memory.size()) return std::nullopt;
  return Allocation{tagged(block->memory.data()), block->memory.size(), block->stream.device_index(), block->number};
}

void* host_address(const void* address) { return const_cast<void*>(memory_of(address)); }

}  // namespace shoal::fake

// Outside of the namespaces: in shoal, these macros would find the namespace shoal::torch.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  using namespace shoal::fake;
  library.impl("empty.memory_format", &empty_in);
  library.impl("empty_strided", &empty_strided_in);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("fill_.Scalar", &fill);
  library.impl("view", &at::native::view);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&shoal::fake::on_the_cpu>());
}
