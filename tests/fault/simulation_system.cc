#include "tests/fault/simulation_system.h"

#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

namespace shoal::testing {
namespace {

using Clock = SimulatedClock;
using std::chrono::nanoseconds;

constexpr int kFirstDescriptor = 1 << 24;  // above the kernel's descriptors
// How much a read of the clock advances it, so that a loop that waits for a time ends; more after many reads in one step.
constexpr nanoseconds kRead{100};
constexpr nanoseconds kReadInLoop{50'000};
constexpr unsigned kManyReads = 1000;
constexpr unsigned kMostReads = 1'000'000;

struct Descriptor {
  enum class Kind { closed, event, timer, set };
  Kind kind = Kind::closed;
  std::uint64_t count = 0;               // of an event
  std::optional<Clock::time_point> due;  // of a timer
  std::vector<int> watched;              // of a set
};

struct System {
  unsigned long long seed = 0;
  Clock::time_point now = Simulated::kStart;
  std::vector<Descriptor> descriptors;
  std::vector<int> unused;
  std::function<void()> meanwhile;
  unsigned reads = 0;
  const char* step = "nothing";
  unsigned long long step_number = 0;
};

// Null outside of a simulation. constinit, because the interposed functions are called before any constructor runs.
constinit System* system_now = nullptr;

[[noreturn]] void give_up(const char* why) {
  std::fprintf(stderr, "simulation of seed %llu: %s in %s %llu\n", system_now->seed, why, system_now->step,
               system_now->step_number);
  std::abort();
}

Descriptor* find(int fd) {
  if (system_now == nullptr || fd < kFirstDescriptor) return nullptr;
  return &system_now->descriptors[static_cast<std::size_t>(fd - kFirstDescriptor)];
}

int open(Descriptor::Kind kind) {
  if (system_now->unused.empty()) {
    system_now->unused.push_back(kFirstDescriptor + static_cast<int>(system_now->descriptors.size()));
    system_now->descriptors.emplace_back();
  }
  const int fd = system_now->unused.back();
  system_now->unused.pop_back();
  find(fd)->kind = kind;
  return fd;
}

int fail_with(int error) {
  errno = error;
  return -1;
}

bool readable(const Descriptor& descriptor) {
  switch (descriptor.kind) {
    case Descriptor::Kind::event:
      return descriptor.count > 0;
    case Descriptor::Kind::timer:
      return descriptor.due && *descriptor.due <= system_now->now;
    case Descriptor::Kind::set:
      return std::ranges::any_of(descriptor.watched, [](int fd) { return readable(*find(fd)); });
    default:
      return false;
  }
}

/// Reads and resets the counter of an event or a timer.
std::uint64_t taken_from(Descriptor& descriptor) {
  if (!readable(descriptor)) return 0;
  if (descriptor.kind == Descriptor::Kind::event) return std::exchange(descriptor.count, 0);
  descriptor.due.reset();
  return 1;
}

int count_ready(pollfd* descriptors, nfds_t count) {
  int ready = 0;
  for (nfds_t i = 0; i < count; ++i) {
    descriptors[i].revents = Simulated::is_readable(descriptors[i].fd) ? POLLIN : 0;
    ready += descriptors[i].revents != 0;
  }
  return ready;
}

}  // namespace

Simulated::Simulated(std::uint64_t seed) {
  system_now = new System;
  system_now->seed = seed;
}

Simulated::~Simulated() { delete std::exchange(system_now, nullptr); }

Clock::time_point Simulated::now() noexcept { return system_now->now; }
void Simulated::pass(nanoseconds time) noexcept { system_now->now += time; }
void Simulated::pass_until(Clock::time_point time) noexcept { system_now->now = std::max(system_now->now, time); }
void Simulated::go_back_to(Clock::time_point time) noexcept { system_now->now = time; }

bool Simulated::is_readable(int fd) { return readable(*find(fd)); }

std::optional<Clock::time_point> Simulated::due(int fd) {
  const Descriptor& descriptor = *find(fd);
  std::optional<Clock::time_point> first = descriptor.due;
  for (const int watched : descriptor.watched) {
    if (const auto its = find(watched)->due; its && (!first || *its < *first)) first = its;
  }
  return first;
}

std::size_t Simulated::open_descriptors() noexcept { return system_now->descriptors.size() - system_now->unused.size(); }

void Simulated::set_meanwhile(std::function<void()> meanwhile) { system_now->meanwhile = std::move(meanwhile); }

void Simulated::start_step(const char* what, unsigned long long number) noexcept {
  system_now->reads = 0;
  system_now->step = what;
  system_now->step_number = number;
}

}  // namespace shoal::testing

// The interposed functions. Virtual descriptors never reach the kernel.
using namespace shoal::testing;

extern "C" {

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (system_now == nullptr || clock != CLOCK_MONOTONIC) return static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (++system_now->reads > kMostReads) give_up("endless reads of the clock");
  system_now->now += system_now->reads > kManyReads ? kReadInLoop : kRead;
  const auto since = system_now->now.time_since_epoch().count();
  *time = {since / 1'000'000'000, since % 1'000'000'000};
  return 0;
}
int eventfd(unsigned count, int flags) noexcept {
  if (system_now == nullptr) return static_cast<int>(::syscall(SYS_eventfd2, count, flags));
  const int fd = open(Descriptor::Kind::event);
  find(fd)->count = count;
  return fd;
}
int timerfd_create(clockid_t clock, int flags) noexcept {
  if (system_now == nullptr) return static_cast<int>(::syscall(SYS_timerfd_create, clock, flags));
  return open(Descriptor::Kind::timer);
}
int timerfd_settime(int fd, int flags, const itimerspec* wanted, itimerspec* before) noexcept {
  Descriptor* const timer = find(fd);
  if (timer == nullptr) return static_cast<int>(::syscall(SYS_timerfd_settime, fd, flags, wanted, before));
  if (flags != TFD_TIMER_ABSTIME) return fail_with(EINVAL);  // the library uses absolute times only
  const nanoseconds since = std::chrono::seconds(wanted->it_value.tv_sec) + nanoseconds(wanted->it_value.tv_nsec);
  timer->due = since.count() == 0 ? std::nullopt : std::optional(Clock::time_point(since));
  return 0;
}
int epoll_create1(int flags) noexcept {
  if (system_now == nullptr) return static_cast<int>(::syscall(SYS_epoll_create1, flags));
  return open(Descriptor::Kind::set);
}
int epoll_ctl(int set, int operation, int fd, epoll_event* event) noexcept {
  Descriptor* const descriptor = find(set);
  if (descriptor == nullptr) return static_cast<int>(::syscall(SYS_epoll_ctl, set, operation, fd, event));
  if (operation != EPOLL_CTL_ADD) return fail_with(EINVAL);
  descriptor->watched.push_back(fd);
  return 0;
}
int poll(pollfd* descriptors, nfds_t count, int timeout_ms) {
  // The C library declares `descriptors` as write-only, so the compiler would drop earlier writes to it.
  pollfd* volatile hidden = descriptors;
  pollfd* const all = hidden;
  if (system_now == nullptr || count == 0 || find(all->fd) == nullptr) {
    const timespec timeout{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
    return static_cast<int>(::syscall(SYS_ppoll, all, count, timeout_ms < 0 ? nullptr : &timeout, nullptr, 0));
  }
  if (const int ready = count_ready(all, count); ready > 0) return ready;
  if (timeout_ms < 0) give_up("poll() without a timeout");
  auto until = system_now->now + std::chrono::milliseconds(timeout_ms);
  for (nfds_t i = 0; i < count; ++i) until = std::min(until, Simulated::due(all[i].fd).value_or(until));
  Simulated::pass_until(until);
  return count_ready(all, count);
}
ssize_t read(int fd, void* buffer, size_t bytes) {
  Descriptor* const descriptor = find(fd);
  if (descriptor == nullptr) return ::syscall(SYS_read, fd, buffer, bytes);
  const std::uint64_t count = taken_from(*descriptor);
  if (count == 0) return fail_with(EAGAIN);
  std::memcpy(buffer, &count, sizeof count);
  return sizeof count;
}
ssize_t write(int fd, const void* buffer, size_t bytes) {
  Descriptor* const descriptor = find(fd);
  if (descriptor == nullptr) return ::syscall(SYS_write, fd, buffer, bytes);
  std::uint64_t count = 0;
  std::memcpy(&count, buffer, sizeof count);
  descriptor->count += count;
  return sizeof count;
}
int close(int fd) {
  Descriptor* const descriptor = find(fd);
  if (descriptor == nullptr) return static_cast<int>(::syscall(SYS_close, fd));
  *descriptor = {};
  system_now->unused.push_back(fd);
  return 0;
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  if (system_now == nullptr) {
    static const auto real = reinterpret_cast<decltype(&pthread_cond_clockwait)>(::dlsym(RTLD_NEXT, "pthread_cond_clockwait"));
    return real(condition, mutex, clock, until);
  }
  if (!system_now->meanwhile) give_up("wait for a condition variable");
  ::pthread_mutex_unlock(mutex);
  system_now->meanwhile();
  ::pthread_mutex_lock(mutex);
  return 0;
}

}  // extern "C"
