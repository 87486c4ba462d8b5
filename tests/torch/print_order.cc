// Prints data::distributed_order for SIZE RANK RANKS SHUFFLE SEED EPOCH. sampler_test.py compares it with PyTorch.
#include <cstdio>
#include <cstdlib>

#include "bench/train/data/sampler.h"

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const auto number = [&](int i) { return std::strtoull(argv[i], nullptr, 10); };
  for (const std::size_t index : shoal::data::distributed_order(
           number(1), static_cast<int>(number(2)), static_cast<int>(number(3)), number(4) != 0, number(5), number(6))) {
    std::printf("%zu\n", index);
  }
  return 0;
}
