// Manifest: which file of a checkpoint holds which part of which tensor of the unsplit model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <shoal/status.h>

namespace shoal::parallel {

/// The dimension along which a tensor is split that is not split.
inline constexpr std::int64_t kWhole = -1;

/// A file of tensors.
struct CheckpointFile {
  std::string name;  ///< in the folder of the checkpoint
  int rank = 0;      ///< which wrote it
};

/// A tensor in a file: all of a tensor of the unsplit model, or a slice of it.
struct StoredTensor {
  std::string name;                 ///< in the unsplit model
  std::vector<std::int64_t> shape;  ///< in the unsplit model
  std::string type;                 ///< as c10::toString() writes it
  int file = 0;                     ///< index in Manifest::files
  std::int64_t dimension = kWhole;  ///< along which it is split
  std::int64_t offset = 0;          ///< along that dimension
  std::int64_t length = 0;          ///< along that dimension
  std::uint64_t checksum = 0;       ///< fingerprint_of() what the file has

  bool operator==(const StoredTensor&) const = default;
};

/// A value.
struct Manifest {
  std::string about = "{}";  ///< a JSON object with what the program says of its training
  std::vector<CheckpointFile> files = {};
  std::vector<StoredTensor> tensors = {};
};

inline constexpr std::int64_t kManifestVersion = 1;

/// The text of manifest.json.
std::string to_json(const Manifest& manifest);

/// Reads such a text, which may be damaged or hostile. Errors: invalid_argument that names `origin` and the field: broken JSON,
/// another version, missing or wrong values, file names that leave the folder. See check_complete() for the rest.
Result<Manifest> parse_manifest(std::string_view json, std::string_view origin);

/// Whether the slices of each tensor fit each other and make all of it, once. Error: invalid_argument that names the tensor,
/// files and ranks: a missing slice; two files that claim the same one; files that differ in shape, type or dimension.
Status check_complete(const Manifest& manifest, std::string_view origin);

/// Whether `name` is that of a file in a folder, and no way out of it.
bool is_plain_name(std::string_view name);

/// "stage0-slice1.pt, written by rank 1".
std::string describe(const CheckpointFile& file);

}  // namespace shoal::parallel
