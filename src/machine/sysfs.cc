#include "src/machine/sysfs.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>

#include <fmt/format.h>

#include "src/base/text.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxCores = 1 << 16;
constexpr std::size_t kMaxDevices = 4096;
constexpr std::size_t kMaxBridges = 32;
constexpr std::size_t kMaxLine = 4096;
constexpr unsigned kAmazon = 0x1d0f;
constexpr unsigned kNvidia = 0x10de;
constexpr unsigned kAmd = 0x1002;
constexpr unsigned kFirstEfa = 0xefa0;  // of generation 1; the next ones follow
constexpr unsigned kLastEfa = 0xefaf;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

/// All of `text` as a number from 0 to `high`; else -1.
int whole_number(std::string_view text, int high) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= high ? value : -1;
}

/// "0000:53:00.0".
bool is_pci_address(std::string_view text) {
  constexpr std::string_view kForm = "xxxx:xx:xx.x";
  if (text.size() != kForm.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool digit = (text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f');
    if (kForm[i] == 'x' ? !digit : text[i] != kForm[i]) return false;
  }
  return true;
}

/// Names in a folder in ascending order; none if the folder cannot be read.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end && names.size() < kMaxDevices;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

unsigned hexadecimal_of(const std::string& path) { return parse_hexadecimal(read_line(path)).value_or(0); }

PciPlace place_of(const std::string& folder, const std::string& address) {
  PciPlace place;
  place.address = address;
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);  // the entry is a link into /sys/devices
  if (!error) place.bridges = bridges_of_path(real.string());
  // -1 if the firmware does not report it; virtual machines often do not report it for each device.
  place.numa_node = whole_number(read_line(folder + "/numa_node"), kMaxCores);
  return place;
}

/// The interface of a network device; a virtio device has it one folder deeper.
std::string interface_of(const std::string& folder) {
  if (const auto names = names_in(folder + "/net"); !names.empty()) return names.front();
  for (const std::string& below : names_in(folder)) {
    if (!below.starts_with("virtio")) continue;
    if (const auto names = names_in(folder + "/" + below + "/net"); !names.empty()) return names.front();
  }
  return {};
}

/// The network device in `folder`, or nothing for another kind of device.
std::optional<Nic> nic_of(const std::string& root, const std::string& folder, const std::string& address, unsigned vendor,
                          unsigned device, unsigned device_class) {
  Nic nic;
  const auto verbs = names_in(folder + "/infiniband");
  const bool efa = vendor == kAmazon && device >= kFirstEfa && device <= kLastEfa;
  if (efa || !verbs.empty()) {
    nic.kind = efa ? Nic::Kind::efa : Nic::Kind::infiniband;
    nic.efa_generation = efa ? static_cast<int>(device - kFirstEfa) + 1 : 0;
    nic.name = verbs.empty() ? std::string() : verbs.front();  // empty without a driver
    const std::string port = folder + "/infiniband/" + nic.name + "/ports/1";
    nic.gbit_s = parse_infiniband_rate(read_line(port + "/rate"));
    nic.up = !verbs.empty() && read_line(port + "/state").starts_with("4");  // "4: ACTIVE"
  } else if (device_class >> 16 == 0x02) {
    nic.name = interface_of(folder);
    nic.gbit_s = parse_ethernet_speed(read_line(root + "/class/net/" + nic.name + "/speed"));
    nic.up = !nic.name.empty() && read_line(root + "/class/net/" + nic.name + "/operstate") == "up";
  } else {
    return std::nullopt;
  }
  nic.place = place_of(folder, address);
  return nic;
}

/// Whether the device is a GPU for computing: NVIDIA's and AMD's displays, 3D controllers and processing accelerators.
bool is_gpu(unsigned vendor, unsigned device_class) {
  const unsigned kind = device_class >> 8;
  return (vendor == kNvidia && (kind == 0x0300 || kind == 0x0302)) ||
         (vendor == kAmd && (kind == 0x0302 || kind == 0x0380 || kind == 0x1200));
}

std::vector<NumaNode> read_numa_nodes(const std::string& root) {
  std::vector<NumaNode> nodes;
  const std::string folder = root + "/devices/system/node";
  const auto online = parse_cores(read_line(folder + "/online"));
  for (const int node : online.ok() ? *online : std::vector<int>()) {
    const auto cores = parse_cores(read_line(fmt::format("{}/node{}/cpulist", folder, node)));
    if (cores.ok() && !cores->empty()) nodes.push_back({node, *cores});
  }
  if (nodes.empty()) {  // a kernel without NUMA
    const auto cores = parse_cores(read_line(root + "/devices/system/cpu/online"));
    if (cores.ok() && !cores->empty()) nodes.push_back({0, *cores});
  }
  return nodes;
}

}  // namespace

