// `shoal doctor` on real jobs: running, hung, dead and finished ones.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "src/cli/diagnosis.h"
#include "src/cli/job_view.h"
#include "tests/mentions.h"
#include "tests/multiprocess/ranks.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Mentions;
using testing::mentions;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 3;
constexpr int kOdd = 1;  // the rank that causes the wait or the error

std::string flight_records_in(const std::string& directory) { return directory + "/flight_records"; }

CommunicatorOptions over(const std::string& transports) {
  CommunicatorOptions options;
  options.transports = transports;
  options.timeout = std::chrono::seconds(60);
  return options;
}

Status reduce(Communicator& c, std::size_t count) {
  std::vector<float> data(count);
  return c.all_reduce(data.data(), data.data(), count, DataType::float32, ReduceOp::sum);
}

void set_flag(const std::string& directory, const std::string& what) { std::ofstream(directory + "/" + what) << "yes"; }
bool await_flag(const std::string& directory, const std::string& what) {
  const auto until = Clock::now() + std::chrono::seconds(50);
  while (!fs::exists(directory + "/" + what) && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return fs::exists(directory + "/" + what);
}

/// Waits until `enough` is true for the doctor's diagnosis of the only job in `directory`, at most 30 s. Returns the diagnosis.
std::string await_diagnosis(const std::string& directory,
                            const std::function<bool(const JobView&, const std::string&)>& enough) {
  std::string last = "no job";
  for (const auto until = Clock::now() + std::chrono::seconds(30); Clock::now() < until;) {
    std::vector<std::string> complaints;
    const auto jobs = read_jobs(flight_records_in(directory), complaints);
    if (!complaints.empty()) return complaints.front();
    if (jobs.size() == 1) {
      const Diagnosis found = diagnose(jobs.front(), 0.3);
      last = found.sentence;
      if (enough(jobs.front(), last)) return found.sentence + "\n" + found.suggestion;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return "timed out: " + last;
}

/// Runs `body` on the ranks, and `observer` in a process beside them. They share the directory.
struct Watched {
  std::vector<testing::RankOutcome> ranks;
  std::string seen;  ///< returned by the observer
};
Watched watch(const std::string& transports, const std::function<Status(Communicator&, const std::string& directory)>& body,
              const std::function<std::string(const std::string& directory)>& observer) {
  auto outcomes = testing::run_ranks(kRanks + 1, [&](int rank, int, const std::string& directory) -> std::string {
    if (rank == kRanks) return observer(directory);
    ::setenv("SHOAL_FLIGHT_RECORD", flight_records_in(directory).c_str(), 1);
    auto communicator = testing::join(directory, rank, kRanks, over(transports));
    if (!communicator.ok()) return communicator.status().to_string();
    const Status status = body(**communicator, directory);
    return status.ok() ? "" : status.to_string();
  });
  Watched watched;
  watched.seen = outcomes.back().output;
  outcomes.pop_back();
  watched.ranks = std::move(outcomes);
  return watched;
}

class Doctor : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, Doctor, ::testing::Values("shm", "tcp"), [](const auto& info) { return std::string(info.param); });

TEST_P(Doctor, NamesRankMissingFromCall) {
  const auto watched = watch(
      GetParam(),
      [](Communicator& c, const std::string& directory) {
        for (int k = 0; k < 5; ++k) {
          if (const Status status = reduce(c, 1000); !status.ok()) return status;
        }
        if (c.rank() == kOdd && !await_flag(directory, "seen"))
          return Status(StatusCode::timeout, "the observer did not report");
        return reduce(c, 70000);
      },
      [](const std::string& directory) {
        std::string diagnosis = await_diagnosis(directory, [](const JobView& job, const std::string& words) {
          // Both other ranks wait and have recorded for which rank.
          return job.seen.size() == kRanks && mentions(words, words_for_ranks({0, 2}));
        });
        set_flag(directory, "seen");
        return diagnosis;
      });
  EXPECT_THAT(watched.seen, Mentions("rank 1", fmt::format("process {}", watched.ranks[kOdd].pid), "call 5",
                                     "all_reduce float32 x 70000 sum", "call 4", "all_reduce float32 x 1000 sum"));
  testing::expect_all_well(watched.ranks);
}

TEST_P(Doctor, NamesStoppedRankAndItsGroupsCall) {
  const auto watched = watch(
      GetParam(),
      [](Communicator& c, const std::string&) {
        auto group = c.split(c.rank() == 0 ? 0 : 1, -c.rank());  // ranks 2 and 1 of the job, in this order
        if (!group.ok()) return group.status();
        if (c.rank() == kOdd) ::raise(SIGSTOP);
        const Status status = reduce(**group, 2000);
        return status.ok() ? c.barrier() : status;
      },
      [](const std::string& directory) {
        pid_t stopped = 0;
        std::string diagnosis = await_diagnosis(directory, [&](const JobView& job, const std::string& words) {
          const RankView* odd = job.find(kOdd);
          if (odd != nullptr && odd->life == RankView::Life::stopped) stopped = odd->pid;
          // The calls of both ranks that wait.
          return stopped != 0 && mentions(words, "all_reduce float32 x 2000 sum", words_for_ranks({2, 1}), "barrier");
        });
        ::kill(stopped, SIGCONT);
        return diagnosis;
      });
  EXPECT_THAT(watched.seen, Mentions("rank 1", fmt::format("kill -CONT {}", watched.ranks[kOdd].pid)));
  testing::expect_all_well(watched.ranks);
}

TEST_P(Doctor, NamesKilledRankFromRemainingFiles) {
  std::string diagnosis;
  const auto outcomes = testing::run_ranks(2, [&](int part, int, const std::string& directory) -> std::string {
    if (part == 1) {
      if (!await_flag(directory, "over")) return "the job did not end";
      return await_diagnosis(directory, [](const JobView& job, const std::string&) { return job.seen.size() == kRanks; });
    }
    // The job runs in child processes, so that all of it has ended before the doctor reads the files.
    const auto ranks = testing::run_ranks(kRanks, [&](int rank, int size, const std::string& store) -> std::string {
      ::setenv("SHOAL_FLIGHT_RECORD", flight_records_in(directory).c_str(), 1);
      auto communicator = testing::join(store, rank, size, over(GetParam()));
      if (!communicator.ok()) return communicator.status().to_string();
      Status status;
      for (int k = 0; status.ok(); ++k) {
        if (k == 20 && rank == kOdd) ::kill(::getpid(), SIGKILL);
        status = reduce(**communicator, 3000);
      }
      return status.to_string();
    });
    set_flag(directory, "over");
    return ranks[0].output;
  });
  EXPECT_THAT(outcomes[0].output, HasSubstr("rank 1"));
  EXPECT_THAT(outcomes[1].output, Mentions("rank 1", "process", "call 19", "dmesg"));
}

TEST_P(Doctor, ShowsFirstErrorOfMismatch) {
  const auto watched = watch(
      GetParam(),
      [](Communicator& c, const std::string& directory) {
        const Status status = reduce(c, c.rank() == kOdd ? 4000 : 5000);
        await_flag(directory, "seen");
        return status;
      },
      [](const std::string& directory) {
        std::string diagnosis =
            await_diagnosis(directory, [](const JobView&, const std::string& words) { return !words.empty(); });
        set_flag(directory, "seen");
        return diagnosis;
      });
  EXPECT_THAT(watched.seen, Mentions("mismatch", "rank 1", "float32 x 4000 sum", "float32 x 5000 sum"));
}

TEST_P(Doctor, NamesRankThatMessageWaitsFor) {
  const auto watched = watch(
      GetParam(),
      [](Communicator& c, const std::string& directory) {
        std::vector<float> data(100);
        if (c.rank() == 0) return c.recv(data.data(), 100, DataType::float32, kOdd, 7);
        if (!await_flag(directory, "seen")) return Status(StatusCode::timeout, "the observer did not report");
        return c.rank() == kOdd ? c.send(data.data(), 100, DataType::float32, 0, 7) : Status();
      },
      [](const std::string& directory) {
        std::string diagnosis = await_diagnosis(
            directory, [](const JobView&, const std::string& words) { return mentions(words, "recv", "float32 x 100"); });
        set_flag(directory, "seen");
        return diagnosis;
      });
  EXPECT_THAT(watched.seen, Mentions("rank 1", "recv", "float32 x 100", "tag 7"));
  testing::expect_all_well(watched.ranks);
}

TEST_P(Doctor, HealthyJobHasNoProblemAndLeavesNoFiles) {
  std::string left;
  const auto watched = watch(
      GetParam(),
      [](Communicator& c, const std::string& directory) {
        Status status = reduce(c, 1000);
        set_flag(directory, fmt::format("ready.{}", c.rank()));
        if (!await_flag(directory, "seen")) return Status(StatusCode::timeout, "the observer did not report");
        return status;
      },
      [](const std::string& directory) -> std::string {
        for (int rank = 0; rank < kRanks; ++rank) await_flag(directory, fmt::format("ready.{}", rank));
        std::vector<std::string> complaints;
        const auto jobs = read_jobs(flight_records_in(directory), complaints);
        if (jobs.size() != 1 || jobs[0].seen.size() != kRanks) return "a rank is missing";
        struct stat folder {};
        ::stat(flight_records_in(directory).c_str(), &folder);
        if ((folder.st_mode & 0777) != 0700) return "other users may read the flight records";
        const std::string diagnosis = diagnose(jobs[0], 0.001).sentence;
        set_flag(directory, "seen");
        for (const auto until = Clock::now() + std::chrono::seconds(20); Clock::now() < until;) {
          if (fs::is_empty(flight_records_in(directory))) return diagnosis;
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return "the flight records stay";
      });
  EXPECT_EQ(watched.seen, "");
  testing::expect_all_well(watched.ranks);
}

// A process ends without destroying its communicator: exit() removes its flight record, _exit() leaves it.
TEST(FlightRecord, FileStaysUnlessProcessCallsExit) {
  for (const bool in_order : {true, false}) {
    const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
      ::setenv("SHOAL_FLIGHT_RECORD", flight_records_in(directory).c_str(), 1);
      auto communicator = testing::join(directory, rank, size, over("shm"));
      if (!communicator.ok()) return communicator.status().to_string();
      if (const Status status = reduce(**communicator, 10); !status.ok()) return status.to_string();
      if (rank == 1) {
        static Communicator* left = nullptr;  // not destroyed, but reachable for LeakSanitizer
        left = communicator->release();
        in_order ? std::exit(left == nullptr) : ::_exit(left == nullptr);
      }
      for (const auto until = Clock::now() + std::chrono::seconds(20); Clock::now() < until;) {
        std::vector<std::string> complaints;
        const auto jobs = read_jobs(flight_records_in(directory), complaints);
        const RankView* other = jobs.empty() ? nullptr : jobs[0].find(1);
        if (in_order && other == nullptr) return {};
        if (!in_order && other != nullptr && other->life == RankView::Life::dead)
          return mentions(diagnose(jobs[0], 1).sentence, "rank 1", fmt::format("process {}", other->pid))
                     ? ""
                     : "not named: " + diagnose(jobs[0], 1).sentence;
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      return in_order ? "its flight record stays" : "its death is not detected";
    });
    testing::expect_all_well({outcomes[0]}, in_order ? "exit" : "_exit");
    EXPECT_EQ(testing::bad_end(outcomes[1]), "");
  }
}

TEST(FlightRecord, OffWritesNoFileAndBadFolderFails) {
  const auto start = [](const char* wanted, const std::function<void(const std::string&)>& prepare) {
    return testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
      const std::string folder = *wanted == '\0' ? directory + "/flight_records" : wanted;
      ::setenv("SHOAL_FLIGHT_RECORD", folder.c_str(), 1);
      ::setenv("XDG_RUNTIME_DIR", directory.c_str(), 1);
      if (prepare) prepare(folder);
      auto communicator = testing::join(directory, rank, size, over("shm"));
      if (!communicator.ok()) return communicator.status().to_string();
      const Status status = reduce(**communicator, 10);
      return fmt::format("{} {}", status.to_string(), fs::exists(fmt::format("{}/shoal-{}", directory, ::geteuid())));
    });
  };
  for (const auto& outcome : start("off", {})) EXPECT_EQ(outcome.output, "ok false");
  const auto others = start("", [](const std::string& folder) {
    ::mkdir(folder.c_str(), 0777);
    ::chmod(folder.c_str(), 0777);
  });
  for (const auto& outcome : others)
    EXPECT_THAT(outcome.output, Mentions("invalid_argument", "SHOAL_FLIGHT_RECORD", "/flight_records"));
}

