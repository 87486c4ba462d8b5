#include "torch_plugin/parallel/runtime/agreement.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include <torch/torch.h>

#include "torch_plugin/parallel/runtime/step_error.h"
#include "torch_plugin/parallel/runtime/text_field.h"

namespace shoal::parallel {
namespace {

constexpr std::array<std::string_view, 14> kOptionNames{
    "schedule",         "microbatches", "chunks",  "active_microbatches", "batch_norm", "loss_reduction", "recompute",
    "recompute_stages", "seed",         "replica", "first_step",          "timeout",    "stage_times",    "messages"};

constexpr std::int64_t kNoSeed = std::numeric_limits<std::int64_t>::min();

/// What each rank sends. Trivially copyable.
struct RankOptions {
  std::array<std::int64_t, kOptionNames.size()> values{};
  TextField refusal{};
};

/// Lists are compared by a hash, as they may be long (FNV-1a over their numbers).
class Hash {
 public:
  void add(std::int64_t number) { value_ = (value_ ^ static_cast<std::uint64_t>(number)) * 1099511628211ULL; }
  [[nodiscard]] std::int64_t value() const { return static_cast<std::int64_t>(value_); }

 private:
  std::uint64_t value_ = 14695981039346656037ULL;
};

std::int64_t hash_of(const pipeline::StageTimes& times) {
  Hash hash;
  for (const pipeline::StageTime& time : times.stages) {
    for (const std::int64_t number : {time.forward_ps, time.input_ps, time.weight_ps, time.reduce_ps}) hash.add(number);
  }
  for (const pipeline::CutTime& time : times.cuts) {
    for (const std::int64_t number : {time.latency_ps, time.wire_ps, time.bytes}) hash.add(number);
  }
  return hash.value();
}

std::int64_t hash_of(const std::vector<bool>& flags) {
  Hash hash;
  for (const bool flag : flags) hash.add(flag ? 1 : 0);
  return hash.value();
}

std::string value_text(std::size_t option, std::int64_t value) {
  if (option == 0) return std::string(pipeline::to_string(static_cast<pipeline::ScheduleKind>(value)));
  if (kOptionNames[option] == "active_microbatches" && value < 0) return "default";
  if (kOptionNames[option] == "seed") {
    return value == kNoSeed ? "none" : std::to_string(static_cast<std::uint64_t>(value));
  }
  if (kOptionNames[option] == "timeout") return std::to_string(value) + " ms";
  if (kOptionNames[option] == "messages") return value == 0 ? "host_memory" : "streams";
  if (kOptionNames[option] == "batch_norm") return std::string(to_string(static_cast<BatchNormStatistics>(value)));
  if (kOptionNames[option] == "recompute") return std::string(to_string(static_cast<pipeline::Recompute>(value)));
  if (kOptionNames[option] == "stage_times" || kOptionNames[option] == "recompute_stages")
    return "hash " + std::to_string(value);
  return std::to_string(value);
}

}  // namespace

void agree_on_options(Communicator& communicator, const PipelineOptions& options, int chunks, const std::string& refusal) {
  RankOptions mine;
  mine.values = {static_cast<std::int64_t>(options.schedule),
                 options.microbatches,
                 chunks,
                 options.active_microbatches.value_or(-1),
                 static_cast<std::int64_t>(options.batch_norm),
                 static_cast<std::int64_t>(options.loss_reduction),
                 static_cast<std::int64_t>(options.recompute),
                 hash_of(options.recompute_stages),
                 options.seed ? static_cast<std::int64_t>(*options.seed) : kNoSeed,
                 options.replica,
                 options.first_step,
                 options.timeout.count(),
                 hash_of(options.stage_times),
                 static_cast<std::int64_t>(options.messages)};
  mine.refusal = to_text_field(refusal);
  std::vector<RankOptions> all(static_cast<std::size_t>(communicator.size()));
  CallOptions call;
  if (options.timeout.count() > 0) call.timeout = options.timeout;
  const Status status = communicator.all_gather(&mine, all.data(), sizeof mine, DataType::uint8, call);
  if (!status.ok()) throw StepError({.rank = communicator.rank(), .action = "comparing the options of the pipeline"}, status);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    TORCH_CHECK_VALUE(all[rank].refusal[0] == '\0', "pipeline: rank ", rank, ": ", to_string(all[rank].refusal));
  }
  for (std::size_t option = 0; option < kOptionNames.size(); ++option) {
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      const std::int64_t first = all[0].values[option];
      const std::int64_t other = all[rank].values[option];
      TORCH_CHECK_VALUE(first == other, "pipeline: the ranks differ in ", kOptionNames[option], ": ", value_text(option, first),
                        " on rank 0, ", value_text(option, other), " on rank ", rank, "; pass the same options on all ranks");
    }
  }
}

}  // namespace shoal::parallel
