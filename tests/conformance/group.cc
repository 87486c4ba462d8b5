#include "tests/conformance/group.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <thread>
#include <utility>

#include "transports/shm/arena.h"

namespace shoal::conformance {

namespace {

constexpr int kMaxRanks = 8;
constexpr std::size_t kMaxAddress = 1024;
/// Time limit of until(), for events that take microseconds.
constexpr std::chrono::seconds kTimeLimit{60};

using Clock = std::chrono::steady_clock;

}  // namespace

/// Memory that all ranks share beside the transport under test.
struct SharedPage {
  pthread_barrier_t barrier;
  std::atomic<bool> announced;
  std::atomic<int> connected;
  std::size_t address_bytes[kMaxRanks];
  char address[kMaxRanks][kMaxAddress];
};

namespace {

class SharedMemory {
 public:
  explicit SharedMemory(int ranks) {
    page_ = static_cast<SharedPage*>(
        ::mmap(nullptr, sizeof(SharedPage), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&page_->barrier, &attributes, static_cast<unsigned>(ranks));
    pthread_barrierattr_destroy(&attributes);
  }
  ~SharedMemory() { ::munmap(page_, sizeof(SharedPage)); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  SharedPage& page() { return *page_; }

 private:
  SharedPage* page_;
};

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

char watchdog_text[256];
unsigned watchdog_seconds = 0;

void on_alarm(int) {
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, watchdog_text, std::strlen(watchdog_text));
  ::_exit(99);
}

}  // namespace

std::vector<int> Rank::peers() const {
  std::vector<int> result;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) result.push_back(rank);
  }
  return result;
}

Link& Rank::link(int peer) const {
  const auto found = std::find_if(links_.begin(), links_.end(), [peer](const auto& link) { return link->peer() == peer; });
  if (found == links_.end()) ADD_FAILURE() << "rank " << rank_ << " has no link to rank " << peer;
  return **found;
}

void Rank::barrier() { pthread_barrier_wait(&page_.barrier); }

void Rank::announce() { page_.announced.store(true); }

void Rank::await_announcement() {
  drive_until([this] { return page_.announced.load(); });
}

void Rank::drive_until(const std::function<bool()>& done) {
  while (!done()) {
    transport_->progress();
    ::sched_yield();
  }
}

bool Rank::wait(const std::function<bool()>& done, bool look_before_blocking) {
  const auto deadline = Clock::now() + kTimeLimit;
  while (!done()) {
    if (transport_->progress()) continue;
    if (Clock::now() >= deadline) {
      ADD_FAILURE() << "rank " << rank_ << " of " << size_ << " waited for a condition that did not become true";
      return false;
    }
    if (!transport_->prepare_wait()) {
      ::sched_yield();
      continue;
    }
    if (look_before_blocking && done()) {
      transport_->finish_wait(true);
      return true;
    }
    // As long as the time limit: a missed wake-up shows as a failure, not as a delay.
    pollfd item{transport_->wait_fd(), POLLIN, 0};
    const bool woken = item.fd < 0 || ::poll(&item, 1, static_cast<int>(std::chrono::milliseconds(kTimeLimit).count())) != 0;
    transport_->finish_wait(woken);
    if (!woken) {
      ADD_FAILURE() << "rank " << rank_ << " of " << size_ << " was not woken";
      return false;
    }
  }
  return true;
}

bool Rank::send(int peer, const TileHeader& header, std::span<const std::byte> data) {
  Link& out = link(peer);
  return until([&] { return out.try_send(header, data); });
}

const Arrival* Rank::receive(int peer) {
  Link& in = link(peer);
  return until([&] { return in.peek() != nullptr; }) ? in.peek() : nullptr;
}

Status Rank::connect(ConnectDeadline time_limit) {
  std::vector<std::string> addresses;
  for (const int peer : peers()) addresses.emplace_back(page_.address[peer], page_.address_bytes[peer]);
  auto links = transport_->connect(peers(), addresses, std::move(time_limit));
  if (!links.ok()) return links.status();
  links_ = std::move(links).value();
  return {};
}

void Rank::close() {
  links_.clear();
  transport_.reset();
}

void Rank::die() { ::_exit(0); }

