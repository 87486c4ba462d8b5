#include "torch_plugin/parallel/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include <ATen/Context.h>

#include "src/pipeline/json_file.h"
#include "torch_plugin/parallel/checkpoint/file_bytes.h"
#include "torch_plugin/parallel/checkpoint/fingerprint.h"
#include "torch_plugin/parallel/checkpoint/tensor_file.h"
#include "torch_plugin/parallel/partition/text_of_rank_0.h"
#include "torch_plugin/process_group/conversions.h"

namespace shoal::parallel {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifestName = "manifest.json";
constexpr const char* kNewestName = "newest";
constexpr const char* kGeneratorsName = "generators.pt";
constexpr std::string_view kGeneratorPrefix = "generator/";
constexpr int kMostFolders = 1000;  // of one tag

std::string inside(const std::string& folder, std::string_view name) { return (fs::path(folder) / name).string(); }

std::string manifest_path(const StoredCheckpoint& checkpoint) { return inside(checkpoint.folder, kManifestName); }

/// What `body` returns; an exception as a Status, so that no rank leaves a collective call which others wait in.
template <typename T, typename Body>
Result<T> without_exceptions(const Body& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, torch::plain_message(error));
  }
}

at::Tensor generator_state() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

/// Its bytes and nothing else that its storage has.
at::Tensor compact(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().cpu().contiguous();
  return dense.storage().nbytes() == dense.nbytes() ? dense : dense.clone();
}

/// Writes the file and adds it to the manifest.
Status add_file(Manifest& manifest, const std::string& folder, CheckpointFile file, const std::vector<ModelTensor>& tensors) {
  std::vector<NamedTensor> contents;
  for (const ModelTensor& each : tensors) {
    const at::Tensor value = contents.emplace_back(each.name, compact(each.value)).second;
    StoredTensor stored{.name = each.name,
                        .shape = value.sizes().vec(),
                        .type = c10::toString(value.scalar_type()),
                        .file = static_cast<int>(manifest.files.size()),
                        .checksum = fingerprint_of({value})};
    if (each.slice.dimension != kWhole) {
      stored.dimension = each.slice.dimension;
      stored.offset = each.slice.offset;
      stored.length = std::exchange(stored.shape.at(static_cast<std::size_t>(stored.dimension)), each.slice.whole_size);
    }
    manifest.tensors.push_back(std::move(stored));
  }
  const std::string path = inside(folder, file.name);
  manifest.files.push_back(std::move(file));
  return replace_file(path, to_file(contents));
}

/// A new folder for the checkpoint.
Result<std::string> make_folder(const SaveRequest& request) {
  if (!is_plain_name(request.tag))
    return Status(StatusCode::invalid_argument, "'" + request.tag + "' is not the name of a folder");
  std::error_code error;
  fs::create_directory(request.root, error);
  for (int number = 1; !error && number <= kMostFolders; ++number) {
    const std::string folder = inside(request.root, request.tag + (number == 1 ? "" : "-" + std::to_string(number)));
    if (fs::create_directory(folder, error)) return folder;
  }
  return system_error("make a folder for the checkpoint " + request.tag + " in " + request.root, error.value());
}

/// The folder that ROOT/newest names.
Result<std::string> newest_in(const std::string& root) {
  const std::string path = inside(root, kNewestName);
  Result<std::vector<char>> read = read_file(path);
  if (!read.ok()) return read.status();
  std::string tag(read->begin(), read->end());
  if (tag.ends_with('\n')) tag.pop_back();
  if (!is_plain_name(tag)) return Status(StatusCode::invalid_argument, path + ": does not name a folder");
  return inside(root, tag);
}

/// On rank 0, when all ranks have written their files, which `parts` describe.
Result<std::string> complete(const std::string& folder, const SaveRequest& request, const std::vector<std::string>& parts,
                             const at::Tensor& generators) {
  StoredCheckpoint made{.folder = folder, .manifest = {.about = request.about}};
  for (const std::string& text : parts) {
    Result<Manifest> part = parse_manifest(text, folder);
    if (!part.ok()) return part.status();
    for (StoredTensor& tensor : part->tensors) tensor.file += static_cast<int>(made.manifest.files.size());
    std::ranges::move(part->files, std::back_inserter(made.manifest.files));
    std::ranges::move(part->tensors, std::back_inserter(made.manifest.tensors));
  }
  for (const CheckpointFile& file : made.manifest.files) {
    if (fs::exists(inside(folder, file.name))) continue;
    return Status(
        StatusCode::system_error,
        inside(folder, describe(file)) + ", is not there for rank 0: all ranks must share the file system of " + request.root);
  }
  std::vector<ModelTensor> states;
  for (std::int64_t rank = 0; rank < generators.size(0); ++rank)
    states.push_back({std::string(kGeneratorPrefix) + std::to_string(rank), generators[rank], {}});
  if (Status status = add_file(made.manifest, folder, {kGeneratorsName, 0}, states); !status.ok()) return status;
  if (Status status = check_complete(made.manifest, folder); !status.ok()) return status;
  if (Status status = replace_file(manifest_path(made), to_json(made.manifest)); !status.ok()) return status;
  if (request.finish) {
    if (Status status = request.finish(made); !status.ok()) return status;
  }
  const Result<std::string> previous = newest_in(request.root);
  const std::string tag = fs::path(folder).filename().string() + "\n";
  if (Status status = replace_file(inside(request.root, kNewestName), tag); !status.ok()) return status;
  std::error_code ignored;  // the new checkpoint is complete
  if (request.removes_previous && previous.ok() && fs::exists(inside(*previous, kManifestName), ignored))
    fs::remove_all(*previous, ignored);
  return folder;
}

