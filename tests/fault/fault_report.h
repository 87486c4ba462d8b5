// What the ranks of a failure test share, and what each of them reports about the failed call.
#pragma once

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <shoal/communicator.h>

#include "tests/slack.h"

namespace shoal::testing {

/// A `Facts` in memory that the ranks, processes made by this one, share with it.
template <typename Facts>
class SharedFacts {
 public:
  SharedFacts() {
    void* memory = ::mmap(nullptr, sizeof(Facts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    facts_ = new (memory) Facts();
  }
  ~SharedFacts() { ::munmap(facts_, sizeof(Facts)); }
  SharedFacts(const SharedFacts&) = delete;
  SharedFacts& operator=(const SharedFacts&) = delete;
  Facts* operator->() const { return facts_; }

 private:
  Facts* facts_;
};

/// Of the steady clock.
inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline Status sum(Communicator& c) {
  std::array<float, 64> data{};
  return c.all_reduce(data.data(), data.data(), data.size(), DataType::float32, ReduceOp::sum);
}

/// Makes calls until one fails: its code, how long after `fault_ns` it failed, less the time that a thread of this program had
/// to wait for a core, and its message. parse() reads that.
inline std::string call_until_error(Communicator& c, const std::atomic<std::int64_t>& fault_ns) {
  const CoreDelay delay;
  Status status;
  while (status.ok()) status = sum(c);
  const double seconds = 1e-9 * static_cast<double>(now_ns() - fault_ns) - delay.allowance_s();
  return fmt::format("{}|{}|{}", to_string(status.code()), seconds, status.message());
}

struct Report {
  std::string code;
  double seconds = 0;
  std::string message;
};
inline Report parse(const std::string& text) {
  const std::size_t one = text.find('|');
  const std::size_t two = text.find('|', one + 1);
  if (two == std::string::npos) return {"no report", 0, text};
  return {text.substr(0, one), std::stod(text.substr(one + 1)), text.substr(two + 1)};
}

inline int sockets_of_this_process() {
  int sockets = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    sockets += static_cast<int>(std::filesystem::read_symlink(entry, gone).string().starts_with("socket:"));
  }
  return sockets;
}

}  // namespace shoal::testing
