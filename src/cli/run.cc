// `shoal run`: starts the ranks of a job, on this machine or by ssh on several machines, with the environment variables that
// shoal's programs read.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <shoal/limits.h>
#include <shoal/status.h>
#include <CLI/CLI.hpp>

#include "src/base/text.h"
#include "src/cli/commands.h"
#include "src/cli/supervisor.h"
#include "src/join/job_key.h"
#include "src/join/launch.h"
#include "src/machine/rank_order.h"
#include "src/settings/settings.h"

extern char** environ;  // POSIX leaves its declaration to the program

namespace shoal {
namespace {

constexpr int kPortTries = 100;
constexpr int kExitUsage = 2;

struct HostEntry {
  std::string login;  ///< ssh destination: "b" or "user@b"
  int ranks = 1;
};

struct RunOptions {
  int ranks = 0;
  std::string hosts;
  std::string rank_order;
  std::string ssh_command = "ssh -o BatchMode=yes";
  std::string master;
  int port = 0;
  double timeout_s = 0;
  double grace_s = 3;
  bool tag_output = false;
  bool keep_going = false;
  std::vector<std::string> command;
  // Used by the agent that runs on each host of --hosts.
  int first_rank = 0;
  int size = 0;
  bool agent = false;
};

using Variables = std::vector<std::pair<std::string, std::string>>;

Result<std::vector<HostEntry>> parse_hosts(const std::string& text) {
  std::vector<HostEntry> hosts;
  for (const std::string& entry : split_at_commas(text)) {
    const std::size_t colon = entry.rfind(':');
    HostEntry host{entry.substr(0, colon), 1};
    bool good = !host.login.empty() && host.login[0] != '-' && host.login.find_first_of(" \t'\"\\$;&|") == std::string::npos;
    if (colon != std::string::npos) {
      const auto [stop, error] = std::from_chars(entry.data() + colon + 1, entry.data() + entry.size(), host.ranks);
      good =
          good && error == std::errc() && stop == entry.data() + entry.size() && host.ranks >= 1 && host.ranks <= kMaxHostRanks;
    }
    if (!good) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("--hosts: '{}' is not HOST:RANKS (such as a:8, with 1 to {} ranks)", entry, kMaxHostRanks));
    }
    hosts.push_back(host);
  }
  std::int64_t ranks = 0;
  for (const HostEntry& host : hosts) ranks += host.ranks;
  if (ranks > kMaxJobRanks)
    return Status(StatusCode::invalid_argument, fmt::format("--hosts: {} ranks; a job has at most {}", ranks, kMaxJobRanks));
  return hosts;
}

/// Sorts hosts so that hosts close to each other in the network are neighbours. The first host, the job's master, stays first.
Status sort_by_network(const std::string& source, std::vector<HostEntry>& hosts) {
  if (source.empty()) return {};
  const auto tree = read_network_tree(source);
  if (!tree.ok()) return tree.status();
  std::vector<std::string> names;
  for (const HostEntry& host : hosts) names.push_back(host.login);
  const HostOrder order = order_hosts(*tree, names);
  for (const std::string& host : order.unknown) {
    fmt::print(stderr, "shoal run: the rank order does not contain {}; its ranks are placed last\n", host);
  }
  std::vector<HostEntry> sorted;
  for (const std::size_t host : order.order) sorted.push_back(hosts[host]);
  hosts = std::move(sorted);
  return {};
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  while (getrandom(&number, sizeof(number), 0) != sizeof(number)) {
  }
  return number;
}

/// Whether no process of this machine listens on `port` of any address now.
bool is_free(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;  // rank 0 will report the reason
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // as rank 0 does
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return free;
}

/// A port for rank 0's store on this machine. No outgoing connection can take it before rank 0 listens: the system gives
/// connections ports of another range. Another job conflicts only if it chooses the same of 12,768 ports.
int choose_port() {
  int port = 0;
  for (int tries = 0; tries < kPortTries; ++tries) {
    port = port_below_connections(random_number());
    if (is_free(port)) break;
  }
  return port;
}

/// Wraps `text` so that a shell reads it as one word.
std::string quote(const std::string& text) {
  std::string quoted = "'";
  for (const char character : text) quoted += character == '\'' ? std::string("'\\''") : std::string(1, character);
  return quoted + "'";
}

std::vector<std::string> split_words(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  for (const char character : text + " ") {
    if (std::isspace(static_cast<unsigned char>(character)) == 0) {
      word += character;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, {}));
    }
  }
  return words;
}

