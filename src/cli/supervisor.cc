#include "src/cli/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array kHandledSignals = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
constexpr auto kTerminateWait = std::chrono::seconds(2);  // between SIGTERM and SIGKILL
constexpr auto kAgentWait = std::chrono::seconds(5);  // the same for an agent on another host, which ends its ranks meanwhile
constexpr std::size_t kLongestLineBytes = 64 << 10;   // a longer line is split when it is tagged
constexpr int kExitTimeout = 124;
constexpr int kExitCannotRun = 127;
constexpr int kExitSsh = 255;

void say(const std::string& text) { fmt::print(stderr, "shoal run: {}\n", text); }

bool ends_job(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP; }

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kHandledSignals) sigaddset(&set, signal);
  return set;
}

int exit_status(int wait_status) { return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status); }

std::string describe(int wait_status) {
  if (!WIFSIGNALED(wait_status)) return fmt::format("exited with status {}", WEXITSTATUS(wait_status));
  const char* name = sigabbrev_np(WTERMSIG(wait_status));
  return name == nullptr ? fmt::format("was killed by signal {}", WTERMSIG(wait_status))
                         : fmt::format("was killed by SIG{}", name);
}

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // the reader is gone
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// One output stream of a process whose lines get its label.
struct Stream {
  int from = -1;
  int to = -1;
  std::string prefix;
  std::string line;

  /// Forwards the available output. False at the end of the stream.
  bool pump() {
    std::array<char, 16384> buffer;
    const ssize_t got = read(from, buffer.data(), buffer.size());
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    std::string out;
    for (const char character : std::string_view(buffer.data(), static_cast<std::size_t>(got))) {
      if (character != '\n') line += character;
      if (character == '\n' || line.size() >= kLongestLineBytes) out += prefix + std::exchange(line, {}) + "\n";
    }
    if (got == 0 && !line.empty()) out += prefix + std::exchange(line, {}) + "\n";
    write_all(to, out);
    return got > 0;
  }
};

/// A started process.
struct Running {
  const JobProcess* process = nullptr;
  pid_t pid = -1;
  int input = -1;  // the pipe to its standard input
};

