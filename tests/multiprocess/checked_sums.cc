// A rank of a job that a launcher has started. checked_sums SECONDS makes sums of several sizes and checks every element. Rank
// 0 prints the number of sums, the transport, and the duration of the slowest sum. Exit status 1: an error or a wrong sum.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include <fmt/format.h>

#include <shoal/communicator.h>

using namespace shoal;  // NOLINT(google-build-using-namespace): the whole file is one program

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<std::size_t, 4> kCounts{2, 1'000, 400'000, 20'000};

int fail(const std::string& words) {
  fmt::print(stderr, "checked_sums: {}\n", words);
  return 1;
}

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

}  // namespace

int main(int argc, char** argv) {
  const double wanted = argc > 1 ? std::atof(argv[1]) : 1;
  auto made = Communicator::create(CommunicatorOptions{});
  if (!made.ok()) return fail(made.status().to_string());
  Communicator& c = **made;
  const int ranks = c.size();
  const auto start = Clock::now();
  Clock::duration slowest{};
  std::int32_t sums = 0;
  std::vector<std::int32_t> data;
  for (bool enough = false; !enough; ++sums) {
    data.resize(kCounts[static_cast<std::size_t>(sums) % kCounts.size()]);
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::int32_t>(i) + sums + c.rank();
    data[0] = c.rank() == 0 && seconds(Clock::now() - start) > wanted ? 1 : 0;  // rank 0 ends the job
    const auto begin = Clock::now();
    const Status status = c.all_reduce(data.data(), data.data(), data.size(), DataType::int32, ReduceOp::sum);
    if (!status.ok()) return fail(status.to_string());
    slowest = std::max(slowest, Clock::now() - begin);
    for (std::size_t i = 1; i < data.size(); ++i) {
      const std::int32_t right = ranks * (static_cast<std::int32_t>(i) + sums) + ranks * (ranks - 1) / 2;
      if (data[i] != right)
        return fail(fmt::format("WRONG: element {} of sum {} is {} instead of {}", i, sums, data[i], right));
    }
    enough = data[0] == 1;
    if (!enough && data[0] != 0) return fail(fmt::format("WRONG: element 0 of sum {} is {}", sums, data[0]));
  }
  if (c.rank() == 0) fmt::print("{} sums over {}, the slowest {:.2f} s\n", sums, c.last_call().transport, seconds(slowest));
  return 0;
}
