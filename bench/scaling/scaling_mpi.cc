// A rank of bench/scale over MPI, as scaling_shoal.cc.
#include <mpi.h>

#include <cstdio>
#include <vector>

#include "bench/scaling/measure.h"

using namespace shoal::scaling;

int main(int argc, char** argv) {
  Figures figures;
  const auto start = Clock::now();
  MPI_Init(&argc, &argv);
  figures.values[Figures::kCreateS] = seconds_since(start);
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  std::vector<float> data(kCount, 1);
  std::vector<float> sums(kCount);
  const auto call = [&] { MPI_Allreduce(data.data(), sums.data(), kCount, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); };
  const auto largest = [](double value) {
    MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return value;
  };
  const double all_reduce_us = time_calls(blocks_of(argc, argv), call, largest, figures);
  if (sums.back() != static_cast<float>(ranks)) {
    std::fprintf(stderr, "scaling_mpi: wrong sum %g\n", static_cast<double>(sums.back()));
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  figures.values[Figures::kDescriptors] = descriptors();
  figures.values[Figures::kHeapBytes] = heap_bytes();
  figures.values[Figures::kAddressSpaceBytes] = address_space_bytes();
  MPI_Allreduce(MPI_IN_PLACE, figures.values.data(), Figures::kSize, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0) print_figures(ranks, all_reduce_us, figures);
  MPI_Finalize();
  return 0;
}