// A full disk: the job continues without a flight record unless SHOAL_FLIGHT_RECORD was set, then it fails.
TEST(FlightRecord, FullDiskFailsJobOnlyIfFolderWasSet) {
  for (const bool asked : {false, true}) {
    const auto outcomes = testing::run_ranks(2, [&](int rank, int size, const std::string& directory) -> std::string {
      const std::string disk = fmt::format("{}/disk.{}", directory, rank);
      ::mkdir(disk.c_str(), 0700);
      const bool apart = ::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
      if (!apart || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=8k,mode=0700") != 0)
        return "may not mount";
      ::setenv(asked ? "SHOAL_FLIGHT_RECORD" : "XDG_RUNTIME_DIR", disk.c_str(), 1);
      auto communicator = testing::join(directory, rank, size, over("shm"));
      if (!communicator.ok()) return communicator.status().to_string();
      return reduce(**communicator, 100).to_string();
    });
    for (const auto& outcome : outcomes) {
      if (outcome.output == "may not mount") GTEST_SKIP() << "this process may not mount a small disk";
      if (asked) {
        EXPECT_THAT(outcome.output,
                    AllOf(HasSubstr("system_error"), HasSubstr("SHOAL_FLIGHT_RECORD"), HasSubstr("No space left on device")));
      } else {
        EXPECT_EQ(outcome.output, "ok");
      }
    }
  }
}

std::int64_t system_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}
constexpr std::int64_t kHour_ns = 3'600'000'000'000;

