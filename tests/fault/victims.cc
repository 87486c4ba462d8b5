#include "tests/fault/victims.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <string_view>
#include <thread>

#include <fmt/format.h>
#include <shoal/store.h>

#include "src/join/tcp_store.h"
#include "tests/folders.h"
#include "tests/multiprocess/ranks.h"

namespace shoal::testing {
namespace {

using Clock = std::chrono::steady_clock;

bool dying = false;  // die_after() has been called

std::int64_t now_ns() { return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count(); }

/// Reports when its rank has entered the store.
class WatchedStore final : public Store {
 public:
  WatchedStore(std::unique_ptr<Store> store, std::atomic<bool>& entered) : store_(std::move(store)), entered_(entered) {}
  Status set(std::string_view key, std::string_view value) override { return store_->set(key, value); }
  Result<std::string> get(std::string_view key, Clock::time_point deadline) override { return store_->get(key, deadline); }
  Status enter(int rank, int size) override {
    Status status = store_->enter(rank, size);
    entered_.store(status.ok());
    return status;
  }
  void leave() override { store_->leave(); }
  Result<std::vector<std::string>> gather(const GatherStep& step, std::string_view value, Clock::time_point deadline) override {
    return store_->gather(step, value, deadline);
  }
  Status refuse(const GatherStep& step, std::string_view why) override { return store_->refuse(step, why); }
  Status look(Clock::time_point deadline) override { return store_->look(deadline); }
  Result<std::string> get_from(int rank, std::string_view key, Clock::time_point deadline) override {
    return store_->get_from(rank, key, deadline);
  }

 private:
  std::unique_ptr<Store> store_;
  std::atomic<bool>& entered_;
};

Result<std::unique_ptr<Store>> open_store(const Surroundings& around, const std::string& folder, int rank, int size,
                                          const CommunicatorOptions& options) {
  if (around.store_port == 0) return make_file_store(folder);
  const StoreAddress address{"127.0.0.1", around.store_port, "victims", key_from_text("victims")};
  const int hosts = options.transports == "shm,tcp" ? 2 : 1;
  const LocalRanks ranks{rank, size, rank / hosts, (size + hosts - 1 - rank % hosts) / hosts};
  return make_tcp_store(address, rank == 0, ranks, around.keepers, Clock::now() + options.timeout);
}

Result<std::unique_ptr<Communicator>> join_by(const Surroundings& around, const std::string& folder, int rank, int size,
                                              const CommunicatorOptions& options, Board::Rank& mine) {
  auto store = open_store(around, folder, rank, size, options);
  if (!store.ok()) return store.status();
  WatchedStore watched(std::move(store).value(), mine.entered);
  auto communicator = Communicator::create(watched, rank, size, options);
  // Before the store is closed: the kernel ends inotify only when no process is in its notification code, which takes seconds
  // where a process of idle priority is, and gets no core.
  mine.at_ns = now_ns();
  return communicator;
}

bool rename_host(const std::string& name) {
  if (::unshare(CLONE_NEWUTS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWUTS) != 0) return false;
  return ::sethostname(name.data(), name.size()) == 0;
}

void run_rank(int rank, int size, const std::string& wire, std::chrono::milliseconds timeout, const std::string& outer_folder,
              const Victims::Body& body, Board& board, const Surroundings& around) {
  if (rank == around.dies) die_after(around.dies_after, board);
  if (std::freopen(fmt::format("{}/stderr.{}", outer_folder, rank).c_str(), "w", stderr) == nullptr) ::_exit(2);
  std::setvbuf(stderr, nullptr, _IONBF, 0);
  Status status;
  if (around.sandbox != nullptr && !around.sandbox->enter())
    status = Status(StatusCode::unsupported, "cannot enter the sandbox");
  const std::string folder = around.sandbox != nullptr ? Sandbox::from_inside(outer_folder) : outer_folder;
  ::setenv("SHOAL_FLIGHT_RECORD", around.flight_records ? (folder + "/flight_records").c_str() : "off", 1);
  ::setenv("SHOAL_PROBE", "0", 1);  // a shorter start-up, which most tests do not measure
  for (const auto& [name, value] : around.environment) ::setenv(name.c_str(), value.c_str(), 1);
  CommunicatorOptions options;
  options.timeout = timeout;
  options.transports = wire == "mixed" ? "shm,tcp" : wire;
  Board::Rank& mine = board.ranks[static_cast<std::size_t>(rank)];
  if (status.ok() && wire == "mixed" && !rename_host(fmt::format("shoal-test-{}", rank % 2)))
    status = Status(StatusCode::unsupported, "cannot rename the host");
  std::map<int, std::int64_t> waited = waits_for_core("/proc/self");
  mine.began_ns = now_ns();
  auto communicator = status.ok() ? join_by(around, folder, rank, size, options, mine) : status;
  if (communicator.ok()) {
    waited = waits_for_core("/proc/self");  // no limit of a job that has started is extended for its start-up
    board.joined.fetch_add(1);
    status = body(**communicator, board);
  } else {
    status = communicator.status();
  }
  mine.code = status.code();
  if (communicator.ok()) mine.at_ns = now_ns();
  for (const auto& [thread, waited_ns] : waits_for_core("/proc/self"))
    mine.waited_ns = std::max(mine.waited_ns, waited_ns - waited[thread]);
  status.message().copy(mine.text.data(), mine.text.size() - 1);
  mine.ended.store(true);
  communicator = Status(StatusCode::internal, "destroyed");
  while (dying) ::pause();
}

}  // namespace

void die_after(std::chrono::microseconds delay, Board& board) {
  dying = true;
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  // A time of 0 would disarm the timer.
  const auto when = std::max(delay, std::chrono::microseconds(1));
  const itimerspec once{{}, {when.count() / 1'000'000, when.count() % 1'000'000 * 1000}};
  board.mark_ns.store(now_ns() + std::chrono::nanoseconds(when).count());
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0 || ::timer_settime(timer, 0, &once, nullptr) != 0) std::abort();
}

