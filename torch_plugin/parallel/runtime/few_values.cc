#include "torch_plugin/parallel/runtime/few_values.h"

namespace shoal::parallel {
namespace {

std::string images_text(std::int64_t images) { return std::to_string(images) + (images == 1 ? " image" : " images"); }

/// How a batch of `batch` images can have microbatches of at least `images`.
std::string advice(std::int64_t batch, std::int64_t images) {
  if (batch < images) return "a batch of at least " + images_text(images);
  return "m at most " + std::to_string(batch / images) + " microbatches with a batch of " + images_text(batch);
}

}  // namespace

std::string warning_of(const FewValues& first, std::size_t count, const Microbatches& microbatches) {
  const std::int64_t smallest = microbatches.size(microbatches.count() - 1);
  const std::int64_t images = (kEnoughValues * smallest + first.values - 1) / first.values;
  const std::string others = count > 1 ? " and " + std::to_string(count - 1) + " more" : "";
  return "stage " + std::to_string(first.stage) + ": batch normalisation '" + first.layer + "'" + others + " has " +
         std::to_string(first.values) + " values of each channel in a microbatch of " + images_text(smallest) + "; below " +
         std::to_string(kEnoughValues) + " its statistics say little: use " + advice(microbatches.batch(), images);
}

Status check_values(const FewestValues& fewest, const Microbatches& microbatches) {
  const std::int64_t smallest = microbatches.size(microbatches.count() - 1);
  if (smallest * fewest.for_each_image > 1) return {};
  return {StatusCode::invalid_argument, "unit '" + fewest.unit + "': batch normalisation has 1 value of each channel in a " +
                                            "microbatch of " + images_text(smallest) + ", and needs 2: use " +
                                            advice(microbatches.batch(), 2)};
}

void rethrow_single_value(const c10::Error& error, const Microbatches& microbatches, int microbatch) {
  if (error.msg().find("more than 1 value per channel") == std::string::npos) return;
  TORCH_CHECK_VALUE(false, error.what_without_backtrace(), "; the microbatch has ", images_text(microbatches.size(microbatch)),
                    ": use ", advice(microbatches.batch(), 2));
}

}  // namespace shoal::parallel
