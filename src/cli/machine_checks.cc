#include "src/cli/machine_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "src/machine/sysfs.h"

namespace shoal {
namespace {

using Verdict = MachineCheck::Verdict;
namespace fs = std::filesystem;

constexpr long kEnoughFiles = 4096;  // sockets of a rank in a job of a few hundred ranks

/// The machine to check, and the facts found so far.
struct Patient {
  const FoundMachine& machine;
  std::string root;
  int efa = 0;         // devices found
  int efa_driven = 0;  // of those, with a driver
  bool wants_efa = false;
  bool wants_gpus = false;
};

std::size_t entries_like(const std::string& folder, const std::string& prefix) {
  std::size_t count = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    count += entry->path().filename().string().starts_with(prefix) ? 1 : 0;
  }
  return count;
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// "Max locked memory   8388608   8388608   bytes" -> 8388608; -1 for unlimited, -2 if not found.
long soft_limit(const std::string& limits, const std::string& name) {
  std::ifstream file(limits);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name)) continue;
    const std::size_t begin = line.find_first_not_of(' ', name.size());
    if (begin == std::string::npos) return -2;
    if (line.compare(begin, 9, "unlimited") == 0) return -1;
    long value = -2;
    std::from_chars(line.data() + begin, line.data() + line.size(), value);
    return value;
  }
  return -2;
}

MachineCheck check_efa(const Patient& patient) {
  const int expected = patient.machine.instance != nullptr ? patient.machine.instance->efa_cards : patient.efa;
  MachineCheck check{"EFA devices", Verdict::good, fmt::format("{} of {}", patient.efa, expected), {}};
  if (patient.efa < expected) {
    check.verdict = patient.efa == 0 ? Verdict::bad : Verdict::note;
    check.to_do = "launch with an EFA interface on each network card; expose them to containers (vpc.amazonaws.com/efa)";
  } else if (patient.efa_driven < patient.efa) {
    check.verdict = Verdict::bad;
    check.found += fmt::format(", {} without a driver", patient.efa - patient.efa_driven);
    check.to_do = "install the EFA driver (aws-efa-installer) and load it: modprobe efa";
  }
  return check;
}

MachineCheck check_efa_driver(const Patient& patient) {
  const std::string version = read_line(patient.root + "/sys/module/efa/version");
  if (!version.empty()) return {"EFA driver", Verdict::good, version, {}};
  if (exists(patient.root + "/sys/module/efa")) return {"EFA driver", Verdict::good, "loaded, version of the kernel", {}};
  return {"EFA driver", Verdict::bad, "not loaded", "modprobe efa (for a container: on its host)"};
}

MachineCheck check_verbs(const Patient& patient) {
  const std::size_t count = entries_like(patient.root + "/dev/infiniband", "uverbs");
  MachineCheck check{"/dev/infiniband/uverbs*", Verdict::good, fmt::format("{} of {}", count, patient.efa), {}};
  if (static_cast<int>(count) < patient.efa) {
    check.verdict = Verdict::bad;
    check.to_do = "pass the devices to the container: --device=/dev/infiniband, or vpc.amazonaws.com/efa in Kubernetes";
  }
  return check;
}

MachineCheck check_libfabric(const Patient& patient) {
  for (const char* path : {"/opt/amazon/efa/lib64/libfabric.so.1", "/opt/amazon/efa/lib/libfabric.so.1"}) {
    if (!exists(patient.root + path)) continue;
    // "# EFA installer version: 1.43.2" on the first line.
    const std::string packages = read_line(patient.root + "/opt/amazon/efa_installed_packages");
    const std::string first = packages.substr(0, packages.find('\n'));
    return {"libfabric for EFA", Verdict::good, first.empty() ? path : first, {}};
  }
  return {"libfabric for EFA", Verdict::note, "not in /opt/amazon/efa",
          "install it with aws-efa-installer; a distribution's libfabric may lack the provider (check: fi_info -p efa)"};
}

MachineCheck check_locked_memory(const Patient& patient) {
  const long bytes = soft_limit(patient.root + "/proc/self/limits", "Max locked memory");
  MachineCheck check{"locked memory", Verdict::good, "unlimited", {}};
  if (bytes == -1) return check;
  check.found = bytes < 0 ? "unknown" : fmt::format("{} MiB", bytes >> 20);
  check.verdict = bytes < 0 ? Verdict::unknown : patient.wants_efa ? Verdict::bad : Verdict::note;
  check.to_do =
      "set memlock unlimited in /etc/security/limits.d, LimitMEMLOCK=infinity for slurmd, --ulimit memlock=-1 for Docker";
  if (!patient.wants_efa) check.to_do += "; needed for EFA only";
  return check;
}