/// The tensors of a file.
Result<std::map<std::string, at::Tensor>> read_file_of(const StoredCheckpoint& checkpoint, const CheckpointFile& file) {
  const Result<std::vector<char>> bytes = read_file(inside(checkpoint.folder, file.name));
  const std::string who = " (written by rank " + std::to_string(file.rank) + ")";
  if (!bytes.ok()) return Status(bytes.status().code(), bytes.status().message() + who);
  try {
    std::map<std::string, at::Tensor> tensors;
    for (auto& [name, tensor] : from_file(*bytes)) tensors[name] = tensor;
    return tensors;
  } catch (const std::exception& error) {
    return Status(StatusCode::invalid_argument,
                  inside(checkpoint.folder, file.name) + ": is damaged: " + torch::plain_message(error) + who);
  }
}

/// Whether `wanted` can be made of a tensor of this shape, in the unsplit model, and type.
bool fits(const ModelTensor& wanted, at::IntArrayRef shape, std::string_view type) {
  if (!wanted.value.defined()) return true;
  std::vector<std::int64_t> whole = wanted.value.sizes().vec();
  if (wanted.slice.dimension != kWhole) whole.at(static_cast<std::size_t>(wanted.slice.dimension)) = wanted.slice.whole_size;
  return shape == whole && c10::toString(wanted.value.scalar_type()) == type;
}

/// That the tensor called like `wanted`, of this shape and type, is another one. `where` says in which file it is.
Status other_tensor(const ModelTensor& wanted, at::IntArrayRef shape, std::string_view type, const std::string& origin,
                    const std::string& where) {
  return {StatusCode::invalid_argument, origin + ": tensor '" + wanted.name + "' has the type " + std::string(type) +
                                            " and the shape " + c10::str(shape) + where +
                                            ", and this rank's part of the model's is " +
                                            c10::toString(wanted.value.scalar_type()) + " " + c10::str(wanted.value.sizes())};
}

Status missing_tensor(const ModelTensor& wanted, const std::string& origin) {
  return {StatusCode::invalid_argument, origin + ": tensor '" + wanted.name + "' is missing; the model has it"};
}

std::int64_t length_of(const ModelTensor& wanted) { return wanted.value.size(wanted.slice.dimension); }

/// Whether the file has a part of what is wanted.
bool has_part(const ModelTensor& wanted, const StoredTensor& stored) {
  if (stored.dimension == kWhole || stored.dimension != wanted.slice.dimension) return true;
  return stored.offset < wanted.slice.offset + length_of(wanted) && wanted.slice.offset < stored.offset + stored.length;
}

/// Copies what `source`, as stored, has of `target`, as wanted.
void copy_part(at::Tensor& target, const ModelTensor& wanted, at::Tensor source, const StoredTensor& stored) {
  const Slice& slice = wanted.slice;
  at::Tensor into = target;
  if (stored.dimension != kWhole && stored.dimension == slice.dimension) {
    const std::int64_t begin = std::max(slice.offset, stored.offset);
    const std::int64_t length = std::min(slice.offset + length_of(wanted), stored.offset + stored.length) - begin;
    into = into.narrow(slice.dimension, begin - slice.offset, length);
    source = source.narrow(slice.dimension, begin - stored.offset, length);
  } else {
    if (stored.dimension != kWhole) into = into.narrow(stored.dimension, stored.offset, stored.length);
    if (slice.dimension != kWhole) source = source.narrow(slice.dimension, slice.offset, length_of(wanted));
  }
  into.copy_(source);
}