/// Writes the flight record of a killed rank, which started `started_ns` ago and last checked a wait `seen_ns` ago. `foreign`:
/// its pid is of another container; `locked`: the process held a lock of the file.
void write_flight_record(const std::string& root, int job, std::int64_t started_ns, std::int64_t seen_ns, bool foreign = false,
                         bool locked = false) {
  auto header = std::make_unique<FlightRecordHeader>();
  const FlightRecordLayout layout{1};
  header->page_bytes = static_cast<std::uint32_t>(layout.page_bytes());
  header->pid = ::getpid();
  header->pid_started = 1;  // so the pid belongs to another process now
  header->pid_namespace = foreign ? 1 : own_pid_namespace();
  header->locked = locked ? 1 : 0;
  header->ranks = 1;
  header->job_id = static_cast<std::uint64_t>(job);
  header->system_ns = system_ns() - started_ns;
  header->steady_ns = 1000;
  header->pages = 1;
  const auto page = std::make_unique<FlightRecordPage>();
  page->state.store(kFlightRecordOpen);
  page->ranks = 1;
  page->seen_ns.store(static_cast<std::uint64_t>(header->steady_ns + started_ns - seen_ns));
  const fs::path path = fmt::format("{}/{}/rank.0", root, job_folder_name(header->job_id));
  fs::create_directories(path.parent_path());
  std::string bytes(layout.page_offset(1), '\0');
  std::memcpy(bytes.data(), header.get(), sizeof *header);
  std::memcpy(bytes.data() + layout.page_offset(0), static_cast<const void*>(page.get()), sizeof *page);
  std::ofstream(path, std::ios::binary) << bytes;
  const auto made = fs::file_time_type::clock::now() - std::chrono::nanoseconds(started_ns);
  fs::last_write_time(path, made);
  fs::last_write_time(path.parent_path(), made);
}