Result<std::vector<int>> parse_cores(std::string_view text) {
  const Status error(StatusCode::invalid_argument, fmt::format("'{:.60}' is not a list of cores such as 0-3,8,10-11", text));
  std::vector<int> cores;
  text = trimmed(text);
  if (text.empty()) return cores;
  for (const std::string& part : split_at_commas(text)) {
    const std::size_t dash = part.find('-');
    const int first = whole_number(part.substr(0, dash), kMaxCores - 1);
    const int last = dash == std::string_view::npos ? first : whole_number(part.substr(dash + 1), kMaxCores - 1);
    if (first < 0 || last < first || cores.size() > kMaxCores) return error;
    for (int core = first; core <= last; ++core) cores.push_back(core);
  }
  std::sort(cores.begin(), cores.end());
  cores.erase(std::unique(cores.begin(), cores.end()), cores.end());
  return cores;
}

std::optional<unsigned> parse_hexadecimal(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with("0x")) text.remove_prefix(2);
  unsigned value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> bridges_of_path(std::string_view path) {
  std::vector<std::string> bridges;
  for (std::size_t begin = 0; begin < path.size() && bridges.size() < kMaxBridges;) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (is_pci_address(part) || (part.starts_with("pci") && part.find(':') != std::string_view::npos)) {
      bridges.emplace_back(part);
    }
    begin = end + 1;
  }
  if (!bridges.empty()) bridges.pop_back();  // the device itself
  return bridges;
}

double parse_infiniband_rate(std::string_view text) {
  text = trimmed(text);
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos || !text.substr(space + 1).starts_with("Gb/sec")) return 0;
  const std::string_view number = text.substr(0, space);
  const std::size_t dot = std::min(number.find('.'), number.size());  // "2.5"
  const int whole = whole_number(number.substr(0, dot), 1'000'000);
  if (whole < 0) return 0;
  if (dot == number.size()) return whole;
  const std::string_view fraction = number.substr(dot + 1);
  const int tenths = whole_number(fraction, 9);
  return fraction.size() == 1 && tenths >= 0 ? whole + tenths / 10.0 : 0;
}

double parse_ethernet_speed(std::string_view text) {
  const int mbit_s = whole_number(trimmed(text), 100'000'000);  // the kernel writes -1 without a link
  return mbit_s > 0 ? mbit_s / 1000.0 : 0;
}

std::string read_line(const std::string& path) {
  // A plain read, because attributes of some drivers fail (speed without a link), and a stream would allocate a buffer.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return {};
  std::array<char, kMaxLine> text{};
  const ssize_t size = ::read(file, text.data(), text.size());
  ::close(file);
  return size > 0 ? std::string(trimmed(std::string_view(text.data(), static_cast<std::size_t>(size)))) : std::string();
}

Hardware read_cores(const std::string& root) {
  Hardware found;
  found.numa_nodes = read_numa_nodes(root);
  for (const int core : found.cores()) {
    const auto siblings =
        parse_cores(read_line(fmt::format("{}/devices/system/cpu/cpu{}/topology/thread_siblings_list", root, core)));
    found.sibling_of[core] = siblings.ok() && !siblings->empty() ? siblings->front() : core;
  }
  return found;
}

Hardware read_hardware(const std::string& root) {
  Hardware found = read_cores(root);
  const std::string devices = root + "/bus/pci/devices";
  for (const std::string& address : names_in(devices)) {
    if (!is_pci_address(address)) continue;
    const std::string folder = devices + "/" + address;
    const unsigned device_class = hexadecimal_of(folder + "/class");
    const unsigned base = device_class >> 16;
    if (base != 0x02 && base != 0x03 && base != 0x12 && device_class >> 8 != 0x0680)
      continue;  // neither NIC nor GPU nor switch
    const unsigned vendor = hexadecimal_of(folder + "/vendor");
    const unsigned device = hexadecimal_of(folder + "/device");
    if (is_gpu(vendor, device_class)) {
      found.gpus.push_back({place_of(folder, address), vendor, device});
    } else if (vendor == kNvidia && device_class >> 8 == 0x0680) {
      ++found.nvswitches;
    } else if (auto nic = nic_of(root, folder, address, vendor, device, device_class)) {
      found.nics.push_back(std::move(*nic));
    }
  }
  return found;
}

}  // namespace shoal