/// The processes of this machine: `count` of the `size` ranks, beginning with `first_rank`.
std::vector<JobProcess> ranks_here(const std::vector<std::string>& command, int first_rank, int count, int size,
                                   const Variables& variables) {
  std::vector<JobProcess> processes;
  for (int local = 0; local < count; ++local) {
    JobProcess process;
    process.label = fmt::format("rank {}", first_rank + local);
    process.command = command;
    process.environment = variables;
    process.environment.insert(process.environment.end(), {{"SHOAL_RANK", std::to_string(first_rank + local)},
                                                           {"SHOAL_SIZE", std::to_string(size)},
                                                           {"SHOAL_LOCAL_RANK", std::to_string(local)},
                                                           {"SHOAL_LOCAL_SIZE", std::to_string(count)}});
    processes.push_back(std::move(process));
  }
  return processes;
}

JobOptions job_options(const RunOptions& options) {
  JobOptions job;
  job.timeout_s = options.timeout_s;
  job.grace_s = options.grace_s;
  job.tag_output = options.tag_output;
  job.keep_going = options.keep_going;
  return job;
}

int fail(const Status& status) {
  fmt::print(stderr, "shoal run: {}\n", status.message());
  return status.code() == StatusCode::invalid_argument ? kExitUsage : 1;
}

int run_local(const RunOptions& options) {
  const int port = options.port != 0 ? options.port : choose_port();
  // A key that the user has set by either variable is passed to the ranks unchanged.
  const Result<std::optional<std::string>> given = job_key_text();
  if (!given.ok()) return fail(given.status());
  Variables variables = {{"SHOAL_MASTER_ADDR", options.master.empty() ? "127.0.0.1" : options.master},
                         {"SHOAL_MASTER_PORT", std::to_string(port)},
                         {"SHOAL_JOB_ID", fmt::format("{:016x}", random_number())},
                         {"SHOAL_HOST_ADDRESS", "127.0.0.1"}};
  if (!given->has_value()) variables.emplace_back("SHOAL_JOB_KEY", to_hex(random_key()));
  return run_job(ranks_here(options.command, 0, options.ranks, options.ranks, variables), job_options(options));
}

/// Runs the ranks of one host of --hosts. The variables of the job arrive on standard input, one NAME=VALUE on each line, ended
/// by an empty line, so that the job's key appears in no process list. The job ends when standard input is closed.
int run_agent(const RunOptions& options) {
  Variables variables;
  std::string line;
  // Byte by byte: the supervisor reads the input after the empty line.
  for (char character = 0; read(STDIN_FILENO, &character, 1) == 1;) {
    if (character != '\n') {
      line += character;
      continue;
    }
    if (line.empty()) {
      unsetenv("SHOAL_JOB_KEY_FILE");  // the job's variables hold the key, and ssh may have passed this one on
      JobOptions job = job_options(options);
      job.ends_with_input = true;
      return run_job(ranks_here(options.command, options.first_rank, options.ranks, options.size, variables), job);
    }
    const std::size_t equals = line.find('=');
    if (equals != std::string::npos) variables.emplace_back(line.substr(0, equals), line.substr(equals + 1));
    line.clear();
  }
  return fail(Status(StatusCode::aborted, "the connection to the host that starts the job ended before the job began"));
}

