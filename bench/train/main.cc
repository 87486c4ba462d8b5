// shoal_train: trains a network over all ranks of a job and compares the backends that average the gradients.
#include <atomic>
#include <csignal>
#include <cstdio>

#include "bench/train/options.h"
#include "bench/train/page.h"
#include "bench/train/run.h"

namespace {

std::atomic<bool> stop{false};

/// The first Ctrl-C ends the run in an orderly way; a second one ends the process as usual.
void on_interrupt(int signal_number) {
  stop.store(true);
  (void)std::signal(signal_number, SIG_DFL);
}

}  // namespace

int main(int argc, char** argv) {
  const shoal::train::ParsedOptions parsed = shoal::train::parse_options(argc, argv);
  if (parsed.exit_code.has_value()) return *parsed.exit_code;
  if (parsed.list_models) {
    std::fputs(shoal::train::list_models().c_str(), stdout);
    return 0;
  }
  if (parsed.page.has_value()) return shoal::train::make_page(*parsed.page);
  (void)std::signal(SIGINT, on_interrupt);
  (void)std::signal(SIGTERM, on_interrupt);
  return shoal::train::run(parsed.options, stop);
}
