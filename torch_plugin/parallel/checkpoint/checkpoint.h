// Checkpoints of a model that is spread over ranks: a folder with the files of the ranks and a manifest.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <shoal/communicator.h>

#include "torch_plugin/parallel/checkpoint/manifest.h"

namespace shoal::parallel {

/// Which part of a tensor of the unsplit model a rank has: all of it, or what begins at `offset` along `dimension`, where the
/// whole tensor has `whole_size`.
struct Slice {
  std::int64_t dimension = kWhole;
  std::int64_t offset = 0;
  std::int64_t whole_size = 0;
};

/// A tensor under its name in the unsplit model.
struct ModelTensor {
  std::string name;
  at::Tensor value;
  Slice slice;
};

/// A checkpoint on the disk.
struct StoredCheckpoint {
  std::string folder;
  Manifest manifest;
};

/// What a rank saves. All ranks pass the same root, tag, about and removes_previous.
struct SaveRequest {
  std::string root;          ///< folder of the checkpoints, on a file system that all ranks share; made if its parent exists
  std::string tag;           ///< name of the checkpoint's folder in it; "-2" or more follows if that exists
  std::string about = "{}";  ///< Manifest::about
  std::string file;          ///< name of this rank's file, which no other rank has
  std::vector<ModelTensor> tensors = {};  ///< in that file; none: no file. Every slice is saved by one rank only
  /// On rank 0, when everything else of the checkpoint is there: for further files.
  std::function<Status(const StoredCheckpoint&)> finish = {};
  bool removes_previous = false;  ///< the checkpoint that was the newest is deleted afterwards
};

/// Writes ROOT/TAG: the file of each rank, the state of each rank's random generator of the CPU, and the manifest; then
/// replaces ROOT/newest, which names the folder. So a crash or an error leaves the newest checkpoint before it whole.
/// Collective. Returns the folder. Errors, the same on all ranks: system_error that names file and rank; invalid_argument if
/// the tensors do not make a model, as check_complete(); those of `finish` and of the communicator. After an error the new
/// folder has gone.
Result<std::string> save_checkpoint(Communicator& communicator, const SaveRequest& request);

/// The checkpoint in `path`: its own folder, or the root, for the newest. Rank 0 reads the manifest. Collective. Errors, the
/// same on all ranks: not_found, system_error, those of parse_manifest() and check_complete().
Result<StoredCheckpoint> open_checkpoint(Communicator& communicator, const std::string& path);

/// The tensors called `wanted`, as new tensors in the same order. They have the slices, shapes and types of the wanted ones,
/// whatever slices the files have; one without a value takes all of a tensor, whatever its shape. Errors, with tensor, file and
/// the rank that wrote it: not_found for a missing file; invalid_argument for a missing tensor, another shape or type, and
/// damage; system_error.
Result<std::vector<at::Tensor>> read_tensors(const StoredCheckpoint& checkpoint, const std::vector<ModelTensor>& wanted);

/// read_tensors() on all ranks, which together must want all tensors of the checkpoint but generators. Collective. Errors, the
/// same on all ranks: as above; invalid_argument for a tensor that no rank wants.
Result<std::vector<at::Tensor>> load_tensors(Communicator& communicator, const StoredCheckpoint& checkpoint,
                                             const std::vector<ModelTensor>& wanted);

/// Tensors of the unsplit model by name, each of them whole.
using WholeTensors = std::map<std::string, at::Tensor>;

/// As load_tensors(), of tensors in memory, which are the same on all ranks and which messages say to be from `origin`.
Result<std::vector<at::Tensor>> take_tensors(Communicator& communicator, const WholeTensors& whole, const std::string& origin,
                                             const std::vector<ModelTensor>& wanted);

/// The random generator of the CPU, for load_tensors() by the rank that had the number `rank` in the communicator that saved;
/// its value is the generator's state now.
ModelTensor generator_of(int rank);
/// Continues with this state. Throws c10::Error for the state of something else.
void set_generator(const at::Tensor& state);

}  // namespace shoal::parallel