std::vector<std::string> ids_of(const std::vector<const JobView*>& jobs) {
  std::vector<std::string> ids;
  for (const JobView* job : jobs) ids.push_back(job->id.substr(14));
  return ids;
}

// Three killed jobs of this container; of other containers a killed job, a running one, and one whose state is unknown.
TEST(DoctorList, ShowsRunningJobsThenThoseOfTheLastHour) {
  const auto outcomes = testing::run_ranks(1, [](int, int, const std::string& root) -> std::string {
    write_flight_record(root, 0x10, 50 * kHour_ns, 2 * kHour_ns);
    write_flight_record(root, 0x11, 50 * kHour_ns, kHour_ns / 6);
    write_flight_record(root, 0x12, kHour_ns / 2, kHour_ns / 2);
    write_flight_record(root, 0x13, 3 * kHour_ns, 3 * kHour_ns, true, true);
    write_flight_record(root, 0x14, 3 * kHour_ns, 3 * kHour_ns, true, true);
    write_flight_record(root, 0x15, 3 * kHour_ns, 3 * kHour_ns, true, false);  // unknown: listed as running
    const int held = ::open((root + "/0000000000000014/rank.0").c_str(), O_RDONLY | O_CLOEXEC);
    if (::flock(held, LOCK_SH) != 0) return "no lock";
    std::vector<std::string> complaints;
    const auto jobs = read_jobs(root, complaints);
    const JobList some = list_of(jobs, system_ns(), false);
    const JobList all = list_of(jobs, system_ns(), true);
    ::close(held);
    return fmt::format("{} | {} | {} ; {} | {} | {}", fmt::join(ids_of(some.running), " "), fmt::join(ids_of(some.ended), " "),
                       some.left_out, fmt::join(ids_of(all.running), " "), fmt::join(ids_of(all.ended), " "), all.left_out);
  });
  EXPECT_THAT(outcomes[0].output,
              ::testing::AnyOf("14 15 | 11 12 | 2 ; 14 15 | 11 12 10 13 | 0", "15 14 | 11 12 | 2 ; 15 14 | 11 12 10 13 | 0"));
}

