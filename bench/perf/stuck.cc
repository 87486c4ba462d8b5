#include "bench/perf/stuck.h"

#include <csignal>
#include <cstddef>

#include <unistd.h>

#include <fmt/format.h>

namespace shoal::perf {
namespace {

char line[256];
volatile std::sig_atomic_t line_bytes = 0;
volatile std::sig_atomic_t seconds = 0;

void say(int) {
  const ssize_t written = ::write(STDERR_FILENO, line, static_cast<std::size_t>(line_bytes));
  static_cast<void>(written);
  ::alarm(static_cast<unsigned>(seconds));
}

}  // namespace

Stuck::Stuck(const std::string& what, unsigned after_s) {
  const auto end = fmt::format_to_n(line, sizeof line - 1, "shoal_perf: stuck for {} s or more: {}", after_s, what).out;
  *end = '\n';
  line_bytes = static_cast<std::sig_atomic_t>(end - line + 1);
  seconds = static_cast<std::sig_atomic_t>(after_s);
  struct sigaction action {};
  action.sa_handler = say;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGALRM, &action, nullptr);
  ::alarm(after_s);
}

Stuck::~Stuck() { ::alarm(0); }

}  // namespace shoal::perf
