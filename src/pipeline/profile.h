// Profile: what each unit of a model costs for one microbatch, as measured; and its file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

namespace shoal::pipeline {

/// One unit of the chain, for one microbatch.
struct Unit {
  std::string name;
  double forward_us = 0;
  double backward_us = 0;
  std::int64_t parameter_bytes = 0;
  std::int64_t buffer_bytes = 0;
  std::int64_t stash_bytes = 0;   ///< what its forward leaves allocated for the backward, its output among it
  std::int64_t output_bytes = 0;  ///< what crosses a cut behind it
  std::vector<std::int64_t> output_shape;
  /// The most that its forward has at a time beside the stash, or its backward beside the stash and the gradients of parameters
  /// to which it adds: intermediate results, and the gradients of output and input. 0 where a file lacks it.
  std::int64_t workspace_bytes = 0;
};

/// The chain of units, and what it was measured on. Texts that nobody gave are empty, numbers 0.
struct Profile {
  std::string model;
  std::string dtype;
  std::string device;
  std::string machine;
  std::string torch;  ///< its version
  std::int64_t channels = 0;
  std::int64_t classes = 0;
  std::int64_t microbatch = 0;  ///< images
  std::int64_t threads = 0;
  std::vector<Unit> units;

  [[nodiscard]] std::vector<std::string> unit_names() const;
};

inline constexpr std::int64_t kProfileVersion = 1;
inline constexpr std::size_t kMaxUnits = 2048;

/// A profile from JSON: an object with `units`, each of which has `name`, `forward_us`, `backward_us`, `parameter_bytes`,
/// `stash_bytes` and `output_bytes`. The other members of Profile and Unit, and `version`, are optional; keys that are none of
/// them are ignored. Error: invalid_argument that names `origin` and the field, for broken JSON the last field before the
/// fault.
Result<Profile> parse_profile(std::string_view json, std::string_view origin);

/// As parse_profile(), from a file. Error: also system_error for a file that cannot be read.
Result<Profile> read_profile(const std::string& path);

/// The file's text. The same profile gives the same bytes.
std::string to_json(const Profile& profile);

/// ok if `profile`, read from `origin`, is of the model that `expected` describes, on such images: model, unit names, parameter
/// bytes and, where both have them, the shapes of outputs but for their first dimension. Else invalid_argument that names
/// `origin`, the field and both values.
Status check_model(const Profile& profile, std::string_view origin, const Profile& expected);

/// One sentence with both values for each difference that changes times only: microbatch, dtype, device, threads, machine,
/// torch. A value that either side lacks is no difference.
std::vector<std::string> differences(const Profile& profile, std::string_view origin, const Profile& expected);

}  // namespace shoal::pipeline