// The day counts from the last sign of life, not from the start: a long job that was just killed keeps its files.
TEST(FlightRecord, FileOfDeadJobStaysForOneDay) {
  const auto outcomes = testing::run_ranks(1, [](int, int, const std::string& root) -> std::string {
    write_flight_record(root, 0x20, 50 * kHour_ns, 2 * kHour_ns);
    write_flight_record(root, 0x21, 50 * kHour_ns, 25 * kHour_ns);
    write_flight_record(root, 0x22, 50 * kHour_ns, 25 * kHour_ns, true, true);
    write_flight_record(root, 0x23, 50 * kHour_ns, 25 * kHour_ns, true, true);
    const int held = ::open((root + "/0000000000000023/rank.0").c_str(), O_RDONLY | O_CLOEXEC);
    if (::flock(held, LOCK_SH) != 0) return "no lock";
    remove_old_flight_records(root);
    ::close(held);
    std::string left;
    for (const int job : {0x20, 0x21, 0x22, 0x23}) {
      if (fs::exists(root + "/" + job_folder_name(static_cast<std::uint64_t>(job)))) left += fmt::format("{:x} ", job);
    }
    return left;
  });
  EXPECT_EQ(outcomes[0].output, "20 23 ");
}

// Other old files in a folder that the user has named stay.
TEST(FlightRecord, OnlyOldFlightRecordsAreRemoved) {
  const auto outcomes = testing::run_ranks(2, [](int rank, int size, const std::string& directory) -> std::string {
    const std::string root = flight_records_in(directory);
    ::setenv("SHOAL_FLIGHT_RECORD", root.c_str(), 1);
    const std::vector<std::string> others{"results/rank.0", "0123456789abcdef0/rank.0", "00000000000000a0/rank.0.txt",
                                          "00000000000000a1/rank.0/part", "0123456789ABCDEF/rank.1"};
    if (rank == 0) {
      const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1000);
      const auto write = [&](const std::string& name) {
        const fs::path path = root + "/" + name;
        fs::create_directories(path.parent_path());
        std::ofstream(path) << "a flight record";
        fs::last_write_time(path.parent_path(), old);
      };
      for (int job = 0; job < 100; ++job) write(fmt::format("{:016x}/rank.0", job));
      for (const std::string& other : others) write(other);
      for (const auto& folder : fs::directory_iterator(root)) fs::last_write_time(folder, old);
      fs::permissions(root, fs::perms::owner_all);
    }
    auto communicator = testing::join(directory, rank, size, over("shm"));
    if (!communicator.ok()) return communicator.status().to_string();
    for (const std::string& other : others)
      if (!fs::exists(root + "/" + other)) return other + " is gone";
    const auto left = std::distance(fs::directory_iterator(root), fs::directory_iterator());
    if (left != static_cast<std::ptrdiff_t>(others.size()) + 1) return fmt::format("{} folders are left", left);
    return (*communicator)->barrier().ok() ? "" : "no barrier";
  });
  testing::expect_all_well(outcomes);
}

