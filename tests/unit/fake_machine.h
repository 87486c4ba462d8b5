// Fake /sys trees of other machines.
#pragma once

#include <string>
#include <vector>

namespace shoal::fake {

/// A device behind `bridges` ("pci0000:44/0000:44:00.0").
struct Device {
  std::string bridges;
  std::string address;
  std::string vendor;
  std::string device;
  std::string device_class;
  int numa_node = -1;
  std::string verbs;      ///< name under infiniband/, or empty
  std::string rate;       ///< "100 Gb/sec (4X EDR)"
  std::string interface;  ///< name under net/, or empty
  std::string speed;      ///< in Mbit/s
};

struct Machine {
  std::vector<std::string> cores_of_node;  ///< "0-23,48-71"
  int sibling_distance = 0;                ///< distance of the two hardware threads of a core; 0: one thread per core
  std::vector<Device> devices;
  std::string vendor;  ///< DMI
  std::string product;
  std::string asset_tag;
};

/// The machine of that name: "p4d" and "p5" like the real ones, "laptop", "g5" (its NIC is on the second NUMA node), "plain"
/// (two cores only). Ends the program for another name.
Machine machine(const std::string& name);

/// Writes `machine` into the empty folder `root`.
void write(const Machine& machine, const std::string& root);

/// A new folder; the destructor removes it with its content.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace shoal::fake
