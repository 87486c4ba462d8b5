#include "bench/train/checkpoint.h"

#include <utility>
#include <vector>

#include "torch_plugin/parallel/checkpoint/file_bytes.h"
#include "torch_plugin/parallel/checkpoint/tensor_file.h"
#include "torch_plugin/process_group/conversions.h"

namespace shoal::train {
namespace {

constexpr int kReader = 0;
constexpr const char* kSettings = "settings";  // JSON, as bytes

/// The bytes of the file, or the code of the reader's error.
struct Announcement {
  std::int64_t bytes = 0;
  std::int32_t error = 0;
};

Status no_checkpoint(const std::string& path, const std::string& why) {
  return {StatusCode::invalid_argument, path + ": is not a checkpoint of shoal_train: " + why};
}

Result<Checkpoint> parse(const std::vector<char>& bytes, const std::string& path) {
  Checkpoint checkpoint;
  try {
    for (const auto& [key, tensor] : parallel::from_file(bytes)) {
      if (key == kSettings) {
        checkpoint.settings = nlohmann::json::parse(parallel::from_tensor(tensor));
      } else {
        const std::size_t slash = key.find('/');
        TORCH_CHECK(slash != std::string::npos, "it contains \"", key, "\"");
        checkpoint.replicas[key.substr(0, slash)][key.substr(slash + 1)] = tensor;
      }
    }
    TORCH_CHECK(checkpoint.settings.is_object() && !checkpoint.replicas.empty(), "it contains no settings or no network");
  } catch (const std::exception& error) {
    return no_checkpoint(path, torch::plain_message(error));
  }
  return checkpoint;
}

}  // namespace

Status save_checkpoint(const Checkpoint& checkpoint, const std::string& path) {
  try {
    std::vector<parallel::NamedTensor> tensors{{kSettings, parallel::to_tensor(checkpoint.settings.dump())}};
    for (const auto& [replica, of_replica] : checkpoint.replicas) {
      for (const auto& [name, tensor] : of_replica) tensors.emplace_back(replica + "/" + name, tensor);
    }
    return parallel::replace_file(path, parallel::to_file(tensors));
  } catch (const std::exception& error) {
    return {StatusCode::system_error, path + ": " + torch::plain_message(error)};
  }
}

Result<Checkpoint> load_checkpoint(const std::string& path, Communicator& control) {
  std::vector<char> bytes;
  Announcement announcement;
  Status found;
  if (control.rank() == kReader) {
    Result<std::vector<char>> read = parallel::read_file(path);
    found = read.status();
    if (read.ok()) bytes = *std::move(read);
    announcement = {.bytes = static_cast<std::int64_t>(bytes.size()), .error = static_cast<std::int32_t>(found.code())};
  }
  if (const Status told = control.broadcast(&announcement, sizeof announcement, DataType::uint8, kReader); !told.ok())
    return told;
  if (announcement.error != 0) {
    if (!found.ok()) return found;
    return Status(static_cast<StatusCode>(announcement.error), path + ": rank 0 could not read it");
  }
  bytes.resize(static_cast<std::size_t>(announcement.bytes));
  if (const Status told = control.broadcast(bytes.data(), bytes.size(), DataType::uint8, kReader); !told.ok()) return told;
  return parse(bytes, path);
}

Status check_settings(const Checkpoint& checkpoint, const nlohmann::json& now) {
  // First the settings that the checkpoint has: a missing one is required only because one of those has changed.
  for (const bool known : {true, false}) {
    for (const auto& [name, value] : now.items()) {
      const auto found = checkpoint.settings.find(name);
      if ((found != checkpoint.settings.end()) != known || (known && *found == value)) continue;
      const std::string before = known ? "with " + name + " " + found->dump() + ", not " : "without " + name + ", not with ";
      return Status(StatusCode::invalid_argument,
                    "the checkpoint was made " + before + value.dump() + "; training can be resumed only with the same");
    }
  }
  return {};
}

}  // namespace shoal::train
