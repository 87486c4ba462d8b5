#include "tests/unit/fake_machine.h"

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>

namespace shoal::fake {
namespace {

namespace fs = std::filesystem;

void put(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text << '\n';
}

Device gpu(std::string bridges, std::string address, std::string device, int numa) {
  return {std::move(bridges), std::move(address), "0x10de", std::move(device), "0x030200", numa, "", "", "", ""};
}

Device efa(std::string bridges, std::string address, int generation, int numa, std::string name, const std::string& gbit_s) {
  return {std::move(bridges),
          std::move(address),
          "0x1d0f",
          fmt::format("0xefa{}", generation - 1),
          "0x020000",
          numa,
          std::move(name),
          gbit_s + " Gb/sec (4X EDR)",
          "",
          ""};
}

Device ethernet(std::string bridges, std::string address, std::string vendor, std::string device, int numa, std::string name,
                std::string speed) {
  return {std::move(bridges), std::move(address), std::move(vendor), std::move(device), "0x020000", numa, "", "",
          std::move(name),    std::move(speed)};
}

/// Four roots, each with two GPUs and one NIC, as in aws-ofi-nccl's topology file.
Machine p4d() {
  Machine machine{{"0-23,48-71", "24-47,72-95"}, 48, {}, "Amazon EC2", "p4d.24xlarge", "i-0123456789abcdef0"};
  int index = 0;
  for (const char* bus : {"10", "20", "90", "a0"}) {
    const std::string root = fmt::format("pci0000:{}", bus);
    const int numa = index++ / 2;
    machine.devices.push_back(gpu(root, fmt::format("0000:{}:1c.0", bus), "0x20b0", numa));
    machine.devices.push_back(gpu(root, fmt::format("0000:{}:1d.0", bus), "0x20b0", numa));
    machine.devices.push_back(
        efa(root, fmt::format("0000:{}:1b.0", bus), 1, numa, fmt::format("rdmap{}s27", std::stoi(bus, nullptr, 16)), "100"));
  }
  machine.devices.push_back(ethernet("pci0000:00", "0000:00:05.0", "0x1d0f", "0xec20", 0, "eth0", ""));
  return machine;
}

/// Eight switches, each with four NICs and one GPU, at the buses of a real one; each also has Ethernet and storage.
Machine p5() {
  Machine machine{{"0-47,96-143", "48-95,144-191"}, 96, {}, "Amazon EC2", "p5.48xlarge", "i-0fedcba9876543210"};
  for (int i = 0; i < 8; ++i) {
    const int root = 0x44 + 0x11 * i;
    const int numa = i / 4;
    const std::string above = fmt::format("pci0000:{0:02x}/0000:{0:02x}:00.0/0000:{1:02x}:00.0", root, root + 1);
    for (int card = 0; card < 4; ++card) {
      const int bus = root + 0x0b + card;
      const std::string bridges = fmt::format("{}/0000:{:02x}:01.{}", above, root + 2, card);
      machine.devices.push_back(
          efa(bridges, fmt::format("0000:{:02x}:00.0", bus), 2, numa, fmt::format("rdmap{}s0", bus), "100"));
    }
    machine.devices.push_back(
        gpu(fmt::format("{}/0000:{:02x}:01.4", above, root + 2), fmt::format("0000:{:02x}:00.0", root + 0x0f), "0x2330", numa));
    machine.devices.push_back(ethernet(fmt::format("{}/0000:{:02x}:00.0", above, root + 2),
                                       fmt::format("0000:{:02x}:00.0", root + 3), "0x1d0f", "0xec20", numa,
                                       fmt::format("enp{}s0", root + 3), ""));
  }
  for (int i = 0; i < 4; ++i) {
    machine.devices.push_back({fmt::format("pci0000:cc/0000:cc:00.0/0000:cd:00.0/0000:ce:00.{}", i),
                               fmt::format("0000:{:02x}:00.0", 0xcf + i), "0x10de", "0x22a3", "0x068000", -1, "", "", "", ""});
  }
  return machine;
}

/// All devices on one root; the NIC is near the second half of the GPUs.
Machine g5() {
  Machine machine{{"0-47,96-143", "48-95,144-191"}, 96, {}, "Amazon EC2", "g5.48xlarge", "i-0aaaaaaaaaaaaaaa0"};
  for (int i = 0; i < 8; ++i) {
    machine.devices.push_back(gpu("pci0000:00", fmt::format("0000:00:{:02x}.0", 0x16 + i), "0x2237", i / 4));
  }
  machine.devices.push_back(efa("pci0000:00", "0000:00:15.0", 1, 1, "rdmap0s21", "100"));
  return machine;
}

Machine laptop() {
  Machine machine{{"0-7"}, 4, {}, "LENOVO", "21CB00AAGE", "none"};
  machine.devices.push_back(
      {"pci0000:00", "0000:00:02.0", "0x8086", "0x46a6", "0x030000", -1, "", "", "", ""});  // display controller
  machine.devices.push_back(ethernet("pci0000:00", "0000:00:1f.6", "0x8086", "0x1a1e", -1, "enp0s31f6", "1000"));
  Device wireless = ethernet("pci0000:00/0000:00:1c.0", "0000:09:00.0", "0x8086", "0x2725", -1, "wlan0", "");
  wireless.device_class = "0x028000";
  machine.devices.push_back(wireless);
  return machine;
}

}  // namespace

Machine machine(const std::string& name) {
  if (name == "p4d") return p4d();
  if (name == "p5") return p5();
  if (name == "g5") return g5();
  if (name == "laptop") return laptop();
  if (name == "plain") return Machine{{"0-1"}, 0, {}, "", "", ""};
  fmt::print(stderr, "no fake machine '{}': p4d p5 g5 laptop plain\n", name);
  std::exit(2);
}

void write(const Machine& machine, const std::string& root) {
  const fs::path top(root);
  const fs::path dmi = top / "devices/virtual/dmi/id";
  if (!machine.product.empty()) {
    put(dmi / "sys_vendor", machine.vendor);
    put(dmi / "product_name", machine.product);
    put(dmi / "board_asset_tag", machine.asset_tag);
  }
  const fs::path nodes = top / "devices/system/node";
  put(nodes / "online", machine.cores_of_node.size() == 1 ? "0" : fmt::format("0-{}", machine.cores_of_node.size() - 1));
  for (std::size_t node = 0; node < machine.cores_of_node.size(); ++node) {
    put(nodes / fmt::format("node{}/cpulist", node), machine.cores_of_node[node]);
  }
  for (int core = 0; core < machine.sibling_distance; ++core) {
    for (const int thread : {core, core + machine.sibling_distance}) {
      put(top / fmt::format("devices/system/cpu/cpu{}/topology/thread_siblings_list", thread),
          fmt::format("{},{}", core, core + machine.sibling_distance));
    }
  }
  fs::create_directories(top / "bus/pci/devices");
  for (const Device& device : machine.devices) {
    const fs::path folder = top / "devices" / device.bridges / device.address;
    put(folder / "vendor", device.vendor);
    put(folder / "device", device.device);
    put(folder / "class", device.device_class);
    put(folder / "numa_node", std::to_string(device.numa_node));
    if (!device.verbs.empty()) {
      put(folder / "infiniband" / device.verbs / "ports/1/rate", device.rate);
      put(folder / "infiniband" / device.verbs / "ports/1/state", "4: ACTIVE");
    }
    if (!device.interface.empty()) {
      fs::create_directories(folder / "net" / device.interface);
      put(top / "class/net" / device.interface / "operstate", device.interface == "wlan0" ? "down" : "up");
      if (!device.speed.empty()) put(top / "class/net" / device.interface / "speed", device.speed);
    }
    fs::create_directory_symlink(fs::path("../../../devices") / device.bridges / device.address,
                                 top / "bus/pci/devices" / device.address);
  }
}

Folder::Folder() {
  std::string form = (fs::temp_directory_path() / "shoal-fake-XXXXXX").string();
  if (::mkdtemp(form.data()) == nullptr) {
    std::perror("mkdtemp");
    std::exit(1);
  }
  path_ = form;
}

Folder::~Folder() {
  std::error_code error;
  fs::remove_all(path_, error);
}

}  // namespace shoal::fake
