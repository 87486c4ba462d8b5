#include "torch_plugin/train/options.h"

#include <algorithm>
#include <limits>

#include <CLI/CLI.hpp>

namespace shoal::train {

namespace {

constexpr const char* kAuto = "auto";

/// "gloo+next_forward" names both; "gloo" alone takes `overlap`, which is a choice of its own where it is auto: shoal's full
/// overlap for shoal, and for others what they come with, DistributedDataParallel's.
ContestantOptions to_contestant(const std::string& name, const std::string& overlap) {
  const std::size_t plus = name.find('+');
  if (plus != std::string::npos) return {name.substr(0, plus), name.substr(plus + 1)};
  if (overlap != kAuto) return {name, overlap};
  return {name, name == "shoal" ? "next_forward" : "backward"};
}

}  // namespace

ParsedOptions parse_options(int argc, const char* const* argv) {
  ParsedOptions parsed;
  TrainOptions& options = parsed.options;
  for (int i = 0; i < argc; ++i) options.command += (i == 0 ? "" : " ") + std::string(argv[i]);

  CLI::App app(
      "Trains a network on images with every rank of a job, and compares what carries the gradients.\n"
      "Start it with `shoal run`, mpirun, torchrun or srun; alone it is a job of one rank.",
      "shoal_train");
  app.option_defaults()->always_capture_default();
  std::vector<std::string> backends{"shoal"};
  std::string overlap = kAuto;
  app.add_option("--backend", backends,
                 "shoal, gloo or a comma list: those take turns in the same processes, from the same start; with +backward or "
                 "+next_forward (gloo+next_forward) to say its --overlap")
      ->delimiter(',')
      ->check(CLI::IsMember({"shoal", "gloo", "shoal+backward", "shoal+next_forward", "gloo+backward", "gloo+next_forward"}));
  app.add_option(
         "--overlap", overlap,
         "what gradients are averaged beside: backward (as DistributedDataParallel does), or next_forward as well; auto: "
         "next_forward for shoal, backward for others. The values are the same")
      ->check(CLI::IsMember({kAuto, "backward", "next_forward"}));
  app.add_option("--model", options.model, "network; `shoal_train models` lists them");
  app.add_option("--dataset", options.dataset, "images")->check(CLI::IsMember({"cifar10", "fashion_mnist", "synthetic"}));
  app.add_option("--data", options.data_folder,
                 "folder with the data set's official files (default: SHOAL_DATA_DIR, or what is found)");
  app.add_option("--epochs", options.epochs, "passes over the images")->check(CLI::Range(1, 1'000'000));
  app.add_option("--steps", options.steps, "end after this many steps of each backend; 0: only after the epochs")
      ->check(CLI::Range(std::int64_t{0}, std::numeric_limits<std::int64_t>::max()));
  app.add_option("--batch", options.batch, "images per step and rank")->check(CLI::Range(1, 65536));
  app.add_option("--optimizer", options.optimizer, "sgd (with momentum)")->check(CLI::IsMember({"sgd"}));
  app.add_option("--lr", options.learning_rate, "learning rate")->check(CLI::Range(0.0, 1e6));
  app.add_option("--momentum", options.momentum, "momentum of sgd")->check(CLI::Range(0.0, 1.0));
  app.add_option("--weight-decay", options.weight_decay, "weight decay of sgd")->check(CLI::Range(0.0, 1e6));
  app.add_option("--seed", options.seed, "of the network's start, the order of images and their augmentation");
  app.add_option("--threads", options.threads, "for arithmetic, per rank; 0: its share of the cores")
      ->check(CLI::Range(0, 4096));
  app.add_option("--bucket-mb", options.bucket_mib,
                 "gradients are sent in buckets of this many MiB (default: 25, or 0.5 with next_forward)")
      ->check(CLI::Range(0.001, 4096.0));
  app.add_option("--first-bucket-mb", options.first_bucket_mib, "the first bucket's MiB")->check(CLI::Range(0.001, 4096.0));
  app.add_option("--block", options.block, "steps in a turn")->check(CLI::Range(1, 1'000'000));
  app.add_option("--timeout", options.timeout_s, "seconds until a missing rank is an error")->check(CLI::Range(1.0, 86400.0));
  app.add_flag("!--no-augment", options.augment, "train on the images as they are");
  app.add_flag("--evaluate", options.evaluate, "measure the accuracy on the test images after every epoch");
  app.add_option("--json", options.json, "write the results to this file");
  CLI::App* models = app.add_subcommand("models", "List the networks");

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {
    app.exit(request);
    parsed.exit_code = 0;
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    parsed.exit_code = 1;
  }
  options.contestants.clear();
  for (const std::string& backend : backends) {
    const ContestantOptions contestant = to_contestant(backend, overlap);
    if (std::ranges::find(options.contestants, contestant) == options.contestants.end())
      options.contestants.push_back(contestant);
  }
  parsed.list_models = models->parsed();
  return parsed;
}

}  // namespace shoal::train
