// A thread for work while few descriptors are available.
#pragma once

#include <functional>
#include <latch>
#include <thread>
#include <utility>

namespace shoal::testing {

/// Runs `what` between begin() and end(), in a thread that exists before and after: under a sanitizer, creating or destroying a
/// thread needs descriptors.
class Beside {
 public:
  explicit Beside(std::function<void()> what)
      : thread_([this, what = std::move(what)] {
          ready_.count_down();
          begin_.wait();
          what();
          end_.wait();
        }) {
    ready_.wait();
  }
  ~Beside() {
    if (!begun_) begin();
    if (thread_.joinable()) end();
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

  void begin() {
    begun_ = true;
    begin_.count_down();
  }
  void end() {
    end_.count_down();
    thread_.join();
  }

 private:
  bool begun_ = false;
  std::latch ready_{1};
  std::latch begin_{1};
  std::latch end_{1};
  std::thread thread_;  // last, since it uses the members above
};

}  // namespace shoal::testing
