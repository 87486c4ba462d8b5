#include "tests/cuda/fake_cuda.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "kernels/host_run.h"

namespace shoal::testing {
namespace {

using cuda::FlagOperation;

constexpr std::size_t kPage = 4096;
/// Threads of a kernel of the fake: an odd number, so that nothing works by accident, and few, since each is a loop pass.
constexpr std::size_t kFakeThreads = 37;
/// Polling period of a flag: the fake polls as a real device does, but lets other threads run.
constexpr std::chrono::microseconds kFlagPeriod{40};

struct ExportedHandle {
  std::int64_t process;
  std::int64_t descriptor;
  std::uint64_t bytes;
  std::uint64_t wanted_bytes;
};

}  // namespace

struct FakeCuda::FakeStream {
  std::mutex mutex;
  std::condition_variable news;
  std::deque<std::function<void()>> work;
  std::uint64_t enqueued = 0;
  std::uint64_t done = 0;
  bool ending = false;
  std::mt19937_64 random;
  std::thread thread;
};

/// Recordings are numbered: a thread that waits while the event is recorded again waits for the earlier recording.
struct FakeCuda::FakeEvent {
  std::mutex mutex;
  std::condition_variable news;
  std::uint64_t recorded = 0;
  std::uint64_t happened = 0;
};

FakeCuda::FakeCuda(FakeCudaOptions options) : options_(std::move(options)) {
  default_stream_.reset(static_cast<FakeStream*>(*create_stream(false)));
  const std::scoped_lock lock(mutex_);
  for (auto each = streams_.begin(); each != streams_.end(); ++each) {
    if (each->get() != default_stream_.get()) continue;
    streams_.extract(each).value().release();  // NOLINT: owned by default_stream_ from here on
    break;
  }
}

FakeCuda::~FakeCuda() {
  stopping_ = true;
  std::set<std::unique_ptr<FakeStream>> streams;
  {
    const std::scoped_lock lock(mutex_);
    streams = std::move(streams_);
    streams.insert(std::move(default_stream_));
  }
  for (const auto& stream : streams) {
    {
      const std::scoped_lock lock(stream->mutex);
      stream->ending = true;
    }
    stream->news.notify_all();
    stream->thread.join();
  }
  for (FakeEvent* event : events_) delete event;
  for (const auto& [address, memory] : memories_) unmap(memory);
}

std::string FakeCuda::errors(bool at_end) {
  const std::scoped_lock lock(mutex_);
  std::string text = errors_;
  if (at_end && !memories_.empty()) text += fmt::format("{} allocations of device memory are not freed; ", memories_.size());
  if (at_end && !pinned_.empty()) text += fmt::format("{} allocations of pinned memory are not freed; ", pinned_.size());
  if (at_end && !events_.empty()) text += fmt::format("{} events are not destroyed; ", events_.size());
  return text;
}

std::byte* FakeCuda::host_address(void* memory) { return real(memory); }

void FakeCuda::add_error(const std::string& what) {
  const std::scoped_lock lock(mutex_);
  errors_ += what + "; ";
}

Status FakeCuda::refuse(const char* call) {
  if (options_.refused_call != call) return {};
  const std::scoped_lock lock(mutex_);
  if (calls_[call]++ < options_.refused_after) return {};
  return {StatusCode::system_error, fmt::format("{}: refused by the test", call)};
}

Result<int> FakeCuda::driver_version() { return 13000; }
Result<int> FakeCuda::device_count() { return 1; }
Result<int> FakeCuda::current_device() { return options_.device; }
Status FakeCuda::use_device(int) { return {}; }
Result<bool> FakeCuda::can_access_peer(int, int) { return options_.reads_peers; }

Result<cuda::DeviceDescription> FakeCuda::describe_device(int) {
  cuda::DeviceDescription description;
  description.name = "fake";
  description.processors = 4;
  description.major = 9;
  description.ipc = options_.exports_memory;
  description.stream_memory = true;
  description.mps = options_.mps;
  if (options_.own_device) {
    const pid_t process = ::getpid();
    std::memcpy(description.uuid.data(), &process, sizeof process);
  }
  return description;
}

Result<void*> FakeCuda::map(int descriptor, std::size_t bytes, std::size_t wanted, bool imported, std::byte* shown_at,
                            std::byte* real_at) {
  const int fixed = shown_at == nullptr ? 0 : MAP_FIXED;
  void* shown = ::mmap(shown_at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
  void* real = ::mmap(real_at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, descriptor, 0);
  if (shown == MAP_FAILED || real == MAP_FAILED) return system_error("mmap of fake device memory", errno);
  const std::scoped_lock lock(mutex_);
  memories_[reinterpret_cast<std::uintptr_t>(shown)] = {static_cast<std::byte*>(shown),
                                                        static_cast<std::byte*>(real),
                                                        bytes,
                                                        wanted,
                                                        descriptor,
                                                        next_id_++,
                                                        imported,
                                                        fixed != 0};
  return shown;
}

void FakeCuda::unmap(const Memory& memory) {
  ::munmap(memory.shown, memory.bytes);
  ::munmap(memory.real, memory.bytes);
  ::close(memory.descriptor);
}

std::byte* FakeCuda::real(const void* address) const {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  const std::scoped_lock lock(mutex_);
  auto above = memories_.upper_bound(wanted);
  if (above != memories_.begin()) {
    const auto& [start, memory] = *std::prev(above);
    if (wanted - start < memory.bytes) return memory.real + (wanted - start);
  }
  return static_cast<std::byte*>(const_cast<void*>(address));  // a host address, or freed: then it is not accessible
}

Result<cuda::PointerDescription> FakeCuda::describe_pointer(const void* pointer) {
  if (Status refused = refuse("describe_pointer"); !refused.ok()) return refused;
  const auto wanted = reinterpret_cast<std::uintptr_t>(pointer);
  const std::scoped_lock lock(mutex_);
  cuda::PointerDescription description;
  auto above = memories_.upper_bound(wanted);
  if (above == memories_.begin()) return description;
  const auto& [start, memory] = *std::prev(above);
  if (wanted - start >= memory.bytes) return description;
  description.kind = cuda::MemoryKind::device;
  description.device = options_.device;
  description.base = memory.shown;
  description.bytes = memory.wanted_bytes;
  description.allocation = memory.id;
  description.mapped = memory.mapped;
  return description;
}

Result<void*> FakeCuda::allocate(std::size_t bytes) {
  if (Status refused = refuse("allocate"); !refused.ok()) return refused;
  const std::size_t rounded = (bytes + kPage - 1) / kPage * kPage;
  const int descriptor = ::memfd_create("fake-device-memory", MFD_CLOEXEC);
  if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(rounded)) != 0)
    return system_error("fake device memory", errno);
  return map(descriptor, rounded, bytes, false);
}