/// The child's side of the start. Never returns.
[[noreturn]] void become(const JobProcess& process, int input, int output, int error, int report, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before the line above
  for (const int signal : kHandledSignals) std::signal(signal, SIG_DFL);
  std::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(input >= 0 ? input : open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  if (output >= 0) dup2(output, STDOUT_FILENO);
  if (error >= 0) dup2(error, STDERR_FILENO);
  for (const auto& [name, value] : process.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (const std::string& argument : process.command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int failure = errno;
  write_all(report, std::string_view(reinterpret_cast<const char*>(&failure), sizeof(failure)));
  _exit(kExitCannotRun);
}

class Job {
 public:
  Job(const std::vector<JobProcess>& processes, const JobOptions& options) : processes_(processes), options_(options) {}

  int run() {
    prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans of a rank become children of this process, which can wait for them
    const sigset_t signals = handled_signals();
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    if (options_.timeout_s > 0) deadline_ = Clock::now() + to_duration(options_.timeout_s);
    for (const JobProcess& process : processes_) {
      if (!start(process)) break;
    }
    while (!running_.empty()) {
      wait_for_events();
      act_on_time();
    }
    drain();
    return ended_ != 0 ? ended_ : failed_;
  }

 private:
  static Clock::duration to_duration(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  bool start(const JobProcess& process) {
    std::array<int, 2> input{-1, -1}, output{-1, -1}, error{-1, -1}, report{-1, -1};
    bool piped = pipe2(report.data(), O_CLOEXEC) == 0 && (!process.input || pipe2(input.data(), O_CLOEXEC) == 0);
    if (options_.tag_output) piped = piped && pipe2(output.data(), O_CLOEXEC) == 0 && pipe2(error.data(), O_CLOEXEC) == 0;
    const pid_t parent = getpid();
    const pid_t pid = piped ? fork() : -1;
    if (pid < 0) {
      say(fmt::format("cannot start {}: {}", process.label, std::strerror(errno)));
      end_job(1);
      return false;
    }
    if (pid == 0) become(process, input[0], output[1], error[1], report[1], parent);
    setpgid(pid, pid);  // in both processes, because either may run first
    for (const int fd : {input[0], output[1], error[1], report[1]}) {
      if (fd >= 0) close(fd);
    }
    running_.push_back({&process, pid, input[1]});
    if (process.input) write_all(input[1], *process.input);
    if (options_.tag_output) {
      const std::string prefix = "[" + process.label + "] ";
      for (const auto& [from, to] : {std::pair(output[0], STDOUT_FILENO), std::pair(error[0], STDERR_FILENO)}) {
        fcntl(from, F_SETFL, O_NONBLOCK);
        streams_.push_back({from, to, prefix, {}});
      }
    }
    int failure = 0;
    const bool failed = read(report[0], &failure, sizeof(failure)) == sizeof(failure);
    close(report[0]);
    if (!failed) return true;
    say(fmt::format("cannot run '{}': {}", process.command[0], std::strerror(failure)));
    end_job(kExitCannotRun);
    return false;
  }

  /// Ends the job for a reason of this process. The first call determines the exit status, unless a process has failed before.
  void end_job(int status) {
    if (!ends()) ended_ = status;
    begin_end();
  }
  void begin_end() {
    if (!ends()) terminate_at_ = Clock::now() + to_duration(options_.grace_s);
  }
  [[nodiscard]] bool ends() const { return terminate_at_.has_value(); }

  /// An agent on another host ends when its input is closed; a signal would only end its ssh.
  void signal_all(int signal) {
    signalled_ |= ends_job(signal) || signal == SIGKILL;
    for (Running& running : running_) {
      if (!running.process->input || signal == SIGKILL) {
        kill(-running.pid, signal);
      } else if (ends_job(signal) && running.input >= 0) {
        close(std::exchange(running.input, -1));
      }
    }
  }

  void terminate() {
    signal_all(SIGTERM);
    const bool agents =
        std::any_of(running_.begin(), running_.end(), [](const Running& one) { return one.process->input.has_value(); });
    kill_at_ = Clock::now() + (agents ? kAgentWait : kTerminateWait);
  }

  void wait_for_events() {
    std::vector<pollfd> polled = {{signals_, POLLIN, 0}, {watches_input() ? STDIN_FILENO : -1, POLLIN, 0}};
    for (const Stream& stream : streams_) polled.push_back({stream.from, POLLIN, 0});
    poll(polled.data(), polled.size(), milliseconds_to_next());
    signalfd_siginfo info;
    while (read(signals_, &info, sizeof(info)) == sizeof(info)) on_signal(static_cast<int>(info.ssi_signo));
    if (polled[1].revents != 0) {
      std::array<char, 256> ignored;
      if (read(STDIN_FILENO, ignored.data(), ignored.size()) <= 0) {
        input_closed_ = true;
        end_job(128 + SIGHUP);
        terminate();
      }
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      if (polled[i + 2].revents == 0 || streams_[i].pump()) {
        if (kept != i) streams_[kept] = std::move(streams_[i]);
        ++kept;
      } else {
        close(streams_[i].from);
      }
    }
    streams_.resize(kept);
  }

  [[nodiscard]] bool watches_input() const { return options_.ends_with_input && !input_closed_; }

  [[nodiscard]] int milliseconds_to_next() const {
    std::optional<Clock::time_point> next = kill_at_ ? kill_at_ : terminate_at_;
    if (deadline_ && !ends()) next = next ? std::min(*next, *deadline_) : *deadline_;
    if (!next) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now()).count();
    return static_cast<int>(std::clamp<long long>(left, 0, 1'000'000));
  }

  void on_signal(int signal) {
    if (signal == SIGCHLD) return reap();
    signal_all(signal);
    if (!ends_job(signal)) return;
    if (std::exchange(stopped_, true)) {
      signal_all(SIGKILL);  // the second signal
    } else {
      end_job(128 + signal);
    }
  }

  void act_on_time() {
    const auto now = Clock::now();
    if (deadline_ && !ends() && now >= *deadline_) {
      std::vector<std::string_view> labels;
      for (const Running& running : running_) labels.emplace_back(running.process->label);
      say(fmt::format("the job exceeded --timeout {} s; still running: {}", options_.timeout_s, fmt::join(labels, ", ")));
      end_job(kExitTimeout);
      terminate_at_ = now;
    }
    if (kill_at_ && now >= *kill_at_) {
      signal_all(SIGKILL);
      kill_at_ = now + kTerminateWait;
    } else if (terminate_at_ && !kill_at_ && now >= *terminate_at_) {
      terminate();
    }
  }

  void reap() {
    siginfo_t info{};
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
      const pid_t pid = std::exchange(info.si_pid, 0);
      const auto running = std::find_if(running_.begin(), running_.end(), [pid](const Running& one) { return one.pid == pid; });
      // Until the leader has been waited for, the number of its group cannot be reused.
      if (running != running_.end()) kill(-pid, SIGKILL);
      int status = 0;
      waitpid(pid, &status, 0);
      if (running == running_.end()) continue;
      const JobProcess& process = *running->process;
      if (running->input >= 0) close(running->input);
      running_.erase(running);
      const int code = exit_status(status);
      // Peers of a process that a signal has killed fail because of it, and may end first.
      const bool killed = code > 128 && code != kExitSsh && !signalled_;
      const bool is_cause = failed_ == 0 || (killed && failed_ <= 128);
      if (code == 0 || ended_ != 0 || (ends() && !is_cause)) continue;
      if (!process.explains_itself) {
        say(fmt::format("{} {}{}", process.label, describe(status),
                        running_.empty() ? "" : fmt::format("; still running: {}", running_.size())));
      } else if (code == kExitSsh) {
        say(fmt::format("{}: '{}' exited with status 255: the host cannot be reached, or a rank there exited with 255",
                        process.label, process.command[0]));
      }
      if (is_cause) failed_ = code;
      if (!options_.keep_going) begin_end();
    }
  }

  /// Forwards the rest of the output of ended processes.
  void drain() {
    for (Stream& stream : streams_) {
      pollfd polled{stream.from, POLLIN, 0};
      while (poll(&polled, 1, 0) > 0 && stream.pump()) {
      }
      close(stream.from);
    }
  }

  const std::vector<JobProcess>& processes_;
  const JobOptions options_;
  std::vector<Running> running_;
  std::vector<Stream> streams_;
  int signals_ = -1;
  int ended_ = 0;              // exit status where this process ends the job, for example at the timeout
  int failed_ = 0;             // that of the process that failed first, or was killed
  bool signalled_ = false;     // processes have got signals that end them
  bool stopped_ = false;       // by a signal
  bool input_closed_ = false;  // with ends_with_input
  std::optional<Clock::time_point> deadline_;
  std::optional<Clock::time_point> terminate_at_;  // when all processes get SIGTERM
  std::optional<Clock::time_point> kill_at_;       // when all processes get SIGKILL
};

}  // namespace

int run_job(const std::vector<JobProcess>& processes, const JobOptions& options) {
  // The keeper, a child process, starts and watches the processes. If this process dies, the keeper gets SIGTERM and ends the
  // job in order; if the keeper dies, the kernel kills its children. Processes are left over only if both are killed at once.
  const sigset_t signals = handled_signals();
  sigset_t before;
  sigprocmask(SIG_BLOCK, &signals, &before);
  const pid_t self = getpid();
  const pid_t keeper = fork();
  if (keeper < 0) {
    say(fmt::format("cannot start a process: {}", std::strerror(errno)));
    sigprocmask(SIG_SETMASK, &before, nullptr);
    return 1;
  }
  if (keeper == 0) {
    setpgid(0, 0);  // a terminal's Ctrl-C goes to the parent, which passes it on once
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGTTOU, SIG_IGN);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != self) _exit(1);
    _exit(Job(processes, options).run());
  }
  int status = 0;
  for (;;) {
    const int signal = sigwaitinfo(&signals, nullptr);
    if (signal < 0) continue;
    if (signal != SIGCHLD) {
      kill(keeper, signal);
    } else if (waitpid(keeper, &status, WNOHANG) == keeper) {
      break;
    }
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  return exit_status(status);
}

}  // namespace shoal