TEST(DoctorCommand, ShowsCulpritInTableAndExitStatus) {
  const auto run = [](const std::string& arguments, int* status) {
    const std::string command = fmt::format("{} doctor {} 2>&1", SHOAL_PROGRAM, arguments);
    std::FILE* pipe = ::popen(command.c_str(), "r");
    std::string text;
    char part[4096];
    while (pipe != nullptr && std::fgets(part, sizeof part, pipe) != nullptr) text += part;
    *status = WEXITSTATUS(::pclose(pipe));
    return text;
  };
  int status = 0;
  const auto watched = watch(
      "tcp",
      [](Communicator& c, const std::string& directory) {
        if (const Status first = reduce(c, 10); !first.ok()) return first;
        if (c.rank() == kOdd && !await_flag(directory, "seen"))
          return Status(StatusCode::timeout, "the observer did not report");
        return reduce(c, 20);
      },
      [&](const std::string& directory) {
        std::string id;
        await_diagnosis(directory, [&](const JobView& job, const std::string& words) {
          id = job.id;
          const RankView* odd = job.find(kOdd);
          return odd != nullptr && mentions(words, fmt::format("process {}", odd->pid), "call 1");
        });
        const std::string folder = "--folder " + flight_records_in(directory);
        std::string text;
        int found = 0;
        int other = 0;
        for (const auto& arguments : {folder, folder + " --wait-limit 0.2 --job " + id.substr(0, 6)})
          text += run(arguments, &found);
        run(folder + " --job 123", &other);
        // An old job is listed by --all only, after the running job.
        write_flight_record(flight_records_in(directory), 0x30, 3 * kHour_ns, 3 * kHour_ns);
        const std::string listed = run(folder, &found);
        const std::string with_all = run(folder + " --all", &found);
        const auto old = with_all.find("0000000000000030");
        const bool right = listed.find("0000000000000030") == std::string::npos && old != std::string::npos &&
                           with_all.find(id) < old && found == 0;
        if (!right) text += "the list is wrong: " + listed + with_all;
        found = 1;
        set_flag(directory, "seen");
        return fmt::format("{} {}\n{}", found, other, text);
      });
  const std::string its_process = fmt::format("process {}", watched.ranks[kOdd].pid);
  const std::string its_stack = fmt::format("gdb -p {}", watched.ranks[kOdd].pid);
  EXPECT_THAT(watched.seen,
              AllOf(HasSubstr("1 1\n"), ::testing::Not(HasSubstr("the list is wrong")),
                    Mentions("3 of 3", "call 1", "all_reduce float32 x 20 sum"),
                    ::testing::ContainsRegex("\n0 +[0-9]+ [^\n]* rank 1[^0-9]"), Mentions(its_process, its_stack)));
  const std::string nowhere = std::string(SHOAL_PROGRAM) + ".none";
  EXPECT_THAT(run("--folder " + nowhere, &status), Mentions(nowhere, "SHOAL_FLIGHT_RECORD"));
  EXPECT_EQ(status, 0);
  EXPECT_THAT(run("--wait-limit -1", &status), HasSubstr("--wait-limit"));
  EXPECT_EQ(status, 2);
}

}  // namespace
}  // namespace shoal