MachineCheck check_huge_pages(const Patient& patient) {
  const std::string count = read_line(patient.root + "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
  MachineCheck check{"huge pages of 2 MiB", Verdict::good, count.empty() ? "unknown" : count, {}};
  if (count.empty()) {
    check.verdict = Verdict::unknown;
  } else if (count == "0") {
    check.verdict = Verdict::note;
    check.to_do =
        "libfabric uses them for EFA's buffers with FI_EFA_USE_HUGE_PAGE=1 (if unset, shoal sets 0, because fork() fails if "
        "none are left for the child's copy): sysctl vm.nr_hugepages=5128, as the EFA installer does";
  }
  return check;
}

MachineCheck check_files(const Patient& patient) {
  const long files = soft_limit(patient.root + "/proc/self/limits", "Max open files");
  MachineCheck check{"open files",
                     Verdict::good,
                     files == -1 ? "unlimited"
                     : files < 0 ? "unknown"
                                 : std::to_string(files),
                     {}};
  if (files == -2) check.verdict = Verdict::unknown;
  if (files >= 0 && files < kEnoughFiles) {
    check.verdict = Verdict::note;
    check.to_do = fmt::format("each rank has two or more sockets to every other rank: ulimit -n {}", 16 * kEnoughFiles);
  }
  return check;
}

// bbr paces a connection by its rate when it last shared the link: if hosts change partners, the connection stays below the
// link's rate. On emulated hosts (bench/cluster --congestion) recursive_halving takes 1.15 to 1.27 times, and direct 1.1 to 1.4
// times the time with reno.
MachineCheck check_congestion_control(const Patient& patient) {
  const std::string name = read_line(patient.root + "/proc/sys/net/ipv4/tcp_congestion_control");
  MachineCheck check{"TCP congestion control", Verdict::good, name.empty() ? "unknown" : name, {}};
  if (name.empty()) check.verdict = Verdict::unknown;
  if (name.starts_with("bbr")) {
    check.verdict = Verdict::note;
    check.to_do =
        "hosts that exchange data with several hosts at a time may not fill their links; try Linux's default: sysctl "
        "net.ipv4.tcp_congestion_control=cubic; matters for TCP only";
  }
  return check;
}

MachineCheck check_gpus(const Patient& patient) {
  const std::size_t here = patient.machine.hardware.gpus.size();
  const std::string version = read_line(patient.root + "/sys/module/nvidia/version");
  MachineCheck check{"GPUs and driver", Verdict::good, fmt::format("{}, NVIDIA {}", here, version), {}};
  if (version.empty()) {
    check.verdict = Verdict::bad;
    check.found = fmt::format("{}, NVIDIA's driver is not loaded", here);
    check.to_do = "use an image with the driver, or install it (for a container: on its host)";
  } else if (patient.machine.instance != nullptr && static_cast<int>(here) < patient.machine.instance->gpus) {
    check.verdict = Verdict::note;
    check.to_do = fmt::format("{} has {}", patient.machine.instance->name, patient.machine.instance->gpus);
  }
  return check;
}

MachineCheck check_gpudirect(const Patient& patient) {
  for (const char* module : {"nvidia_peermem", "nv_peer_mem", "efa_nv_peermem"}) {
    if (exists(patient.root + "/sys/module/" + module)) return {"GPUDirect RDMA", Verdict::good, std::string(module), {}};
  }
  // The open kernel module exports GPU memory as DMA buffers, which EFA's driver accepts.
  if (read_line(patient.root + "/proc/driver/nvidia/version").find("Open Kernel Module") != std::string::npos) {
    return {"GPUDirect RDMA", Verdict::good, "DMA buffers of the open kernel module", {}};
  }
  for (const Nic& nic : patient.machine.hardware.nics) {
    if (nic.kind != Nic::Kind::efa) continue;
    if (read_line(patient.root + "/sys/bus/pci/devices/" + nic.place.address + "/gdr") == "1") {
      return {"GPUDirect RDMA", Verdict::good, "by the EFA driver", {}};
    }
  }
  return {"GPUDirect RDMA", Verdict::note, "not found",
          "without it GPU buffers go through host memory; load nvidia-peermem, or use NVIDIA's open kernel module with an EFA "
          "driver that accepts DMA buffers"};
}

MachineCheck check_placement(const Patient& patient) {
  const auto& metadata = patient.machine.metadata;
  if (metadata.empty()) return {"placement group", Verdict::unknown, "the metadata service was not used or did not answer", {}};
  const auto group = metadata.find("placement/group-name");
  if (group != metadata.end()) return {"placement group", Verdict::good, group->second, {}};
  return {"placement group", Verdict::note, "none",
          "launch all instances in one cluster placement group (or a capacity block): latency doubles between groups"};
}

const nlohmann::json* array_in(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_array() ? &*found : nullptr;
}

bool lets_itself_through(const nlohmann::json& group, const char* direction, const std::string& id) {
  const auto* rules = array_in(group, direction);
  if (rules == nullptr) return false;
  return std::any_of(rules->begin(), rules->end(), [&](const nlohmann::json& rule) {
    if (!rule.is_object() || rule.value("IpProtocol", nlohmann::json()) != "-1") return false;
    const auto* pairs = array_in(rule, "UserIdGroupPairs");
    return pairs != nullptr && std::any_of(pairs->begin(), pairs->end(), [&](const nlohmann::json& pair) {
             return pair.is_object() && pair.value("GroupId", nlohmann::json()) == id;
           });
  });
}

}  // namespace

