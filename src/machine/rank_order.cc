#include "src/machine/rank_order.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <iterator>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "src/base/text.h"

extern char** environ;  // POSIX leaves its declaration to the program

namespace shoal {
namespace {

constexpr std::size_t kMaxText = 64 << 20;
constexpr std::size_t kMaxInstances = 100'000;
constexpr std::size_t kMaxLayers = 16;
constexpr std::size_t kMaxName = 256;
constexpr auto kCommandTime = std::chrono::seconds(60);

Status no_answer(std::string what) { return {StatusCode::invalid_argument, std::move(what)}; }

/// A text member of limited length; empty if the member is missing or of another kind.
std::string text_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return {};
  std::string text = found->get<std::string>();
  return text.size() <= kMaxName ? text : std::string();
}

std::string first_label(const std::string& name) { return name.substr(0, name.find('.')); }

Status add_place(const nlohmann::json& instance, NetworkTree& tree) {
  const std::string id = instance.is_object() ? text_of(instance, "InstanceId") : std::string();
  if (id.empty()) return no_answer("an entry of Instances has no InstanceId");
  const auto nodes = instance.find("NetworkNodes");
  // Empty for an instance that does not run, or of a type that the service does not know.
  if (nodes == instance.end() || !nodes->is_array() || nodes->empty()) return {};
  if (nodes->size() > kMaxLayers) return no_answer(fmt::format("{} has {} network nodes", id, nodes->size()));
  std::string zone = text_of(instance, "ZoneId");
  std::vector<std::string> path{zone.empty() ? text_of(instance, "AvailabilityZone") : zone};
  for (const auto& node : *nodes) {
    if (!node.is_string()) return no_answer(fmt::format("a network node of {} is not a string", id));
    path.push_back(node.get<std::string>());
  }
  path.push_back(text_of(instance, "CapacityBlockId"));
  tree.paths[id] = std::move(path);
  return tree.paths.size() <= kMaxInstances ? Status() : no_answer(fmt::format("more than {} instances", kMaxInstances));
}

Status add_names(const nlohmann::json& instance, NetworkTree& tree) {
  const std::string id = instance.is_object() ? text_of(instance, "InstanceId") : std::string();
  if (id.empty()) return no_answer("an instance of Reservations has no InstanceId");
  for (const char* key : {"PrivateDnsName", "PublicDnsName", "PrivateIpAddress"}) {
    const std::string name = text_of(instance, key);
    if (name.empty()) continue;
    tree.ids[name] = id;
    if (key != std::string_view("PrivateIpAddress")) tree.ids[first_label(name)] = id;
  }
  return tree.ids.size() <= 5 * kMaxInstances ? Status() : no_answer(fmt::format("more than {} instances", kMaxInstances));
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return system_error("open " + path, errno);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (text.size() > kMaxText) return no_answer(fmt::format("{} is larger than {} bytes", path, kMaxText));
  return text;
}

/// The whole output of `file`, which must end before `deadline`.
Result<std::string> read_until(int file, std::chrono::steady_clock::time_point deadline) {
  std::string text;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
    pollfd entry{file, POLLIN, 0};
    const int ready = left > 0 ? ::poll(&entry, 1, static_cast<int>(left)) : 0;
    if (ready == 0) return Status(StatusCode::timeout, fmt::format("the command ran longer than {} s", kCommandTime.count()));
    if (ready < 0 && errno == EINTR) continue;
    std::array<char, 16 << 10> piece{};
    const ssize_t size = ::read(file, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return system_error("read the command's output", errno);
    if (size == 0) return text;
    text.append(piece.data(), static_cast<std::size_t>(size));
    if (text.size() > kMaxText) return no_answer(fmt::format("the command printed more than {} bytes", kMaxText));
  }
}

/// The output of `command`. After kCommandTime its process group is killed.
Result<std::string> output_of(const std::string& command) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return system_error("pipe", errno);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, pipe[1], STDOUT_FILENO);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::string shell = "sh";
  std::string option = "-c";
  std::string line = command;
  std::array<char*, 4> arguments{shell.data(), option.data(), line.data(), nullptr};
  pid_t child = 0;
  const int error = ::posix_spawn(&child, "/bin/sh", &actions, &attributes, arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  ::close(pipe[1]);
  if (error != 0) {
    ::close(pipe[0]);
    return system_error("start " + command, error);
  }
  auto text = read_until(pipe[0], std::chrono::steady_clock::now() + kCommandTime);
  ::close(pipe[0]);
  if (!text.ok()) ::kill(-child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!text.ok()) return text;
  if (status != 0) {
    return no_answer(WIFEXITED(status) ? fmt::format("the command exited with status {}", WEXITSTATUS(status))
                                       : fmt::format("the command was killed by signal {}", WTERMSIG(status)));
  }
  return text;
}