void run_rank(const TransportKind& kind, const MakeEnd& make_end, Rank& rank, bool connect,
              const std::function<void(Rank&)>& body) {
  auto end = make_end(rank.rank_);
  if (!end.ok()) {
    ADD_FAILURE() << end.status().to_string();
    std::abort();  // the other ranks would wait for this one
  }
  rank.transport_ = std::move(end).value();
  EXPECT_EQ(rank.transport_->name(), kind.transport);
  const std::string address = rank.transport_->address();
  if (kind.on_request && connect) rank.transport_->connect_only({});
  EXPECT_FALSE(address.empty());
  EXPECT_LE(address.size(), kMaxAddress);
  rank.page_.address_bytes[rank.rank_] = std::min(address.size(), kMaxAddress);
  std::memcpy(rank.page_.address[rank.rank_], address.data(), rank.page_.address_bytes[rank.rank_]);
  rank.barrier();
  if (connect) {
    const Status status = rank.connect(Clock::now() + kTimeLimit);
    EXPECT_TRUE(status.ok()) << "rank " << rank.rank_ << ": " << status.to_string();
    if (!status.ok()) std::abort();
    for (const auto& link : rank.links_) link->request(/*peer_too=*/rank.rank_ % 2 == 0);
    rank.drive_until([&] { return std::ranges::all_of(rank.links_, [](const auto& link) { return link->connected(); }); });
    // The last message to a rank that still connects may need a retransmission by this rank.
    ++rank.page_.connected;
    rank.drive_until([&] { return rank.page_.connected.load() == rank.size_; });
  }
  body(rank);
}

namespace {

/// Runs one rank from start to end, on a thread or in a process of its own.
void run_rank_to_end(const TransportKind& kind, const MakeEnd& make_end, Rank rank, const GroupOptions& options,
                     const std::function<void(Rank&)>& body) {
  run_rank(kind, make_end, rank, options.connect, body);
  if (options.barrier_at_end) rank.barrier();
  rank.close();
}

void run_threads(const TransportKind& kind, int size, SharedPage& page, const GroupOptions& options,
                 const std::function<void(Rank&)>& body) {
  const MakeEnd make_end = kind.make_group(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] { run_rank_to_end(kind, make_end, Rank(r, size, page), options, body); });
  }
  for (std::thread& thread : threads) thread.join();
}

void run_processes(const TransportKind& kind, int size, SharedPage& page, const GroupOptions& options,
                   const std::function<void(Rank&)>& body) {
  const MakeEnd make_end = kind.make_group(size);
  std::fflush(nullptr);
  std::map<pid_t, int> rank_of;
  for (int r = 0; r < size; ++r) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Watchdog::restart_in_child();
      static_cast<void>(shm::Arena::instance());  // one descriptor for the life of the process
      const std::ptrdiff_t before = open_descriptors();
      run_rank_to_end(kind, make_end, Rank(r, size, page), options, body);
      EXPECT_EQ(open_descriptors(), before) << "rank " << r << " left descriptors open";
      std::fflush(nullptr);
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    rank_of.emplace(child, r);
  }
  while (!rank_of.empty()) {
    int state = 0;
    const auto ended = rank_of.find(::wait(&state));
    ASSERT_NE(ended, rank_of.end());
    const int r = ended->second;
    rank_of.erase(ended);
    // The other ranks would wait for the dead rank in their next barrier().
    for (const auto& [other, rank] : rank_of) {
      if (WIFSIGNALED(state)) ::kill(other, SIGKILL);
    }
    EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0)
        << "rank " << r << " failed: " << (WIFSIGNALED(state) ? "signal " : "exit status ")
        << (WIFSIGNALED(state) ? WTERMSIG(state) : WEXITSTATUS(state));
  }
}

}  // namespace

void run_group(const TransportKind& kind, int size, const std::function<void(Rank&)>& body, GroupOptions options) {
  ASSERT_LE(size, kMaxRanks);
  static_cast<void>(shm::Arena::instance());  // one descriptor for the life of the process
  const std::ptrdiff_t before = open_descriptors();
  {
    SharedMemory memory(size);
    (kind.processes ? run_processes : run_threads)(kind, size, memory.page(), options, body);
  }
  EXPECT_EQ(open_descriptors(), before) << "descriptors were left open";
}

Watchdog::Watchdog(std::chrono::seconds limit) {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::snprintf(watchdog_text, sizeof(watchdog_text), "%s.%s hangs: ended by the watchdog\n", test->test_suite_name(),
                test->name());
  watchdog_seconds = static_cast<unsigned>(limit.count());
  ::signal(SIGALRM, on_alarm);
  ::alarm(watchdog_seconds);
}

Watchdog::~Watchdog() { ::alarm(0); }

void Watchdog::restart_in_child() { ::alarm(watchdog_seconds); }

}  // namespace shoal::conformance
