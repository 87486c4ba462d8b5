// A rank of bench/scale over shoal: start-up, resources, and all_reduce of 1 KiB. Rank 0 prints one line of JSON.
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include <shoal/communicator.h>

#include "bench/scaling/measure.h"

namespace {

using namespace shoal;
using namespace shoal::scaling;

void require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "scaling_shoal: %s\n", status.to_string().c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  Figures figures;
  const auto start = Clock::now();
  auto made = Communicator::create();
  figures.values[Figures::kCreateS] = seconds_since(start);
  require(made.status());
  Communicator& all = **made;

  std::vector<float> data(kCount, 1);
  std::vector<float> sums(kCount);
  const auto call = [&] { require(all.all_reduce(data.data(), sums.data(), kCount, DataType::float32, ReduceOp::sum)); };
  const auto largest = [&](double value) {
    require(all.all_reduce(&value, &value, 1, DataType::float64, ReduceOp::max));
    return value;
  };
  const double all_reduce_us = time_calls(blocks_of(argc, argv), call, largest, figures);
  if (sums.back() != static_cast<float>(all.size())) {
    std::fprintf(stderr, "scaling_shoal: wrong sum %g\n", static_cast<double>(sums.back()));
    return 1;
  }
  figures.values[Figures::kDescriptors] = descriptors();
  figures.values[Figures::kHeapBytes] = heap_bytes();
  figures.values[Figures::kAddressSpaceBytes] = address_space_bytes();
  require(
      all.all_reduce(figures.values.data(), figures.values.data(), figures.values.size(), DataType::float64, ReduceOp::max));
  if (all.rank() == 0) print_figures(all.size(), all_reduce_us, figures);
  return 0;
}