Status add_text(const Result<std::string>& text, const std::string& origin, NetworkTree& tree) {
  const Status status = text.ok() ? add_answer(*text, tree) : text.status();
  return status.ok() ? status : Status(status.code(), fmt::format("rank order from {}: {}", origin, status.message()));
}

}  // namespace

Status add_answer(std::string_view json, NetworkTree& tree) {
  const auto answer = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (answer.is_discarded()) return no_answer("not JSON (give the AWS command --output json)");
  const auto member = [&](const char* key) {
    const auto found = answer.is_object() ? answer.find(key) : answer.end();
    return found != answer.end() && found->is_array() ? &*found : nullptr;
  };
  const auto* places = member("Instances");
  const auto* reservations = member("Reservations");
  if (places == nullptr && reservations == nullptr) {
    return no_answer("it has neither Instances (describe-instance-topology) nor Reservations (describe-instances)");
  }
  if (places != nullptr) {
    for (const auto& instance : *places) {
      if (Status status = add_place(instance, tree); !status.ok()) return status;
    }
  }
  if (reservations == nullptr) return {};
  for (const auto& reservation : *reservations) {
    const auto instances = reservation.is_object() ? reservation.find("Instances") : reservation.end();
    if (!reservation.is_object() || instances == reservation.end() || !instances->is_array()) {
      return no_answer("an entry of Reservations has no Instances");
    }
    for (const auto& instance : *instances) {
      if (Status status = add_names(instance, tree); !status.ok()) return status;
    }
  }
  return {};
}

Result<NetworkTree> read_network_tree(const std::string& source) {
  NetworkTree tree;
  if (source.starts_with('|')) {
    if (Status status = add_text(output_of(source.substr(1)), "'" + source.substr(1) + "'", tree); !status.ok()) return status;
    return tree;
  }
  for (const std::string& path : split_at_commas(source)) {
    if (Status status = add_text(read_file(path), path, tree); !status.ok()) return status;
  }
  return tree;
}

HostOrder order_hosts(const NetworkTree& tree, std::span<const std::string> hosts) {
  HostOrder result;
  // Of each host, at each depth: the number of the prefix of its path, numbered in the order of appearance.
  std::vector<std::vector<std::size_t>> keys;
  std::map<std::vector<std::string>, std::size_t> prefixes;
  for (const std::string& entry : hosts) {
    const std::string host = entry.substr(entry.find('@') + 1);
    auto named = tree.ids.find(host);
    if (named == tree.ids.end()) named = tree.ids.find(first_label(host));
    const std::string id = named != tree.ids.end() ? named->second : first_label(host);
    const auto path = tree.paths.find(id);
    std::vector<std::size_t> key;
    if (path == tree.paths.end()) {
      result.unknown.push_back(entry);
      key.push_back(hosts.size() * (kMaxLayers + 2));  // after all prefixes
    } else {
      std::vector<std::string> prefix;
      for (const std::string& part : path->second) {
        prefix.push_back(part);
        key.push_back(prefixes.try_emplace(prefix, prefixes.size()).first->second);
      }
    }
    keys.push_back(std::move(key));
  }
  result.order.resize(hosts.size());
  std::iota(result.order.begin(), result.order.end(), 0);
  std::stable_sort(result.order.begin(), result.order.end(), [&](std::size_t a, std::size_t b) { return keys[a] < keys[b]; });
  return result;
}

}  // namespace shoal
