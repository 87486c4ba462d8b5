#include "src/cli/tuner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "src/communicator/communicator_impl.h"
#include "src/selector/predict.h"

namespace shoal {
namespace {

using Clock = std::chrono::steady_clock;
using internal::CommunicatorImpl;

constexpr double kHopeless = 10;  // times the best prediction: not measured
constexpr double kFarBehind = 3;  // times the best first measurement: measured a few times only
constexpr int kMinRounds = 5;     // enough for a median that one disturbance does not move
constexpr int kMaxRounds = 21;    // more would not change a choice
// A batch is calls of one algorithm in a row, so that it loads its links as a program would: a shaped or rented link lets the
// first milliseconds through faster than its lasting rate.
constexpr double kBatchUs = 10'000;
constexpr double kMaxBatch = 200;
constexpr std::size_t kCheapBytes = 256 << 10;  // up to this size the first measurement may take several calls
constexpr std::size_t kControlPlans = 64;       // for the tuner's own calls

double us_since(Clock::time_point start) { return std::chrono::duration<double, std::micro>(Clock::now() - start).count(); }

double quantile(std::vector<double>& values, double fraction) {
  const auto at = values.begin() + std::lround(fraction * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

struct Cell {
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::size_t bytes = 0;
};

/// How one algorithm is measured, as rank 0 decides.
struct Replica {
  const Algorithm* algorithm = nullptr;
  double first_look_us = 0;
  int rounds = 0;
  int batch = 1;
  std::vector<double> samples_us;
};

class Tuner {
 public:
  Tuner(Communicator& communicator, const TuneOptions& options, const std::function<void(const TuneStep&)>& progress)
      : communicator_(communicator),
        topology_(CommunicatorImpl::of(communicator).executor().topology()),
        options_(options),
        progress_(progress) {}

  Result<TunedShape> run() {
    if (communicator_.size() < 2) {
      return Status(StatusCode::invalid_argument,
                    "one rank is not enough to measure anything; start several, as in: shoal run -n 4 -- shoal tune");
    }
    if (Status status = list_cells(); !status.ok()) return status;
    buffer_.assign(options_.max_bytes / sizeof(float) + 1, 0.0F);
    start_ = Clock::now();
    TunedShape tuned{topology_.node_of_rank, CommunicatorImpl::of(communicator_).transports(), {}};
    for (std::size_t i = 0; i < cells_.size(); ++i) {
      const Cell& cell = cells_[i];
      if (communicator_.rank() == 0) progress_({cell.kind, cell.bytes, i + 1, cells_.size(), elapsed_s(), false, {}});
      auto results = measure(cell, cells_.size() - i);
      if (!results.ok()) return results.status();
      if (communicator_.rank() == 0) {
        progress_({cell.kind, cell.bytes, i + 1, cells_.size(), elapsed_s(), results->empty(), *results});
      }
      tuned.measurements.insert(tuned.measurements.end(), results->begin(), results->end());
    }
    return tuned;
  }

 private:
  [[nodiscard]] double elapsed_s() const { return us_since(start_) / 1e6; }

  /// How many times the measured size must fit into the buffer: all shares, and two buffers for a call that is not in place.
  [[nodiscard]] std::size_t parts_of(CollectiveKind kind) const {
    const std::size_t shares = deals_in_shares(kind) ? static_cast<std::size_t>(communicator_.size()) : 1;
    return kind == CollectiveKind::all_to_all ? 2 * shares : shares;
  }

  Status list_cells() {
    std::size_t plans = kControlPlans;
    for (const CollectiveKind kind : options_.collectives) {
      const std::size_t parts = parts_of(kind);
      for (std::size_t bytes = options_.min_bytes; bytes <= options_.max_bytes / parts;
           bytes *= static_cast<std::size_t>(options_.factor)) {
        cells_.push_back({kind, bytes});
        plans += static_cast<std::size_t>(std::ranges::count_if(
            algorithms(), [&](const Algorithm& a) { return a.supports(topology_, collective(cells_.back())).ok(); }));
        if (bytes > options_.max_bytes / 2) break;  // the next size might overflow
      }
    }
    if (plans <= PlanCache::kCapacity) return {};
    // A call without a cached Plan would make its Plan again every time, and this would be measured as well.
    return {StatusCode::invalid_argument,
            fmt::format("{} sizes are too many; use fewer collectives or --factor 4", cells_.size())};
  }

  [[nodiscard]] static Collective collective(const Cell& cell) {
    return {cell.kind, cell.bytes / sizeof(float), DataType::float32, ReduceOp::sum, 0};
  }

  Status call(const Cell& cell, const Algorithm& algorithm) {
    // Names in the list of algorithms end in a zero: they are literals.
    const CallOptions options{{}, algorithm.name.data()};
    const std::size_t count = cell.bytes / sizeof(float);
    constexpr DataType kType = DataType::float32;
    auto* all = buffer_.data();
    auto* own = buffer_.data() + count * static_cast<std::size_t>(communicator_.rank());
    switch (cell.kind) {
      case CollectiveKind::all_reduce:
        return communicator_.all_reduce(all, all, count, kType, ReduceOp::sum, options);
      case CollectiveKind::broadcast:
        return communicator_.broadcast(all, count, kType, 0, options);
      case CollectiveKind::all_gather:
        return communicator_.all_gather(own, all, count, kType, options);
      case CollectiveKind::reduce_scatter:
        return communicator_.reduce_scatter(all, own, count, kType, ReduceOp::sum, options);
      case CollectiveKind::reduce:
        return communicator_.reduce(all, all, count, kType, ReduceOp::sum, 0, options);
      case CollectiveKind::gather:
        return communicator_.gather(own, all, count, kType, 0, options);
      case CollectiveKind::scatter:
        return communicator_.scatter(all, own, count, kType, 0, options);
      case CollectiveKind::all_to_all:
        return communicator_.all_to_all(all, all + count * static_cast<std::size_t>(communicator_.size()), count, kType,
                                        options);
      default:
        return {StatusCode::unsupported, fmt::format("{} is not tuned", to_string(cell.kind))};
    }
  }

  /// Broadcasts rank 0's numbers to all ranks.
  Status share(std::vector<double>& numbers) {
    return communicator_.broadcast(numbers.data(), numbers.size(), DataType::float64, 0);
  }

  /// The algorithms to measure; none if the time is used up.
  Result<std::vector<Replica>> choose_contestants(const Cell& cell) {
    std::vector<double> takes_part(algorithms().size(), 0);
    if (communicator_.rank() == 0) {
      std::vector<double> predicted_us(algorithms().size(), std::numeric_limits<double>::infinity());
      for (std::size_t a = 0; a < predicted_us.size(); ++a) {
        const Algorithm& algorithm = algorithms()[a];
        if (!build_program(algorithm, topology_, collective(cell), 0).ok()) continue;
        predicted_us[a] = predict_us(algorithm, topology_, collective(cell));
      }
      const double best_us = *std::ranges::min_element(predicted_us);
      double least_us = 0;
      for (std::size_t a = 0; a < predicted_us.size(); ++a) {
        takes_part[a] = std::isfinite(predicted_us[a]) && predicted_us[a] <= kHopeless * best_us ? 1 : 0;
        if (takes_part[a] > 0) least_us += predicted_us[a] * model_error_ * (kMinRounds + 1);
      }
      if (elapsed_s() + least_us / 1e6 > options_.budget_s) std::ranges::fill(takes_part, 0);
    }
    if (Status status = share(takes_part); !status.ok()) return status;
    std::vector<Replica> replicas;
    for (std::size_t a = 0; a < takes_part.size(); ++a) {
      if (takes_part[a] > 0) replicas.push_back({&algorithms()[a], 0, 0, 1, {}});
    }
    return replicas;
  }

  /// Makes the Plans, touches the memory, and measures roughly how long a call takes.
  Status look(const Cell& cell, std::vector<Replica>& replicas) {
    const int calls = cell.bytes <= kCheapBytes ? 4 : 1;
    for (Replica& one : replicas) {
      for (int i = 0; i < calls; ++i) {
        if (Status status = communicator_.barrier(); !status.ok()) return status;
        const auto start = Clock::now();
        if (Status status = call(cell, *one.algorithm); !status.ok()) return status;
        one.first_look_us = std::max(us_since(start), 0.1);
      }
    }
    return {};
  }

  /// Rank 0 divides the remaining time among the remaining cells.
  Status plan(const Cell& cell, std::size_t cells_left, std::vector<Replica>& replicas) {
    std::vector<double> decided;
    if (communicator_.rank() == 0) {
      const auto by_look = [](const Replica& a, const Replica& b) { return a.first_look_us < b.first_look_us; };
      const double best_us = std::ranges::min_element(replicas, by_look)->first_look_us;
      double round_us = 0;
      for (Replica& one : replicas) {
        const bool batches = !has_root(cell.kind);
        one.batch = batches ? static_cast<int>(std::clamp(std::ceil(kBatchUs / one.first_look_us), 1.0, kMaxBatch)) : 1;
        if (one.first_look_us <= kFarBehind * best_us) round_us += one.batch * one.first_look_us + best_us;
      }
      const double left_us = std::max(options_.budget_s - elapsed_s(), 0.0) * 1e6 / static_cast<double>(cells_left);
      const auto rounds = static_cast<int>(std::clamp(left_us / round_us, double{kMinRounds}, double{kMaxRounds}));
      for (Replica& one : replicas) one.rounds = one.first_look_us <= kFarBehind * best_us ? rounds : kMinRounds;
    }
    for (const Replica& one : replicas)
      decided.insert(decided.end(), {static_cast<double>(one.rounds), static_cast<double>(one.batch)});
    if (Status status = share(decided); !status.ok()) return status;
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      replicas[i].rounds = static_cast<int>(decided[2 * i]);
      replicas[i].batch = static_cast<int>(decided[2 * i + 1]);
    }
    return {};
  }

  Status take_samples(const Cell& cell, std::vector<Replica>& replicas) {
    int rounds = 0;
    for (const Replica& one : replicas) rounds = std::max(rounds, one.rounds);
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t i = 0; i < replicas.size(); ++i) {
        // Another algorithm goes first in each round, so that none always follows the same predecessor.
        Replica& one = replicas[(i + static_cast<std::size_t>(round)) % replicas.size()];
        if (round >= one.rounds) continue;
        if (Status status = communicator_.barrier(); !status.ok()) return status;
        const auto start = Clock::now();
        for (int k = 0; k < one.batch; ++k) {
          if (Status status = call(cell, *one.algorithm); !status.ok()) return status;
        }
        one.samples_us.push_back(us_since(start) / one.batch);
      }
    }
    // A call has ended when the slowest rank has its result.
    for (Replica& one : replicas) {
      Status status = communicator_.all_reduce(one.samples_us.data(), one.samples_us.data(), one.samples_us.size(),
                                               DataType::float64, ReduceOp::max);
      if (!status.ok()) return status;
    }
    return {};
  }

