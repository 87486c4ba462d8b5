#include "bench/train/options.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include <CLI/CLI.hpp>

#include "bench/train/device.h"

namespace shoal::train {

namespace {

constexpr const char* kAuto = "auto";

/// "gloo+next_forward" names both; "gloo" alone uses `overlap`. If that is auto, it is next_forward for shoal and backward,
/// that of DistributedDataParallel, for other backends. mpi supports only backward, and so does nccl in this program.
ReplicaOptions to_replica(const std::string& name, const std::string& overlap) {
  const std::size_t plus = name.find('+');
  if (plus != std::string::npos) return {name.substr(0, plus), name.substr(plus + 1)};
  if (overlap != kAuto && name != "mpi" && name != "nccl") return {name, overlap};
  return {name, name == "shoal" ? "next_forward" : "backward"};
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  ParsedOptions parsed;
  TrainOptions& options = parsed.options;
  for (int i = 0; i < argc; ++i) options.command += (i == 0 ? "" : " ") + std::string(argv[i]);

  CLI::App app(
      "Trains a network on images with every rank of a job, and compares the backends that average the gradients.\n"
      "Start it with `shoal run`, mpirun, torchrun or srun; started alone, it is a job of one rank.",
      "shoal_train");
  app.option_defaults()->always_capture_default();
  std::vector<std::string> backends{"shoal"};
  std::string overlap = kAuto;
  app.add_option(
         "--backend", backends,
         "shoal, gloo, mpi or a comma list: they take turns in the same processes, from the same start; or nccl, alone or "
         "with shoal, on one GPU per rank (--device); +backward or +next_forward (gloo+next_forward) sets its --overlap; "
         "mpi and nccl support only backward")
      ->delimiter(',')
      ->check(CLI::IsMember({"shoal", "gloo", "mpi", "shoal+backward", "shoal+next_forward", "gloo+backward",
                             "gloo+next_forward", "mpi+backward", "nccl", "nccl+backward"}));
  app.add_option("--overlap", overlap,
                 "what averaging overlaps with: backward (as in DistributedDataParallel), or also next_forward; auto: "
                 "next_forward for shoal, backward for other backends. The values are the same")
      ->check(CLI::IsMember({kAuto, "backward", "next_forward"}));
  app.add_option("--model", options.model, "network; `shoal_train models` lists them");
  app.add_option("--dataset", options.dataset, "images")->check(CLI::IsMember({"cifar10", "fashion_mnist", "synthetic"}));
  app.add_option("--data", options.data_folder,
                 "folder with the data set's official files (default: SHOAL_DATA_DIR, else a search)");
  app.add_option("--epochs", options.epochs, "passes over the images")->check(CLI::Range(1, 1'000'000));
  app.add_option("--steps", options.steps, "end after this many steps of each backend; 0: only after the epochs")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  app.add_option("--seconds", options.seconds, "end after the round of turns in which this many seconds have passed; 0: never")
      ->check(CLI::Range(0.0, 1e7));
  app.add_option("--batch", options.batch, "images per step and rank")->check(CLI::Range(1, 65536));
  app.add_option("--accumulate", options.accumulate,
                 "batches per step, whose gradients each rank sums before they are averaged")
      ->check(CLI::Range(1, 65536));
  app.add_option("--precision", options.precision, "fp32, or bf16: forward with torch's autocast")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_option("--optimizer", options.optimizer, "sgd (with momentum), adadelta or adam")
      ->check(CLI::IsMember({"sgd", "adadelta", "adam"}));
  app.add_option("--lr", options.learning_rate, "learning rate (default: 0.01 for sgd, 0.1 for adadelta, 0.001 for adam)")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--momentum", options.momentum, "momentum of sgd")->check(CLI::Range(0.0, 1.0));
  app.add_option("--weight-decay", options.weight_decay, "weight decay (default: 5e-4 for sgd, 0 for others)")
      ->check(CLI::Range(0.0, 1e6));
  app.add_option("--schedule", options.schedule,
                 "of the learning rate: constant; cosine, to 0 over all epochs; step, see --schedule-epochs")
      ->check(CLI::IsMember({"constant", "cosine", "step"}));
  app.add_option("--schedule-epochs", options.schedule_epochs,
                 "epochs between two steps of the learning rate; 0: a third of all")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--schedule-factor", options.schedule_factor, "factor of the learning rate at each step")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--seed", options.seed, "seed of the network's start, the order of images and their augmentation");
  app.add_option(
         "--device", options.device,
         "cpu, or cuda: one GPU per rank, with shoal and nccl; auto: cuda for nccl, and for shoal alone if every rank has "
         "a GPU; else cpu")
      ->check(CLI::IsMember({kAuto, "cpu", "cuda"}));
  app.add_option("--workers", options.workers, "threads that make batches, per rank")->check(CLI::Range(1, 64));
  app.add_option("--threads", options.threads, "threads for arithmetic, per rank; 0: its share of the cores")
      ->check(CLI::Range(0, 4096));
  app.add_option("--bucket-mb", options.bucket_mib,
                 "gradients are sent in buckets of this many MiB (default: 25, or 0.5 with next_forward)")
      ->check(CLI::Range(0.001, 4096.0));
  app.add_option("--first-bucket-mb", options.first_bucket_mib, "the first bucket's MiB")->check(CLI::Range(0.001, 4096.0));
  app.add_option("--block", options.block, "steps per turn")->check(CLI::Range(1, 1'000'000));
  app.add_option("--timeout", options.timeout_s, "seconds until a missing rank is an error")->check(CLI::Range(1.0, 86400.0));
  app.add_option(
         "--on-failure", options.on_failure,
         "when a rank is lost: stop, or shrink: the survivors continue from the last complete step; with shoal alone and a "
         "launcher that keeps them running (shoal run --keep-going). Keeps a second copy of parameters and optimizer state")
      ->check(CLI::IsMember({"stop", "shrink"}));
  app.add_flag("!--no-augment", options.augment, "train on the images as they are");
  app.add_flag("--evaluate", options.evaluate, "measure the accuracy on the test images after every epoch");
  app.add_option("--json", options.json, "write the results to this file");
  app.add_option("--plot", options.plot, "draw images/s of each backend, with speed-ups, as this SVG file");
  app.add_option("--alone", options.alone, "results (--json) of one rank with as many threads, the base of speed-ups");
  app.add_option("--log", options.log, "write a line of JSON about every turn and every epoch to this file");
  app.add_option("--checkpoint", options.checkpoint,
                 "save to this file after every epoch and at the end; with a pipeline: a folder that all ranks share");
  app.add_option("--resume", options.resume,
                 "continue from this checkpoint; the same training, bitwise equal with SHOAL_NUMERICS=repeatable");
  app.add_option("--trace", options.trace,
                 "write a trace of one step of every rank to this file, for Perfetto or chrome://tracing");
  app.add_option("--profile-out", options.profile_out,
                 "do not train: measure each unit of the network for a microbatch of --batch images, on --device and with "
                 "--threads, and write the profile that `shoal partition` reads to this file");
  add_pipeline_options(app, options.parallel);
  CLI::App* models = app.add_subcommand("models", "List the networks");
  CLI::App* page = app.add_subcommand("report", "Write a page with pictures from result files (report --help)");
  page->set_help_flag();
  page->prefix_command();  // the script parses the rest

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    app.exit(request);
    parsed.exit_code = 0;
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    parsed.exit_code = 1;
  }
  options.replicas.clear();
  for (const std::string& backend : backends) {
    const ReplicaOptions replica = to_replica(backend, overlap);
    if (std::ranges::find(options.replicas, replica) == options.replicas.end()) options.replicas.push_back(replica);
  }
  for (const Status& fits : {check_device(options), options.parallel.check()}) {
    if (fits.ok()) continue;
    std::fprintf(stderr, "shoal_train: %s\n", fits.message().c_str());
    parsed.exit_code = 1;
  }
  if (options.survives() && (options.replicas.size() > 1 || options.replicas.front().backend != "shoal")) {
    std::fputs(
        "shoal_train: --on-failure shrink: only shoal can continue without a lost rank, and after that there is no "
        "comparison: train with --backend shoal alone\n",
        stderr);
    parsed.exit_code = 1;
  }
  parsed.list_models = models->parsed();
  if (page->parsed()) parsed.page = page->remaining();
  return parsed;
}

}  // namespace shoal::train