bool may_rename_host() {
  return run_ranks(1, [](int, int, const std::string&) -> std::string { return rename_host("shoal-test") ? "" : "no"; })[0]
      .output.empty();
}

Victims::Victims(int size, const std::string& wire, std::chrono::milliseconds timeout, const Body& body,
                 const Surroundings& surroundings) {
  folder_ = make_folder();
  void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) std::abort();
  board_ = new (memory) Board();
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setpgid(0, pids_.empty() ? 0 : pids_.front());
      run_rank(rank, size, wire, timeout, folder_, body, *board_, surroundings);
      ::_exit(0);
    }
    ::setpgid(pid, pids_.empty() ? pid : pids_.front());
    pids_.push_back(pid);
    reaped_.push_back(false);
    ends_.push_back(0);
  }
}

Victims::~Victims() {
  if (!nothing_runs()) ::kill(-pids_.front(), SIGKILL);
  wait(10);
  ::munmap(board_, sizeof(Board));
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

std::string Victims::stderr_of(int rank) const {
  std::ifstream file(fmt::format("{}/stderr.{}", folder_, rank));
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool Victims::all_joined(double seconds) const {
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  while (board_->joined.load() < size()) {
    for (int rank = 0; rank < size(); ++rank) {
      if (board_->ranks[static_cast<std::size_t>(rank)].ended.load()) return false;
    }
    if (Clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

std::string Victims::wait(double seconds, std::initializer_list<int> killed) {
  if (!delay_) delay_.emplace();  // has a thread, so not before the forks of another job
  const auto until = Clock::now() + std::chrono::duration<double>(seconds);
  std::string wrong;
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    bool hung = false;
    while (!reaped_[rank]) {
      const pid_t got = ::waitpid(pids_[rank], &ends_[rank], WNOHANG);
      reaped_[rank] = got == pids_[rank];
      if (reaped_[rank]) break;
      if (Clock::now() > until) {
        hung = true;
        ::kill(pids_[rank], SIGKILL);
        ::waitpid(pids_[rank], &ends_[rank], 0);
        reaped_[rank] = true;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(500));
    }
    const int end = ends_[rank];
    const bool on_purpose = std::find(killed.begin(), killed.end(), static_cast<int>(rank)) != killed.end();
    if (!hung && (on_purpose ? WIFSIGNALED(end) && WTERMSIG(end) == SIGKILL : WIFEXITED(end) && WEXITSTATUS(end) == 0))
      continue;
    wrong += fmt::format("{}rank {} ", wrong.empty() ? "" : ", ", rank);
    if (hung) {
      wrong += "hung";
    } else if (WIFSIGNALED(end)) {
      wrong += fmt::format("died by signal {}", WTERMSIG(end));
    } else {
      wrong += fmt::format("ended with status {}", WEXITSTATUS(end));
    }
    if (!hung) wrong += fmt::format(" ({})", stderr_of(static_cast<int>(rank)).substr(0, 2000));
  }
  return wrong;
}

double Victims::allowance_s() const {
  std::int64_t longest_ns = 0;  // of the ranks that have ended, which CoreDelay no longer sees
  for (const Board::Rank& rank : board_->ranks) longest_ns = std::max(longest_ns, rank.waited_ns);
  return std::max(delay_ ? delay_->allowance_s() : 0, CoreDelay::kTurns * 1e-9 * static_cast<double>(longest_ns));
}

bool Victims::nothing_runs() const { return ::kill(-pids_.front(), 0) != 0 && errno == ESRCH; }

}  // namespace shoal::testing