  Result<std::vector<Measurement>> measure(const Cell& cell, std::size_t cells_left) {
    auto replicas = choose_contestants(cell);
    if (!replicas.ok()) return replicas.status();
    std::vector<Measurement> results;
    if (replicas->empty()) return results;
    if (Status status = look(cell, *replicas); !status.ok()) return status;
    if (Status status = plan(cell, cells_left, *replicas); !status.ok()) return status;
    if (Status status = take_samples(cell, *replicas); !status.ok()) return status;
    for (Replica& one : *replicas) {
      const double median_us = std::max(quantile(one.samples_us, 0.5), 1e-3);
      results.push_back({cell.kind, one.algorithm, cell.bytes, median_us, quantile(one.samples_us, 0.1),
                         quantile(one.samples_us, 0.9), static_cast<int>(one.samples_us.size())});
    }
    std::ranges::stable_sort(results, {}, &Measurement::median_us);
    // Corrects the model's error in the estimate for the next size, which decides whether there is time for that size.
    model_error_ =
        std::max(results.front().median_us / predict_us(*results.front().algorithm, topology_, collective(cell)), 1e-3);
    return results;
  }

  Communicator& communicator_;
  const Topology& topology_;
  const TuneOptions& options_;
  const std::function<void(const TuneStep&)>& progress_;
  Clock::time_point start_;
  std::vector<Cell> cells_;
  std::vector<float> buffer_;
  double model_error_ = 1;
};

}  // namespace

Result<TunedShape> tune(Communicator& communicator, const TuneOptions& options,
                        const std::function<void(const TuneStep&)>& progress) {
  return Tuner(communicator, options, progress).run();
}

}  // namespace shoal