/// Every SHOAL_* variable of this process, the address and port of the rendezvous, and the job's key.
std::string job_variables(const RunOptions& options, const std::string& master, int port, const std::string& key) {
  std::map<std::string, std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::size_t equals = text.find('=');
    if (text.starts_with("SHOAL_") && equals != std::string::npos && text.find('\n') == std::string::npos) {
      variables[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  variables.erase("SHOAL_HOST_ADDRESS");  // valid on this machine only
  variables["SHOAL_MASTER_ADDR"] = options.master.empty() ? master : options.master;
  variables["SHOAL_MASTER_PORT"] = std::to_string(port);
  variables["SHOAL_JOB_ID"] = fmt::format("{:016x}", random_number());
  variables.erase("SHOAL_JOB_KEY_FILE");  // a file of this machine; the key itself is passed instead
  variables["SHOAL_JOB_KEY"] = key;
  std::string text;
  for (const auto& [name, value] : variables) text += name + "=" + value + "\n";
  return text + "\n";
}

int run_on_hosts(const RunOptions& options) {
  Result<std::vector<HostEntry>> hosts = parse_hosts(options.hosts);
  if (!hosts.ok()) return fail(hosts.status());
  if (Status status = sort_by_network(options.rank_order, *hosts); !status.ok()) return fail(status);
  std::array<char, 4096> own_path{};
  if (readlink("/proc/self/exe", own_path.data(), own_path.size() - 1) < 0)
    return fail(system_error("readlink /proc/self/exe", errno));
  std::array<char, 4096> directory{};
  if (getcwd(directory.data(), directory.size()) == nullptr) return fail(system_error("the current directory", errno));

  const std::string& first = hosts->front().login;
  const std::string master = first.substr(first.find('@') + 1);
  const int port = options.port != 0 ? options.port : port_below_connections(random_number());
  const Result<std::optional<std::string>> given = job_key_text();
  if (!given.ok()) return fail(given.status());
  const std::string key = given->has_value() ? **given : to_hex(random_key());
  if (key.find('\n') != std::string::npos)
    return fail(Status(StatusCode::invalid_argument, "--hosts: the job's key must be a single line"));
  const std::string variables = job_variables(options, master, port, key);
  int size = 0;
  for (const HostEntry& host : *hosts) size += host.ranks;

  std::vector<JobProcess> processes;
  int first_rank = 0;
  for (const HostEntry& host : *hosts) {
    std::string line =
        fmt::format("cd {} && exec {} run --agent --first-rank {} --size {} -n {} --grace {}{}{} --", quote(directory.data()),
                    quote(own_path.data()), first_rank, size, host.ranks, options.grace_s,
                    options.tag_output ? " --tag-output" : "", options.keep_going ? " --keep-going" : "");
    for (const std::string& word : options.command) line += " " + quote(word);
    JobProcess process;
    process.label = "host " + host.login;
    process.command = split_words(options.ssh_command);
    process.command.insert(process.command.end(), {host.login, line});
    process.input = variables;
    process.explains_itself = true;
    processes.push_back(std::move(process));
    first_rank += host.ranks;
  }
  JobOptions job = job_options(options);
  job.tag_output = false;  // the agents do it
  return run_job(processes, job);
}

int run(const RunOptions& options) {
  if (options.command.empty()) {
    return fail(Status(StatusCode::invalid_argument, "nothing to run: give the command after --"));
  }
  if (options.agent) return run_agent(options);
  if (options.hosts.empty() == (options.ranks == 0)) {
    return fail(Status(StatusCode::invalid_argument, "give either -n RANKS or --hosts a:8,b:8"));
  }
  if (split_words(options.ssh_command).empty()) return fail(Status(StatusCode::invalid_argument, "--ssh-command is empty"));
  return options.hosts.empty() ? run_local(options) : run_on_hosts(options);
}

}  // namespace

void add_run_command(CLI::App& app, int* exit_status) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Start the ranks of a job here or by ssh: shoal run -n 4 -- command");
  command->footer(
      "Each rank finds SHOAL_RANK, SHOAL_SIZE, SHOAL_LOCAL_RANK, SHOAL_LOCAL_SIZE, SHOAL_MASTER_ADDR, SHOAL_MASTER_PORT,\n"
      "SHOAL_JOB_ID and SHOAL_JOB_KEY in its environment. Exit status: that of the first rank that failed (128 + signal if a "
      "signal killed it).");
  command->add_option("-n,--ranks", options->ranks, "Ranks on this machine")->check(CLI::Range(1, kMaxHostRanks));
  command->add_option("--hosts", options->hosts,
                      "Hosts and the number of ranks on each: a:8,b:8 (shoal must be at the same path on all hosts)");
  options->rank_order = setting("SHOAL_RANK_ORDER");
  command->add_option(
      "--rank-order", options->rank_order,
      "Number the ranks so that hosts close to each other are neighbours: a file with the output of aws ec2 "
      "describe-instance-topology, optionally with ,FILE of describe-instances for the names of hosts, or |COMMAND "
      "(default: SHOAL_RANK_ORDER)");
  command
      ->add_option("--ssh-command", options->ssh_command,
                   "Program that runs a command on a host; called with the host and a shell command")
      ->capture_default_str();
  command->add_option("--master", options->master, "Address at which all ranks reach rank 0 (default: the first host)");
  command
      ->add_option("--port", options->port,
                   "Port at which rank 0 listens at start-up (default: a free one from 20000 to 32767)")
      ->check(CLI::Range(1, 65535));
  command->add_option("--timeout", options->timeout_s, "End the job after this many seconds; 0 = never")
      ->check(CLI::Range(0.0, 1e9));
  command->add_option("--grace", options->grace_s, "Seconds for which the other ranks may continue after a rank has failed")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_flag("--keep-going", options->keep_going,
                    "Let the other ranks continue when a rank fails: for programs that recover from the loss of a rank");
  command->add_flag("--tag-output", options->tag_output, "Put '[rank 3] ' in front of every line of output");
  command->add_flag("--agent", options->agent)->group("");
  command->add_option("--first-rank", options->first_rank)->group("")->check(CLI::NonNegativeNumber);
  command->add_option("--size", options->size)->group("")->check(CLI::NonNegativeNumber);
  command->add_option("command", options->command, "The program and its arguments, after --");
  command->positionals_at_end();
  command->callback([options, exit_status] { *exit_status = run(*options); });
}

}  // namespace shoal
