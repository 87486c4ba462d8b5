#include "bench/train/pipeline/choices.h"

#include <string>
#include <utility>

#include <CLI/CLI.hpp>

namespace shoal::train {

void add_pipeline_options(CLI::App& app, PipelineChoices& choices) {
  const auto add = [&](const char* name, auto& target, const char* help) {
    return app.add_option(name, target, help)->group("Pipeline")->always_capture_default(false);
  };
  add("--pipeline", choices.pipeline,
      "train the network in a pipeline over the ranks, --batch images a step: simple, 1f1b, eager_1f1b, interleaved "
      "(default) or virtual");
  add("--partitions", choices.partitions,
      "stages, each on ranks of its own; without --ddp times --tensor-parallel as many as there are ranks");
  add("--microbatches", choices.microbatches, "parts of a batch, which are in the pipeline at the same time (default: 1)");
  add("--chunks", choices.chunks, "with virtual: stages of each rank (default: 1)");
  add("--active-microbatches", choices.active_microbatches,
      "with interleaved: the most that a stage holds (default: --partitions + 2)");
  add("--tensor-parallel", choices.tensor_parallel_degree,
      "ranks that share each stage: each has a slice of its layers (default: 1)");
  add("--optimize", choices.optimize, "what the partition is best for: memory (default), speed, or weighted");
  add("--memory-weight", choices.memory_weight, "weight of memory against time, from 0 (speed) to 1 (memory)");
  add("--memory-limit-bytes", choices.memory_limit_bytes, "no rank may need more");
  add("--recompute", choices.recompute,
      "which stages keep their inputs only and repeat the forward before the backward: none (default), all, or "
      "where_needed, to meet --memory-limit-bytes");
  add("--recompute-units", choices.recompute_units,
      "which single units do so: none (default), all, where_needed (the first units of a stage, as many as "
      "--memory-limit-bytes needs), or a,b,c..e: units by themselves, and runs of neighbours that keep one input");
  add("--batch-norm", choices.batch_norm,
      "running statistics of batch normalisation: microbatch (default), an update for each; or deferred, one for each step, as "
      "for its whole batch");
  add("--placement", choices.placement_strategy,
      "which ranks make a pipeline: cluster (DPT; default), spread (TPD), or the letters in another order, the last of which "
      "varies fastest: D replica, P stage, T slice");
  app.add_flag("--ddp", choices.ddp, "train a replica of the pipeline on each --partitions times --tensor-parallel ranks")
      ->group("Pipeline");
  add("--parallel", choices.parallel, "JSON file with these settings, under the names of SageMaker's library");
  add("--partition", choices.partition, "file of `shoal partition -o`: where the network is cut");
  add("--profile", choices.profile, "file of --profile-out; without it, rank 0 measures the network first");
  add("--link-latency-us", choices.link_latency_us,
      "what the partition counts for a message between stages (default: measured between the ranks at the start)");
  add("--link-bytes-per-us", choices.link_bytes_per_us, "the rate of these messages (default: measured likewise)");
  add("--clip-norm", choices.clip_norm, "scale gradients of a larger norm, over all stages, down to this one")
      ->check(CLI::PositiveNumber);
  app.add_flag("--full-checkpoint", choices.full_checkpoint,
               "--checkpoint also writes full.pt: --resume reads it without a pipeline, Python by torch.load")
      ->group("Pipeline");
}

}  // namespace shoal::train