void* FakeCuda::allocate_mapped(std::size_t piece_bytes, std::size_t pieces) {
  const auto reserve = [&] {
    void* place = ::mmap(nullptr, piece_bytes * pieces, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return static_cast<std::byte*>(place);
  };
  std::byte* shown = reserve();
  std::byte* real = reserve();
  for (std::size_t i = 0; i < pieces; ++i) {
    const int descriptor = ::memfd_create("fake-mapped-memory", MFD_CLOEXEC);
    if (descriptor < 0 || ::ftruncate(descriptor, static_cast<off_t>(piece_bytes)) != 0) return nullptr;
    const auto piece = map(descriptor, piece_bytes, piece_bytes, false, shown + i * piece_bytes, real + i * piece_bytes);
    if (!piece.ok()) return nullptr;
  }
  return shown;
}

int FakeCuda::imports() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<int>(std::count_if(memories_.begin(), memories_.end(), [](auto& each) { return each.second.imported; }));
}

Status FakeCuda::release(void* memory) {
  const std::scoped_lock lock(mutex_);
  const auto found = memories_.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == memories_.end() || found->second.imported) {
    errors_ += "release of memory that was not allocated; ";
    return {StatusCode::invalid_argument, "release of memory that was not allocated"};
  }
  unmap(found->second);
  memories_.erase(found);
  return {};
}