std::string to_string(MachineCheck::Verdict verdict) {
  switch (verdict) {
    case Verdict::good:
      return "ok";
    case Verdict::note:
      return "note";
    case Verdict::bad:
      return "BAD";
    case Verdict::unknown:
      break;
  }
  return "?";
}

std::vector<MachineCheck> check_machine(const FoundMachine& machine, const std::string& root) {
  Patient patient{machine, root};
  for (const Nic& nic : machine.hardware.nics) {
    patient.efa += nic.kind == Nic::Kind::efa ? 1 : 0;
    patient.efa_driven += nic.kind == Nic::Kind::efa && !nic.name.empty() ? 1 : 0;
  }
  patient.wants_efa = patient.efa > 0 || (machine.instance != nullptr && machine.instance->efa_cards > 0);
  patient.wants_gpus = !machine.hardware.gpus.empty() || machine.instance != nullptr;
  std::vector<MachineCheck> checks;
  if (patient.wants_efa) {
    checks = {check_efa(patient), check_efa_driver(patient), check_verbs(patient), check_libfabric(patient)};
    checks.push_back(
        {"security group", Verdict::unknown, "cannot be checked from inside the instance",
         "it must allow all traffic from and to itself; check: aws ec2 describe-security-groups --group-ids sg-... "
         "> sg.json, then shoal doctor --security-groups sg.json"});
    checks.push_back(check_placement(patient));
    checks.push_back(check_huge_pages(patient));
  }
  checks.push_back(check_locked_memory(patient));
  checks.push_back(check_files(patient));
  checks.push_back(check_congestion_control(patient));
  if (patient.wants_gpus) checks.push_back(check_gpus(patient));
  if (patient.wants_gpus && patient.wants_efa) checks.push_back(check_gpudirect(patient));
  for (const std::string& note : machine.notes) checks.push_back({"machine", Verdict::note, note, {}});
  return checks;
}

Result<MachineCheck> check_security_groups(std::string_view json) {
  const auto answer = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const auto* groups = array_in(answer, "SecurityGroups");
  if (groups == nullptr || groups->empty()) {
    return Status(StatusCode::invalid_argument, "not the output of aws ec2 describe-security-groups: no SecurityGroups in it");
  }
  std::string seen;
  for (const auto& group : *groups) {
    const auto found = group.is_object() ? group.value("GroupId", nlohmann::json()) : nlohmann::json();
    if (!found.is_string()) return Status(StatusCode::invalid_argument, "a security group without GroupId");
    const auto id = found.get<std::string>();
    const bool in = lets_itself_through(group, "IpPermissions", id);
    const bool out = lets_itself_through(group, "IpPermissionsEgress", id);
    if (in && out) return MachineCheck{"security group", Verdict::good, id + " allows its own traffic, in and out", {}};
    seen += fmt::format("{}{} allows its own traffic {}", seen.empty() ? "" : "; ", id,
                        in    ? "in, not out"
                        : out ? "out, not in"
                              : "neither in nor out");
  }
  return MachineCheck{
      "security group", Verdict::bad, seen,
      "aws ec2 authorize-security-group-ingress and -egress with --protocol -1 --source-group of the same group; "
      "0.0.0.0/0 is not enough for EFA"};
}

}  // namespace shoal
