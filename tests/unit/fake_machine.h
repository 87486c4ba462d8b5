// Trees like /sys of machines that are not here.
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
  std::string verbs;      ///< name under infiniband/, where it has one
  std::string rate;       ///< "100 Gb/sec (4X EDR)"
  std::string interface;  ///< name under net/, where it has one
  std::string speed;      ///< in Mbit/s
};

struct Machine {
  std::vector<std::string> cores_of_node;  ///< "0-23,48-71"
  int sibling_distance = 0;                ///< core i and core i + this are one; 0: no hyper-threads
  std::vector<Device> devices;
  std::string vendor;  ///< DMI
  std::string product;
  std::string asset_tag;
};

/// The machine of that name: "p4d" and "p5" after what is known of the real ones, "laptop", "g5" (its NIC on the second NUMA
/// node), "plain" (nothing but two cores). Ends the program for another name.
Machine machine(const std::string& name);

/// Writes it into the empty folder `root`.
void write(const Machine& machine, const std::string& root);

/// A new folder that is removed with all that is in it.
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
