#include "src/simulate/published.h"

#include <array>

namespace shoal {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGiB = 1 << 30;
constexpr std::string_view kNcclTests = "awsome-distributed-training, micro-benchmarks/nccl-tests/README.md";

constexpr std::array kPublished{
    PublishedResult{"p4de.24xlarge", 2, 16, 8, 0, 164, kNcclTests},
    PublishedResult{"p4de.24xlarge", 2, 16, kMiB, 6.35, 309, kNcclTests},
    PublishedResult{"p4de.24xlarge", 2, 16, 8 * kMiB, 20.6, 0, kNcclTests},
    PublishedResult{"p4de.24xlarge", 2, 16, 64 * kMiB, 47.6, 0, kNcclTests},
    PublishedResult{"p4de.24xlarge", 2, 16, 256 * kMiB, 69.9, 0, kNcclTests},
    PublishedResult{"p4de.24xlarge", 2, 16, kGiB, 76.8, 0, kNcclTests},
    PublishedResult{"p4de.24xlarge", 2, 16, 2 * kGiB, 78.3, 0, kNcclTests},
    PublishedResult{"p5.48xlarge", 2, 16, 8, 0, 69, kNcclTests},
    PublishedResult{"p5.48xlarge", 2, 16, kMiB, 15.95, 0, kNcclTests},
    PublishedResult{"p5.48xlarge", 2, 16, 8 * kMiB, 76.8, 0, kNcclTests},
    PublishedResult{"p5.48xlarge", 2, 16, 64 * kMiB, 209, 0, kNcclTests},
    PublishedResult{"p5.48xlarge", 2, 16, 256 * kMiB, 343, 0, kNcclTests},
    PublishedResult{"p5.48xlarge", 2, 16, kGiB, 437, 0, kNcclTests},
    PublishedResult{"p5.48xlarge", 2, 16, 16 * kGiB, 487, 0, kNcclTests},
};

}  // namespace

double PublishedResult::microseconds() const noexcept {
  if (time_us > 0) return time_us;
  return static_cast<double>(bytes) * 2 * (ranks - 1) / ranks / (bus_gbyte_s * 1000);
}

std::span<const PublishedResult> published_results() { return kPublished; }

const PublishedResult* find_published(std::string_view platform, int nodes, std::uint64_t bytes) {
  for (const PublishedResult& each : kPublished) {
    if (each.platform == platform && each.nodes == nodes && each.bytes == bytes) return &each;
  }
  return nullptr;
}

}  // namespace shoal
