#include "bench/train/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>

#include "torch_plugin/process_group/conversions.h"

namespace shoal::train {
namespace {

constexpr int kReader = 0;
constexpr const char* kSettings = "settings";  // JSON, as bytes
constexpr std::uintmax_t kLargestBytes = std::uintmax_t{64} << 30;

/// The bytes of the file, or the code of the reader's error.
struct Announcement {
  std::int64_t bytes = 0;
  std::int32_t error = 0;
};

Status no_checkpoint(const std::string& path, const std::string& why) {
  return {StatusCode::invalid_argument, path + ": is not a checkpoint of shoal_train: " + why};
}

Status read(const std::string& path, std::vector<char>& bytes) {
  std::error_code error;
  const std::filesystem::file_type kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found) return {StatusCode::not_found, path + ": no such file"};
  if (error) return system_error("open " + path, error.value());
  if (kind != std::filesystem::file_type::regular) return {StatusCode::invalid_argument, path + ": is not a file"};
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return system_error("read " + path, error.value());
  if (size == 0 || size > kLargestBytes) return no_checkpoint(path, std::to_string(size) + " bytes");
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return system_error("open " + path, errno);
  bytes.resize(size);
  if (!file.read(bytes.data(), static_cast<std::streamsize>(size))) return system_error("read " + path, errno);
  return {};
}

/// torch's reader does not check the offset and sizes of a tensor in its storage, which the file states.
bool lies_in_its_storage(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return false;
  const auto is_negative = [](std::int64_t number) { return number < 0; };
  if (std::ranges::any_of(tensor.sizes(), is_negative) || std::ranges::any_of(tensor.strides(), is_negative)) return false;
  if (tensor.storage_offset() < 0) return false;
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                          static_cast<std::size_t>(tensor.storage_offset())) <= tensor.storage().nbytes();
}

Result<Checkpoint> parse(const std::vector<char>& bytes, const std::string& path) {
  Checkpoint checkpoint;
  try {
    const c10::IValue content = ::torch::pickle_load(bytes);
    for (const c10::IValue& pair : content.toTupleRef().elements()) {
      const auto& elements = pair.toTupleRef().elements();
      TORCH_CHECK(elements.size() == 2, "it does not contain pairs");
      const std::string& key = elements[0].toStringRef();
      const at::Tensor& tensor = elements[1].toTensor();
      TORCH_CHECK(lies_in_its_storage(tensor), "\"", key, "\" is damaged");
      if (key == kSettings) {
        const at::Tensor text = tensor.contiguous();
        const auto* begin = text.const_data_ptr<std::uint8_t>();
        checkpoint.settings = nlohmann::json::parse(begin, begin + text.numel());
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
  std::vector<char> bytes;
  try {
    // Pairs, because Python refuses a dictionary written by C++ unless it is told to trust the file.
    std::vector<c10::IValue> pairs;
    const auto add = [&pairs](const std::string& name, const at::Tensor& tensor) {
      pairs.emplace_back(c10::ivalue::Tuple::create(c10::IValue(name), c10::IValue(tensor)));
    };
    const std::string settings = checkpoint.settings.dump();
    at::Tensor text = at::empty({static_cast<std::int64_t>(settings.size())}, at::kByte);
    settings.copy(static_cast<char*>(text.data_ptr()), settings.size());
    add(kSettings, text);
    for (const auto& [replica, tensors] : checkpoint.replicas) {
      for (const auto& [name, tensor] : tensors) add(replica + "/" + name, tensor);
    }
    bytes = ::torch::pickle_save(c10::ivalue::Tuple::create(std::move(pairs)));
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, path + ": " + torch::plain_message(error));
  }
  const std::string unfinished = path + ".unfinished";
  std::ofstream file(unfinished, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) return system_error("write " + unfinished, errno);
  if (std::rename(unfinished.c_str(), path.c_str()) != 0) return system_error("write " + path, errno);
  return {};
}

Result<Checkpoint> load_checkpoint(const std::string& path, Communicator& control) {
  std::vector<char> bytes;
  Announcement announcement;
  Status found;
  if (control.rank() == kReader) {
    found = read(path, bytes);
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
