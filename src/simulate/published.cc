#include "src/simulate/published.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace shoal {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kGiB = 1 << 30;
constexpr std::string_view kNcclTests = "awsome-distributed-training, micro-benchmarks/nccl-tests/README.md";
constexpr std::string_view kUser = "NVIDIA/nccl#527, 2022";  // the author asks why more nodes are so much slower

constexpr std::array kPublished{
    PublishedResult{"p4d.24xlarge", 1, 8, kGiB, 230.77, 8142.6, kUser, "a user's"},
    PublishedResult{"p4d.24xlarge", 2, 16, kGiB, 57.17, 35215, kUser, "a user's"},
    PublishedResult{"p4d.24xlarge", 3, 24, kGiB, 31.77, 64782, kUser, "a user's"},
    PublishedResult{"p4d.24xlarge", 4, 32, kGiB, 29.61, 70253, kUser, "a user's"},
    PublishedResult{"p4de.24xlarge", 2, 16, 8, 0, 164, kNcclTests, ""},
    PublishedResult{"p4de.24xlarge", 2, 16, kMiB, 6.35, 309, kNcclTests, ""},
    PublishedResult{"p4de.24xlarge", 2, 16, 8 * kMiB, 20.6, 0, kNcclTests, ""},
    PublishedResult{"p4de.24xlarge", 2, 16, 64 * kMiB, 47.6, 0, kNcclTests, ""},
    PublishedResult{"p4de.24xlarge", 2, 16, 256 * kMiB, 69.9, 0, kNcclTests, ""},
    PublishedResult{"p4de.24xlarge", 2, 16, kGiB, 76.8, 0, kNcclTests, ""},
    PublishedResult{"p4de.24xlarge", 2, 16, 2 * kGiB, 78.3, 0, kNcclTests, ""},
    PublishedResult{"p5.48xlarge", 2, 16, 8, 0, 69, kNcclTests, ""},
    PublishedResult{"p5.48xlarge", 2, 16, kMiB, 15.95, 0, kNcclTests, ""},
    PublishedResult{"p5.48xlarge", 2, 16, 8 * kMiB, 76.8, 0, kNcclTests, ""},
    PublishedResult{"p5.48xlarge", 2, 16, 64 * kMiB, 209, 0, kNcclTests, ""},
    PublishedResult{"p5.48xlarge", 2, 16, 256 * kMiB, 343, 0, kNcclTests, ""},
    PublishedResult{"p5.48xlarge", 2, 16, kGiB, 437, 0, kNcclTests, ""},
    PublishedResult{"p5.48xlarge", 2, 16, kGiB, 313, 0, kNcclTests, "an older stack"},
    PublishedResult{"p5.48xlarge", 2, 16, 16 * kGiB, 487, 0, kNcclTests, ""},
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

std::vector<const PublishedResult*> nearest_published(std::string_view platform, int nodes, std::uint64_t bytes) {
  const auto distance = [](double a, double b) { return std::abs(std::log2(std::max(a, 1.0) / std::max(b, 1.0))); };
  double nearest = std::numeric_limits<double>::infinity();
  for (const PublishedResult& each : kPublished) {
    if (each.platform == platform) nearest = std::min(nearest, distance(each.nodes, nodes));
  }
  const PublishedResult* below = nullptr;
  const PublishedResult* above = nullptr;
  for (const PublishedResult& each : kPublished) {
    if (each.platform != platform || distance(each.nodes, nodes) > nearest) continue;
    if (each.bytes <= bytes && (below == nullptr || each.bytes > below->bytes)) below = &each;
    if (each.bytes >= bytes && (above == nullptr || each.bytes < above->bytes)) above = &each;
  }
  std::vector<const PublishedResult*> found;
  for (const PublishedResult* each : {below, above}) {
    if (each != nullptr && (found.empty() || found.front() != each)) found.push_back(each);
  }
  return found;
}

}  // namespace shoal
