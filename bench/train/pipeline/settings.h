// The settings of a pipeline: those of the command line and of files as one value.
#pragma once

#include <optional>
#include <string>

#include <shoal/status.h>

#include "bench/train/pipeline/choices.h"
#include "src/pipeline/config.h"
#include "src/pipeline/partition_file.h"

namespace shoal::train {

/// What the files of the command line contain; empty where none was given.
struct PipelineFiles {
  std::string parallel;
  std::string partition;
  std::string profile;
};

/// The files of `choices`. Errors: those of reading, with the file's name.
Result<PipelineFiles> read_files(const PipelineChoices& choices);

/// A configuration, and the partition of a file. Its `recomputes` is empty unless the file has chosen the stages that recompute
/// and neither options nor configuration say anything else.
struct PipelineSettings {
  pipeline::Config config;
  std::optional<pipeline::PartitionFile> partition;
};

/// Options and the file of --parallel must not contradict each other. What neither says is as in the partition file, else
/// pipeline::Config's default. Errors: invalid_argument or unsupported that names option, file and key.
Result<PipelineSettings> make_settings(const PipelineChoices& choices, const PipelineFiles& files);

}  // namespace shoal::train
