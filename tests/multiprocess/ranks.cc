#include "tests/multiprocess/ranks.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <filesystem>

#include "tests/folders.h"
#include "transports/ofi/ofi.h"
#include "transports/ucx/ucx.h"

#ifdef SHOAL_TSAN
/// ThreadSanitizer delays each exit for reports of threads that still run, by default for a second, which adds up to minutes
/// for hundreds of ranks. At its end a rank has only the library's thread, which sleeps.
extern "C" const char* __tsan_default_options() { return "atexit_sleep_ms=100"; }  // NOLINT: the sanitizer's name for it
#endif

namespace shoal::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kReturned = '\0';  // follows the text that a body returned, which may be empty

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(got));
  return text;
}

bool wait_until(pid_t pid, Clock::time_point deadline) {
  const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return true;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd descriptor{fd, POLLIN, 0};
  const bool ended = ::poll(&descriptor, 1, left > 0 ? static_cast<int>(left) : 0) > 0;
  ::close(fd);
  return ended;
}

}  // namespace

std::vector<RankOutcome> run_ranks(int size, const RankBody& body, double seconds) {
  const std::string directory = testing::make_folder();
  std::vector<RankOutcome> outcomes(static_cast<std::size_t>(size));
  std::vector<int> pipes;
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const bool failed_before = ::testing::Test::HasFailure();
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    if (::pipe(ends) != 0) std::abort();
    const pid_t pid = ::fork();
    if (pid == 0) {
      for (const int fd : pipes) ::close(fd);
      ::close(ends[0]);
      std::string text = body(rank, size, directory);
      // A pipe holds 64 KiB: enough for a message, and the parent reads after the child has ended.
      text.resize(std::min<std::size_t>(text.size(), 32 << 10));
      text += kReturned;
      const bool written = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
      // The status is 0 also if the body returned an error, because a sanitizer replaces only a status of 0.
      ::_exit(written && (failed_before || !::testing::Test::HasFailure()) ? 0 : 1);
    }
    ::close(ends[1]);
    pipes.push_back(ends[0]);
    outcomes[static_cast<std::size_t>(rank)].pid = pid;
  }
  for (int rank = 0; rank < size; ++rank) {
    RankOutcome& outcome = outcomes[static_cast<std::size_t>(rank)];
    const bool in_time = wait_until(outcome.pid, deadline);
    outcome.hung = !in_time;
    if (outcome.hung) ::kill(outcome.pid, SIGKILL);
    int status = 0;
    ::waitpid(outcome.pid, &status, 0);
    outcome.killed = WIFSIGNALED(status);
    outcome.code = outcome.killed ? WTERMSIG(status) : WEXITSTATUS(status);
    outcome.output =
        in_time ? read_all(pipes[static_cast<std::size_t>(rank)]) : "hung: killed by the test after its time was up";
    ::close(pipes[static_cast<std::size_t>(rank)]);
    if (outcome.output.ends_with(kReturned)) {
      outcome.output.pop_back();
    } else if (in_time && !outcome.killed && outcome.code == 0) {
      outcome.output = "ended before its body had returned";  // by exit(): an empty output would mean success
    }
    const bool crashed = outcome.killed && outcome.code != SIGKILL && outcome.code != SIGSYS;  // tests send these themselves
    if (crashed || (!outcome.killed && outcome.code != 0))
      ADD_FAILURE() << "rank " << rank << " of " << size << " " << bad_end(outcome) << ": " << outcome.output;
  }
  std::filesystem::remove_all(directory);
  return outcomes;
}

Result<std::unique_ptr<Communicator>> join(const std::string& directory, int rank, int size,
                                           const CommunicatorOptions& options) {
  auto store = make_file_store(directory);
  if (!store.ok()) return store.status();
  return Communicator::create(**store, rank, size, options);
}

void expect_ranks(int size, const CommunicatorOptions& options, const std::function<std::string(Communicator&)>& body,
                  double seconds) {
  const auto outcomes = run_ranks(
      size,
      [&](int rank, int ranks, const std::string& directory) -> std::string {
        auto communicator = join(directory, rank, ranks, options);
        if (!communicator.ok()) return "create: " + communicator.status().to_string();
        return body(**communicator);
      },
      seconds);
  expect_all_well(outcomes);
}

std::string library_complaint(const std::string& transport) {
#ifdef SHOAL_SANITIZED
  return transport + ": the library below is not built for the sanitizer";
#else
  if (transport == "ofi") {
    static const auto providers = ofi_providers();
    return providers.ok() ? "" : providers.status().message();
  }
  static const auto version = ucx_version();
  return version.ok() ? "" : version.status().message();
#endif
}

bool deny_pidfd() {
  std::array<sock_filter, 4> filter{
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_pidfd_open},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | ENOSYS},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  const sock_fprog program{filter.size(), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

std::string bad_end(const RankOutcome& outcome) {
  if (!outcome.killed && outcome.code == 0) return {};
  return (outcome.killed ? "died by signal " : "ended with status ") + std::to_string(outcome.code);
}

void expect_all_well(const std::vector<RankOutcome>& outcomes, const std::string& note, std::initializer_list<int> killed) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const RankOutcome& outcome = outcomes[rank];
    const bool on_purpose = std::find(killed.begin(), killed.end(), static_cast<int>(rank)) != killed.end();
    const bool well = on_purpose ? outcome.killed && outcome.code == SIGKILL && !outcome.hung
                                 : outcome.output.empty() && bad_end(outcome).empty();
    EXPECT_TRUE(well) << note << (note.empty() ? "" : ": ") << "rank " << rank << " of " << outcomes.size() << " "
                      << bad_end(outcome) << (on_purpose ? " instead of being killed" : "") << ": " << outcome.output;
  }
}

}  // namespace shoal::testing