Result<void*> FakeCuda::allocate_pinned(std::size_t bytes) {
  if (Status refused = refuse("allocate_pinned"); !refused.ok()) return refused;
  void* memory = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
  const std::scoped_lock lock(mutex_);
  pinned_[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
  return memory;
}

Status FakeCuda::release_pinned(void* memory) {
  const std::scoped_lock lock(mutex_);
  if (pinned_.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) errors_ += "release of memory that was not pinned; ";
  std::free(memory);
  return {};
}

Status FakeCuda::pin(void* memory, std::size_t bytes) {
  if (Status refused = refuse("pin"); !refused.ok()) return refused;
  const std::scoped_lock lock(mutex_);
  pinned_[reinterpret_cast<std::uintptr_t>(memory)] = bytes;
  return {};
}

Status FakeCuda::unpin(void* memory) {
  const std::scoped_lock lock(mutex_);
  if (pinned_.erase(reinterpret_cast<std::uintptr_t>(memory)) == 0) errors_ += "unpin of memory that was not pinned; ";
  return {};
}

Result<cuda::MemoryHandle> FakeCuda::export_memory(void* base) {
  if (Status refused = refuse("export_memory"); !refused.ok()) return refused;
  if (!options_.exports_memory) return Status(StatusCode::unsupported, "the fake does not export memory");
  const std::scoped_lock lock(mutex_);
  const auto found = memories_.find(reinterpret_cast<std::uintptr_t>(base));
  if (found == memories_.end())
    return Status(StatusCode::invalid_argument, "export of an address that is not the base of an allocation");
  const Memory& memory = found->second;
  cuda::MemoryHandle handle;
  handle.size = memory.wanted_bytes;
  if (memory.mapped) {
    handle.descriptor = ::fcntl(memory.descriptor, F_DUPFD_CLOEXEC, 0);
    return handle;
  }
  const ExportedHandle exported{::getpid(), memory.descriptor, memory.bytes, memory.wanted_bytes};
  std::memcpy(handle.bytes.data(), &exported, sizeof exported);
  return handle;
}

Result<void*> FakeCuda::import_memory(const cuda::MemoryHandle& handle) {
  if (Status refused = refuse("import_memory"); !refused.ok()) return refused;
  if (!options_.reads_peers) return Status(StatusCode::unsupported, "the fake has no peer access");
  if (handle.descriptor >= 0) {
    const int own = ::fcntl(handle.descriptor, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return system_error("a descriptor of fake device memory", errno);
    return map(own, handle.size, handle.size, true);
  }
  ExportedHandle exported{};
  std::memcpy(&exported, handle.bytes.data(), sizeof exported);
  if (exported.process == ::getpid()) return Status(StatusCode::invalid_argument, "import of memory of this process");
  const std::string path = fmt::format("/proc/{}/fd/{}", exported.process, exported.descriptor);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) return system_error("open " + path, errno);
  return map(descriptor, exported.bytes, exported.wanted_bytes, true);
}

Status FakeCuda::forget_memory(void* imported) {
  const std::scoped_lock lock(mutex_);
  const auto found = memories_.find(reinterpret_cast<std::uintptr_t>(imported));
  if (found == memories_.end() || !found->second.imported) {
    errors_ += "forget of memory that was not imported; ";
    return {};
  }
  unmap(found->second);
  memories_.erase(found);
  return {};
}

Result<cuda::Stream> FakeCuda::create_stream(bool) {
  if (Status refused = refuse("create_stream"); !refused.ok()) return refused;
  auto stream = std::make_unique<FakeStream>();
  FakeStream* raw = stream.get();
  const std::scoped_lock lock(mutex_);
  raw->random.seed(options_.seed * 1000003 + streams_.size());
  raw->thread = std::thread([this, raw] {
    std::unique_lock own(raw->mutex);
    for (;;) {
      raw->news.wait(own, [&] { return raw->ending || !raw->work.empty(); });
      if (raw->work.empty()) return;
      const std::function<void()> work = std::move(raw->work.front());
      raw->work.pop_front();
      own.unlock();
      if (!stopping()) {
        delay(*raw);
        work();
      }
      own.lock();
      ++raw->done;
      raw->news.notify_all();
    }
  });
  streams_.insert(std::move(stream));
  return static_cast<cuda::Stream>(raw);
}

void FakeCuda::delay(FakeStream& stream) {
  if (options_.longest_delay_us == 0) return;
  const std::uint64_t draw = stream.random();
  if (draw % 4 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(draw / 4 % static_cast<unsigned>(options_.longest_delay_us)));
}

FakeCuda::FakeStream* FakeCuda::find(cuda::Stream stream) {
  return stream == nullptr ? default_stream_.get() : static_cast<FakeStream*>(stream);
}

Status FakeCuda::destroy_stream(cuda::Stream stream) {
  std::unique_ptr<FakeStream> ended;
  {
    const std::scoped_lock lock(mutex_);
    for (auto each = streams_.begin(); each != streams_.end(); ++each) {
      if (each->get() != stream) continue;
      ended = std::move(streams_.extract(each).value());
      break;
    }
  }
  if (ended == nullptr) return {StatusCode::invalid_argument, "no such stream"};
  {
    const std::scoped_lock lock(ended->mutex);
    ended->ending = true;
  }
  ended->news.notify_all();
  ended->thread.join();
  return {};
}

Status FakeCuda::enqueue(cuda::Stream stream, std::function<void()> work) {
  FakeStream* found = find(stream);
  {
    const std::scoped_lock lock(found->mutex);
    found->work.push_back(std::move(work));
    ++found->enqueued;
  }
  found->news.notify_all();
  return {};
}

Status FakeCuda::synchronize(cuda::Stream stream) {
  if (Status refused = refuse("synchronize"); !refused.ok()) return refused;
  FakeStream* found = find(stream);
  std::unique_lock lock(found->mutex);
  found->news.wait(lock, [&, until = found->enqueued] { return found->done >= until; });
  return {};
}

Result<bool> FakeCuda::is_capturing(cuda::Stream) {
  if (Status refused = refuse("is_capturing"); !refused.ok()) return refused;
  return options_.capturing;
}

Result<cuda::Event> FakeCuda::create_event() {
  if (Status refused = refuse("create_event"); !refused.ok()) return refused;
  auto* event = new FakeEvent();
  const std::scoped_lock lock(mutex_);
  events_.insert(event);
  return static_cast<cuda::Event>(event);
}

Status FakeCuda::destroy_event(cuda::Event event) {
  const std::scoped_lock lock(mutex_);
  if (events_.erase(static_cast<FakeEvent*>(event)) == 0) errors_ += "destroy of an unknown event; ";
  delete static_cast<FakeEvent*>(event);
  return {};
}

Status FakeCuda::record(cuda::Event event, cuda::Stream stream) {
  if (Status refused = refuse("record"); !refused.ok()) return refused;
  auto* fake = static_cast<FakeEvent*>(event);
  std::uint64_t number = 0;
  {
    const std::scoped_lock lock(fake->mutex);
    number = ++fake->recorded;
  }
  return enqueue(stream, [fake, number] {
    const std::scoped_lock lock(fake->mutex);
    fake->happened = number;
    fake->news.notify_all();
  });
}

Status FakeCuda::wait(cuda::Stream stream, cuda::Event event) {
  if (Status refused = refuse("wait"); !refused.ok()) return refused;
  auto* fake = static_cast<FakeEvent*>(event);
  std::uint64_t number = 0;
  {
    const std::scoped_lock lock(fake->mutex);
    number = fake->recorded;
  }
  return enqueue(stream, [this, fake, number] {
    std::unique_lock lock(fake->mutex);
    while (fake->happened < number && !stopping()) fake->news.wait_for(lock, std::chrono::milliseconds(5));
  });
}

Result<bool> FakeCuda::has_happened(cuda::Event event) {
  if (Status refused = refuse("has_happened"); !refused.ok()) return refused;
  auto* fake = static_cast<FakeEvent*>(event);
  const std::scoped_lock lock(fake->mutex);
  return fake->happened >= fake->recorded;
}

Status FakeCuda::wait_host(cuda::Event event) {
  auto* fake = static_cast<FakeEvent*>(event);
  std::unique_lock lock(fake->mutex);
  fake->news.wait(lock, [&] { return fake->happened >= fake->recorded; });
  return {};
}

Status FakeCuda::flags(cuda::Stream stream, std::span<const FlagOperation> operations) {
  if (Status refused = refuse("flags"); !refused.ok()) return refused;
  {
    const std::scoped_lock lock(mutex_);
    for (const FlagOperation& each : operations) {
      const auto address = reinterpret_cast<std::uintptr_t>(each.flag);
      auto above = pinned_.upper_bound(address);
      if (above == pinned_.begin() || address - std::prev(above)->first >= std::prev(above)->second)
        errors_ += "a flag is not in pinned memory; ";
    }
  }
  return enqueue(stream, [this, all = std::vector<FlagOperation>(operations.begin(), operations.end())] {
    for (const FlagOperation& each : all) {
      std::atomic_ref flag(*each.flag);
      if (each.kind == FlagOperation::Kind::write) {
        flag.store(each.value, std::memory_order_release);
        continue;
      }
      while (!kernels::reached(flag.load(std::memory_order_acquire), each.value) && !stopping())
        std::this_thread::sleep_for(kFlagPeriod);
    }
  });
}

Status FakeCuda::copy(void* target, const void* source, std::size_t bytes, cuda::Stream stream) {
  if (Status refused = refuse("copy"); !refused.ok()) return refused;
  std::byte* to = real(target);
  const std::byte* from = real(source);
  if (to == target) copied_to_host_ += static_cast<int>(bytes);
  return enqueue(stream, [to, from, bytes] { std::memcpy(to, from, bytes); });
}

Status FakeCuda::call_host(cuda::Stream stream, void (*function)(void*), void* argument) {
  if (Status refused = refuse("call_host"); !refused.ok()) return refused;
  return enqueue(stream, [function, argument] { function(argument); });
}

Status FakeCuda::load_kernels() { return refuse("load_kernels"); }

Status FakeCuda::launch(const kernels::FoldParameters& parameters, cuda::Stream stream) {
  if (Status refused = refuse("fold"); !refused.ok()) return refused;
  return enqueue(stream, [this, parameters] {
    if (parameters.cancelled != nullptr && std::atomic_ref(*const_cast<std::uint32_t*>(parameters.cancelled)).load() != 0)
      return;
    ++kernels_run_;
    kernels::run_on_host(
        parameters, [this](auto* address) { return real(address); }, kFakeThreads);
  });
}

Status FakeCuda::launch(const kernels::CopyParameters& parameters, cuda::Stream stream) {
  if (Status refused = refuse("copy_segments"); !refused.ok()) return refused;
  return enqueue(stream, [this, parameters] {
    if (parameters.cancelled != nullptr && std::atomic_ref(*const_cast<std::uint32_t*>(parameters.cancelled)).load() != 0)
      return;
    ++kernels_run_;
    kernels::run_on_host(
        parameters, [this](auto* address) { return real(address); }, kFakeThreads);
  });
}

Status FakeCuda::launch(const kernels::FusedParameters& parameters, cuda::Stream stream) {
  if (Status refused = refuse("fused"); !refused.ok()) return refused;
  return enqueue(stream, [this, parameters] {
    if (std::atomic_ref(*parameters.cancelled).load() != 0) return;
    ++kernels_run_;
    kernels::FusedParameters p = parameters;
    p.input = real(p.input);
    p.output = real(p.output);
    for (int r = 0; r < p.ranks; ++r) {
      p.staging[r] = real(p.staging[r]);
      p.results[r] = real(p.results[r]);
      p.flags[r] = reinterpret_cast<std::uint32_t*>(real(p.flags[r]));
    }
    static_cast<void>(kernels::run_on_host(p, kFakeThreads));
  });
}

}  // namespace shoal::testing