/// The tensor has the shape, type and bytes of the manifest.
bool is_intact(const at::Tensor& tensor, const StoredTensor& stored) {
  std::vector<std::int64_t> shape = stored.shape;
  if (stored.dimension != kWhole) shape[static_cast<std::size_t>(stored.dimension)] = stored.length;
  return tensor.sizes() == shape && c10::toString(tensor.scalar_type()) == stored.type &&
         fingerprint_of({tensor}) == stored.checksum;
}

/// A wanted tensor, by its position, and what a file has of it.
struct Source {
  std::size_t wanted;
  const StoredTensor* stored;
};

/// For each file, what is to be read from it.
Result<std::vector<std::vector<Source>>> find_sources(const StoredCheckpoint& checkpoint,
                                                      const std::vector<ModelTensor>& wanted) {
  const std::string origin = manifest_path(checkpoint);
  std::map<std::string_view, std::vector<const StoredTensor*>> parts;
  for (const StoredTensor& stored : checkpoint.manifest.tensors) parts[stored.name].push_back(&stored);
  std::vector<std::vector<Source>> by_file(checkpoint.manifest.files.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto found = parts.find(wanted[i].name);
    if (found == parts.end()) return missing_tensor(wanted[i], origin);
    const StoredTensor& first = *found->second.front();
    if (!fits(wanted[i], first.shape, first.type)) {
      const CheckpointFile& file = checkpoint.manifest.files[static_cast<std::size_t>(first.file)];
      return other_tensor(wanted[i], first.shape, first.type, origin, " (" + describe(file) + ")");
    }
    for (const StoredTensor* const stored : found->second) {
      if (has_part(wanted[i], *stored)) by_file[static_cast<std::size_t>(stored->file)].push_back({i, stored});
    }
  }
  return by_file;
}

Result<std::vector<at::Tensor>> read_checked(const StoredCheckpoint& checkpoint, const std::vector<ModelTensor>& wanted) {
  const at::NoGradGuard no_grad;
  const Result<std::vector<std::vector<Source>>> by_file = find_sources(checkpoint, wanted);
  if (!by_file.ok()) return by_file.status();
  std::vector<at::Tensor> tensors(wanted.size());
  for (std::size_t i = 0; i < by_file->size(); ++i) {
    if ((*by_file)[i].empty()) continue;
    const CheckpointFile& file = checkpoint.manifest.files[i];
    const Result<std::map<std::string, at::Tensor>> contents = read_file_of(checkpoint, file);
    if (!contents.ok()) return contents.status();
    for (const Source& source : (*by_file)[i]) {
      const auto found = contents->find(source.stored->name);
      if (found == contents->end() || !is_intact(found->second, *source.stored)) {
        return Status(StatusCode::invalid_argument, inside(checkpoint.folder, file.name) + ": tensor '" + source.stored->name +
                                                        "' is " + (found == contents->end() ? "missing" : "damaged") +
                                                        " (written by rank " + std::to_string(file.rank) + ")");
      }
      const ModelTensor& goal = wanted[source.wanted];
      at::Tensor& target = tensors[source.wanted];
      if (!target.defined())
        target = at::empty(goal.value.defined() ? goal.value.sizes() : at::IntArrayRef(source.stored->shape),
                           found->second.options());
      copy_part(target, goal, found->second, *source.stored);
    }
  }
  return tensors;
}

Result<std::vector<at::Tensor>> take_checked(const WholeTensors& whole, const std::string& origin,
                                             const std::vector<ModelTensor>& wanted) {
  std::vector<at::Tensor> tensors;
  for (const ModelTensor& each : wanted) {
    const auto found = whole.find(each.name);
    if (found == whole.end()) return missing_tensor(each, origin);
    at::Tensor value = found->second;
    const char* const type = c10::toString(value.scalar_type());
    if (!fits(each, value.sizes(), type)) return other_tensor(each, value.sizes(), type, origin, "");
    if (each.slice.dimension != kWhole) value = value.narrow(each.slice.dimension, each.slice.offset, length_of(each));
    tensors.push_back(value.clone());
  }
  return tensors;
}

/// The names of what all ranks want, if each has found its own.
Result<std::set<std::string>> all_wanted(Communicator& communicator, const Status& found,
                                         const std::vector<ModelTensor>& wanted) {
  std::string names;
  for (const ModelTensor& each : wanted) names += each.name + "\n";
  const Result<std::vector<std::string>> all = texts_of_ranks(communicator, found.ok() ? Result<std::string>(names) : found);
  if (!all.ok()) return all.status();
  std::set<std::string> known;
  for (const std::string& text : *all) {
    for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      known.insert(text.substr(begin, end - begin));
  }
  return known;
}

}  // namespace

