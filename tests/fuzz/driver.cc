// Replaces libFuzzer if the compiler has none: tries the corpus, then seeded mutations of it.
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fuzz/mutator.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// Findings of sanitizers raise SIGABRT, so that the input is printed.
extern "C" const char* __asan_default_options() { return "abort_on_error=1:detect_stack_use_after_return=0"; }
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:halt_on_error=1:print_stacktrace=1"; }

namespace {

constexpr std::size_t kLongestInput = 64 << 10;
// Limits for one input: processor time, since the machine may be busy, and wall-clock time, for an input that blocks.
constexpr unsigned kMostCoreSeconds = 10;
constexpr unsigned kMostSeconds = 600;
constexpr std::size_t kMostPrinted = 16 << 10;

std::string current;  // the input under test

// Prints the input as hexadecimal digits on standard error. Only async-signal-safe calls.
void report(int number) {
  constexpr char kDigits[] = "0123456789abcdef";
  static std::array<char, 2 * kMostPrinted + 64> text;
  std::size_t at = 0;
  const auto add = [&](std::string_view words) {
    for (const char c : words) text[at++] = c;
  };
  const bool hung = number == SIGALRM || number == SIGPROF;
  add(hung ? "\nhung on this input: " : "\nfailed on this input: ");
  for (std::size_t i = 0; i < std::min(current.size(), kMostPrinted); ++i) {
    const auto byte = static_cast<unsigned char>(current[i]);
    text[at++] = kDigits[byte >> 4];
    text[at++] = kDigits[byte & 15];
  }
  add("\n");
  static_cast<void>(!::write(STDERR_FILENO, text.data(), at));
  ::signal(number, SIG_DFL);
  ::raise(hung ? SIGKILL : number);
}

void watch_for_failures() {
  static std::array<char, 64 << 10> stack;  // the fault may be a stack overflow
  stack_t other{};
  other.ss_sp = stack.data();
  other.ss_size = stack.size();
  ::sigaltstack(&other, nullptr);
  struct sigaction action {};
  action.sa_handler = report;
  action.sa_flags = SA_ONSTACK | SA_NODEFER;
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM, SIGPROF}) ::sigaction(number, &action, nullptr);
}

void set_limits(unsigned core_seconds, unsigned seconds) {
  const itimerval of_core{{}, {core_seconds, 0}};
  ::setitimer(ITIMER_PROF, &of_core, nullptr);
  ::alarm(seconds);
}

void try_input(std::string input) {
  current = std::move(input);
  set_limits(kMostCoreSeconds, kMostSeconds);
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(current.data()), current.size());
  set_limits(0, 0);
}

double core_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool take_number(std::string_view argument, std::string_view name, std::uint64_t* value) {
  if (!argument.starts_with(name)) return false;
  argument.remove_prefix(name.size());
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), *value);
  if (error == std::errc() && end == argument.data() + argument.size()) return true;
  std::cerr << "'" << argument << "' is not a number\n";
  std::exit(2);
}

}  // namespace

int main(int count, char** arguments) {
  std::uint64_t runs = ~std::uint64_t{0};
  std::uint64_t seconds = 60;
  std::uint64_t seed = 1;
  std::vector<std::string> pool{std::string()};
  bool once = false;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (take_number(argument, "-runs=", &runs) || take_number(argument, "-max_total_time=", &seconds) ||
        take_number(argument, "-seed=", &seed)) {
      continue;
    }
    if (!std::filesystem::exists(argument)) {
      std::cerr << argument << ": neither a file or folder nor an argument\n";
      return 2;
    }
    once |= !std::filesystem::is_directory(argument);
    if (!std::filesystem::is_directory(argument)) {
      pool.push_back(content(argument));
      continue;
    }
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(argument)) files.push_back(entry.path());
    std::sort(files.begin(), files.end());  // so that a seed is reproducible
    for (const auto& file : files) pool.push_back(content(file));
  }
  watch_for_failures();
  for (const std::string& known : pool) try_input(known);
  std::uint64_t tried = pool.size();
  std::mt19937_64 random(seed);
  const double until = core_seconds() + static_cast<double>(seconds);
  for (; !once && tried < runs && core_seconds() < until; ++tried) try_input(shoal::fuzz::mutate(pool, kLongestInput, random));
  std::cout << "seed " << seed << ": " << pool.size() - 1 << " known inputs and " << tried - pool.size()
            << " mutations, no finding\n";
  return 0;
}
