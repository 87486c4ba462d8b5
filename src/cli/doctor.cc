// `shoal doctor`: what the jobs of this host are doing, which rank holds them up, and what to do; also checks the machine.
#include <cerrno>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "src/cli/commands.h"
#include "src/cli/diagnosis.h"
#include "src/cli/job_view.h"
#include "src/cli/machine_checks.h"
#include "src/cli/schedule_options.h"
#include "src/cli/topology_drawing.h"
#include "src/cuda/summary.h"
#include "transports/ofi/ofi.h"
#include "transports/ucx/ucx.h"

namespace shoal {
namespace {

using Life = RankView::Life;

constexpr int kExitFound = 1;
constexpr std::size_t kShortestId = 4;

struct DoctorOptions {
  std::string job;
  std::string folder;
  bool all = false;
  double wait_limit_s = 1;
  bool machine = false;
  std::string root;             // of another system's files, for tests
  std::string security_groups;  // file
};

std::string clock_time(std::int64_t system_ns) {
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(static_cast<std::time_t>(system_ns / 1'000'000'000)));
}

std::string life_of(const RankView& rank) {
  switch (rank.life) {
    case Life::running:
      return rank.letter == 'R' ? "runs" : "sleeps";
    case Life::stopped:
      return "stopped";
    case Life::dead:
      return "dead";
    case Life::unknown:
      break;
  }
  return "elsewhere";  // in a container with processes of its own
}

std::string shown(const JobView& job) {
  return job.name.empty() || job.name == job.id ? job.id : fmt::format("{} ({})", job.id, job.name);
}

std::string waited_for(const CommunicatorView& communicator) {
  if (!communicator.wait) return "-";
  const auto names = [&](const std::vector<int>& ranks) {
    std::vector<int> in_job;
    for (const int rank : ranks) in_job.push_back(job_rank(communicator, rank));
    return words_for_ranks(in_job);
  };
  const auto& wait = *communicator.wait;
  std::string text;
  if (!wait.absent.empty()) text = names(wait.absent) + " (absent)";
  if (!wait.slow.empty()) text += fmt::format("{}data of {}", text.empty() ? "" : "; ", names(wait.slow));
  return text.empty() ? "-" : text;
}

void print_row(const std::string& rank, const std::string& process, const std::string& host, const std::string& state,
               const std::string& since, const std::string& waits_for, const std::string& call) {
  fmt::print("{:<5} {:<8} {:<16} {:<9} {:>9}  {:<24} {}\n", rank, process, host, state, since, waits_for, call);
}

void print_rank(const RankView& rank) {
  bool first = true;
  const auto row = [&](const std::string& since, const std::string& waits_for, const std::string& call) {
    print_row(first ? std::to_string(rank.rank) : "", first ? std::to_string(rank.pid) : "", first ? rank.host : "",
              first ? life_of(rank) : "", since, waits_for, call);
    first = false;
  };
  for (const CommunicatorView& each : rank.communicators) {
    const std::string since = each.wait ? fmt::format("{:.1f} s", each.wait->seconds) : "-";
    if (each.cause) {
      row(clock_time(each.cause->at_ns).substr(11), "-", fmt::format("{}: {}", to_string(each.cause->code), each.cause->text));
    } else if (each.in_call()) {
      const std::uint64_t more = each.started - each.ended - 1;
      row(since, waited_for(each),
          fmt::format("in {}{}", words_for_call(each, each.current()), more == 0 ? "" : fmt::format(" and {} more", more)));
    } else if (each.messages_open) {
      row(since, waited_for(each), each.message.empty() ? "in a send or recv" : "in a " + each.message);
    } else if (each.number == 0) {
      row("-", "-", each.started == 0 ? "no call yet" : "after " + words_for_call(each, each.started - 1));
    }
  }
  if (rank.communicators.empty()) row("-", "-", "still starting up, or has left the job");
  if (first) row("-", "-", "has left the communicator of all ranks");
}

int print_job(const JobView& job, const DoctorOptions& options) {
  fmt::print("job {}: {} of {} ranks seen from this host, started {}\n", shown(job), job.seen.size(), job.ranks,
             clock_time(job.started_ns));
  print_row("rank", "process", "host", "state", "since", "waits for", "what");
  for (const RankView& rank : job.seen) print_rank(rank);
  const Diagnosis found = diagnose(job, options.wait_limit_s);
  if (found.sentence.empty()) {
    fmt::print("no problem found: no rank has waited for {:g} s\n", options.wait_limit_s);
    return 0;
  }
  fmt::print("culprit: {}\n", found.sentence);
  if (!found.suggestion.empty()) fmt::print("fix: {}\n", found.suggestion);
  return kExitFound;
}

void list_jobs(const JobList& list, const DoctorOptions& options) {
  const auto row = [&](const JobView& job, const std::string& before) {
    const Diagnosis found = diagnose(job, options.wait_limit_s);
    fmt::print("{:<34} {:<10} {:<20} {}{}\n", shown(job), fmt::format("{} of {}", job.seen.size(), job.ranks),
               clock_time(job.started_ns), before, found.sentence.empty() ? "ok" : found.sentence);
  };
  if (list.running.empty()) fmt::print("no job is running\n");
  if (!list.running.empty() || !list.ended.empty()) fmt::print("{:<34} {:<10} {:<20} {}\n", "job", "ranks", "started", "state");
  for (const JobView* job : list.running) row(*job, "");
  for (const JobView* job : list.ended)
    row(*job, fmt::format("ended after {}: ", clock_time(job->last_sign_ns).substr(5)));  // without the year
  if (list.left_out > 0) fmt::print("{} more ended over an hour ago; shoal doctor --all lists them\n", list.left_out);
}

int report_checks(const std::vector<MachineCheck>& checks) {
  int status = 0;
  for (const MachineCheck& check : checks) {
    fmt::print("{:<5} {:<24} {}\n", to_string(check.verdict), check.what, check.found);
    if (!check.to_do.empty()) fmt::print("{:<5} {:<24} fix: {}\n", "", "", check.to_do);
    if (check.verdict == MachineCheck::Verdict::bad) status = kExitFound;
  }
  return status;
}

// Prints one line for each library that transports load at run time.
void print_transport_libraries() {
  const auto providers = ofi_providers();
  std::string line = providers.ok() ? "" : providers.status().message();
  if (providers.ok()) {
    for (const OfiProvider& each : *providers) {
      line += fmt::format("{}{} {} on {}", line.empty() ? "ofi: libfabric with " : "; ", each.name, each.version,
                          fmt::join(each.devices, ","));
    }
  }
  fmt::print("{}\n", line);
  const auto version = ucx_version();
  fmt::print("{}\n", version.ok() ? "ucx: UCX " + *version : version.status().message());
}

int examine_machine(const DoctorOptions& options) {
  auto where = detect_options();
  if (!where.ok()) return report_error("doctor", where.status());
  if (!options.root.empty()) where->sysfs_root = options.root + "/sys";
  const FoundMachine machine = detect_machine(*where);
  fmt::print("machine: {}\n", describe_type(machine));
  const int status = report_checks(check_machine(machine, options.root));
  if (options.root.empty()) print_transport_libraries();  // only for this machine
  return status;
}

int examine_security_groups(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return report_error("doctor", system_error("open " + path, errno));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto check = check_security_groups(text);
  if (!check.ok()) return report_error("doctor", Status(check.status().code(), path + ": " + check.status().message()));
  return report_checks({*check});
}

int run_doctor(const DoctorOptions& options) {
  if (options.machine || !options.security_groups.empty()) {
    const int status = options.machine ? examine_machine(options) : 0;
    return options.security_groups.empty() ? status : std::max(status, examine_security_groups(options.security_groups));
  }
  const std::string folder = options.folder.empty() ? flight_record_folder() : options.folder;
  if (folder.empty()) {
    fmt::print(stderr, "shoal doctor: SHOAL_FLIGHT_RECORD is off; give the folder of the flight records with --folder\n");
    return kExitFound;
  }
  remove_old_flight_records(folder);
  std::vector<std::string> complaints;
  const std::vector<JobView> jobs = read_jobs(folder, complaints);
  for (const std::string& complaint : complaints) fmt::print(stderr, "shoal doctor: {}\n", complaint);
  if (options.job.empty()) {
    if (jobs.empty()) {
      fmt::print(
          "no jobs: there are no flight records in {}. Jobs that ended in order leave none; SHOAL_FLIGHT_RECORD and "
          "XDG_RUNTIME_DIR "
          "of the job determine its folder\n",
          folder);
    } else {
      const auto now = std::chrono::system_clock::now().time_since_epoch();
      list_jobs(list_of(jobs, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), options.all), options);
    }
    print_transport_libraries();
    fmt::print("{}\n", cuda::cuda_summary());
    return 0;
  }
  int status = 0;
  bool any = false;
  for (const JobView& job : jobs) {
    const bool by_id = options.job.size() >= kShortestId && job.id.starts_with(options.job);
    if (!by_id && job.name != options.job) continue;
    if (std::exchange(any, true)) fmt::print("\n");
    status = std::max(status, print_job(job, options));
  }
  if (any) return status;
  fmt::print(stderr, "shoal doctor: no job '{}' in {}; run shoal doctor to list the jobs\n", options.job, folder);
  return kExitFound;
}

}  // namespace

void add_doctor_command(CLI::App& app, int* exit_status) {
  auto options = std::make_shared<DoctorOptions>();
  auto* command = app.add_subcommand(
      "doctor",
      "Lists the jobs of this host that run, or that failed or were killed within the last hour, and the libraries and devices "
      "for ofi, ucx and CUDA. With --job, shows each rank's call, how long and for which ranks it waits, and names the "
      "culprit. Exit status 1 if there is a problem");
  command->add_option("--job", options->job, "id of the job (its first digits are enough) or its name");
  command->add_flag(
      "--machine", options->machine,
      "check the machine instead: EFA devices and driver, locked memory, huge pages, GPUs, GPUDirect, placement, libraries");
  command->add_option("--security-groups", options->security_groups,
                      "file with the output of aws ec2 describe-security-groups: checks whether a group allows EFA traffic");
  command->add_option("--root", options->root, "folder that holds sys, proc, dev and opt of another machine")->group("");
  command->add_flag("--all", options->all, "also list jobs that ended earlier; their records are removed after a day");
  command->add_option("--folder", options->folder, "folder of the flight records (default: as SHOAL_FLIGHT_RECORD)");
  command->add_option("--wait-limit", options->wait_limit_s, "seconds that a rank may wait before it counts as a problem")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->callback([options, exit_status] { *exit_status = run_doctor(*options); });
}

}  // namespace shoal