Result<std::string> save_checkpoint(Communicator& communicator, const SaveRequest& request) {
  const bool leads = communicator.rank() == 0;
  const Result<std::string> folder =
      text_of_rank_0(communicator, leads ? without_exceptions<std::string>([&] { return make_folder(request); })
                                         : Result<std::string>(std::string()));
  if (!folder.ok()) return folder.status();
  const Result<std::string> part = without_exceptions<std::string>([&]() -> Result<std::string> {
    Manifest manifest;
    if (!request.tensors.empty()) {
      Status written = add_file(manifest, *folder, {request.file, communicator.rank()}, request.tensors);
      if (!written.ok()) return written;
    }
    return to_json(manifest);
  });
  Result<std::vector<std::string>> parts = texts_of_ranks(communicator, part);
  const at::Tensor own = generator_state();
  const at::Tensor states = at::empty({communicator.size(), own.numel()}, at::kByte);
  if (parts.ok()) {
    const Status gathered = communicator.all_gather(own.const_data_ptr(), states.data_ptr(), own.nbytes(), DataType::uint8);
    if (!gathered.ok()) parts = gathered;
  }
  Result<std::string> done = parts.ok() ? folder : parts.status();
  if (leads && parts.ok()) done = without_exceptions<std::string>([&] { return complete(*folder, request, *parts, states); });
  if (leads && !done.ok()) {
    std::error_code ignored;  // what has failed is told
    fs::remove_all(*folder, ignored);
  }
  Result<std::string> told = text_of_rank_0(communicator, done);  // when rank 0 has removed what it does not keep
  return parts.ok() ? std::move(told) : parts.status();
}

Result<StoredCheckpoint> open_checkpoint(Communicator& communicator, const std::string& path) {
  const bool leads = communicator.rank() == 0;
  const auto find = [&]() -> Result<std::string> {
    if (fs::exists(inside(path, kManifestName))) return path;
    if (fs::exists(inside(path, kNewestName))) return newest_in(path);
    return Status(StatusCode::not_found, path + ": is not a folder of checkpoints: it has neither manifest.json nor newest");
  };
  const Result<std::string> nothing = std::string();
  const Result<std::string> folder = text_of_rank_0(communicator, leads ? without_exceptions<std::string>(find) : nothing);
  if (!folder.ok()) return folder.status();
  const std::string origin = inside(*folder, kManifestName);
  const Result<std::string> text =
      text_of_rank_0(communicator, leads ? pipeline::read_text(origin, "manifest of a checkpoint") : nothing);
  if (!text.ok()) return text.status();
  Result<Manifest> manifest = parse_manifest(*text, origin);
  if (!manifest.ok()) return manifest.status();
  if (Status status = check_complete(*manifest, origin); !status.ok()) return status;
  return StoredCheckpoint{*folder, *std::move(manifest)};
}

Result<std::vector<at::Tensor>> read_tensors(const StoredCheckpoint& checkpoint, const std::vector<ModelTensor>& wanted) {
  return without_exceptions<std::vector<at::Tensor>>([&] { return read_checked(checkpoint, wanted); });
}

Result<std::vector<at::Tensor>> load_tensors(Communicator& communicator, const StoredCheckpoint& checkpoint,
                                             const std::vector<ModelTensor>& wanted) {
  Result<std::vector<at::Tensor>> own = read_tensors(checkpoint, wanted);
  const Result<std::set<std::string>> known = all_wanted(communicator, own.status(), wanted);
  if (!known.ok()) return known.status();
  for (const StoredTensor& stored : checkpoint.manifest.tensors) {
    if (known->contains(stored.name) || stored.name.starts_with(kGeneratorPrefix)) continue;
    return Status(StatusCode::invalid_argument, manifest_path(checkpoint) + ": tensor '" + stored.name + "' (" +
                                                    describe(checkpoint.manifest.files[static_cast<std::size_t>(stored.file)]) +
                                                    ") is not one of the model");
  }
  return own;
}

Result<std::vector<at::Tensor>> take_tensors(Communicator& communicator, const WholeTensors& whole, const std::string& origin,
                                             const std::vector<ModelTensor>& wanted) {
  Result<std::vector<at::Tensor>> own =
      without_exceptions<std::vector<at::Tensor>>([&] { return take_checked(whole, origin, wanted); });
  const Result<std::set<std::string>> known = all_wanted(communicator, own.status(), wanted);
  if (!known.ok()) return known.status();
  for (const auto& [name, tensor] : whole) {
    if (known->contains(name)) continue;
    return Status(StatusCode::invalid_argument, origin + ": tensor '" + name + "' is not one of the model");
  }
  return own;
}

ModelTensor generator_of(int rank) { return {std::string(kGeneratorPrefix) + std::to_string(rank), generator_state(), {}}; }

void set_generator(const at::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace shoal::parallel
