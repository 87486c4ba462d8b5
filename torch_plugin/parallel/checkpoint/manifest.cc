#include "torch_plugin/parallel/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "src/pipeline/json_file.h"

namespace shoal::parallel {
namespace {

using pipeline::Json;

constexpr std::int64_t kMostManifestRanks = 1 << 20;
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;
constexpr std::size_t kMostDimensions = 16;
constexpr std::size_t kLongestName = 255;
constexpr std::size_t kHexDigits = 16;
constexpr std::uint64_t kLargestNumber = std::numeric_limits<std::int64_t>::max();

Status bad_manifest(std::string_view origin, const std::string& what) {
  return {StatusCode::invalid_argument, std::string(origin) + ": " + what};
}

/// A whole number from 0 to `most`.
std::optional<std::int64_t> to_whole_number(const Json& value, std::int64_t most) {
  if (!value.is_number_integer()) return {};
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kLargestNumber) return {};
  const auto number = value.get<std::int64_t>();
  if (number < 0 || number > most) return {};
  return number;
}

std::optional<std::int64_t> whole_number(const Json& object, const char* key, std::int64_t most) {
  const auto found = object.find(key);
  return found == object.end() ? std::nullopt : to_whole_number(*found, most);
}

std::optional<std::string> text_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return {};
  return found->get<std::string>();
}

/// Sizes whose product is at most kMostElements.
std::optional<std::vector<std::int64_t>> shape_at(const Json& object) {
  const auto found = object.find("shape");
  if (found == object.end() || !found->is_array() || found->size() > kMostDimensions) return {};
  std::vector<std::int64_t> shape;
  std::int64_t elements = 1;
  for (const Json& size : *found) {
    const std::optional<std::int64_t> number = to_whole_number(size, kMostElements);
    if (!number || (*number > 0 && elements > kMostElements / *number)) return {};
    elements *= std::max<std::int64_t>(*number, 1);
    shape.push_back(*number);
  }
  return shape;
}

std::string to_hex(std::uint64_t number) {
  std::array<char, kHexDigits + 1> hex{};
  (void)std::snprintf(hex.data(), hex.size(), "%016llx", static_cast<unsigned long long>(number));
  return hex.data();
}

std::optional<std::uint64_t> from_hex(const std::string& text) {
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, number, 16);
  if (text.size() != kHexDigits || read != end || error != std::errc()) return {};
  return number;
}

Result<CheckpointFile> parse_file(const Json& object, const std::string& what, std::string_view origin) {
  const std::optional<std::string> name = object.is_object() ? text_at(object, "name") : std::nullopt;
  if (!name || !is_plain_name(*name)) return bad_manifest(origin, what + ": 'name' is not the name of a file in this folder");
  const std::optional<std::int64_t> rank = whole_number(object, "rank", kMostManifestRanks);
  if (!rank) return bad_manifest(origin, what + " ('" + *name + "'): 'rank' is not the number of a rank");
  return CheckpointFile{*name, static_cast<int>(*rank)};
}

Result<StoredTensor> parse_tensor(const Json& object, std::size_t files, const std::string& what, std::string_view origin) {
  StoredTensor tensor;
  const std::optional<std::string> name = object.is_object() ? text_at(object, "name") : std::nullopt;
  if (!name || name->empty()) return bad_manifest(origin, what + ": 'name' is missing");
  tensor.name = *name;
  const auto wrong = [&](const char* key) {
    return bad_manifest(origin, what + " ('" + *name + "'): '" + key + "' is missing or out of range");
  };
  std::optional<std::vector<std::int64_t>> shape = shape_at(object);
  if (!shape) return wrong("shape");
  tensor.shape = *std::move(shape);
  const std::optional<std::string> type = text_at(object, "type");
  if (!type) return wrong("type");
  tensor.type = *type;
  const std::optional<std::int64_t> file = whole_number(object, "file", static_cast<std::int64_t>(files) - 1);
  if (!file) return wrong("file");
  tensor.file = static_cast<int>(*file);
  const std::optional<std::string> digits = text_at(object, "checksum");
  const std::optional<std::uint64_t> checksum = digits ? from_hex(*digits) : std::nullopt;
  if (!checksum) return wrong("checksum");
  tensor.checksum = *checksum;
  if (!object.contains("dimension")) return tensor;
  const std::optional<std::int64_t> dimension =
      whole_number(object, "dimension", static_cast<std::int64_t>(tensor.shape.size()) - 1);
  if (!dimension) return wrong("dimension");
  tensor.dimension = *dimension;
  const std::int64_t size = tensor.shape[static_cast<std::size_t>(*dimension)];
  const std::optional<std::int64_t> offset = whole_number(object, "offset", size);
  if (!offset) return wrong("offset");
  tensor.offset = *offset;
  const std::optional<std::int64_t> length = whole_number(object, "length", size - *offset);
  if (!length || *length == 0) return wrong("length");
  tensor.length = *length;
  return tensor;
}

/// The parts of one tensor, in the order of their offsets.
Status check_parts(const std::vector<const StoredTensor*>& parts, const Manifest& manifest, std::string_view origin) {
  const StoredTensor& first = *parts.front();
  const auto fail = [&](const std::string& what) { return bad_manifest(origin, "tensor '" + first.name + "': " + what); };
  const auto file_of = [&](const StoredTensor& tensor) {
    return describe(manifest.files[static_cast<std::size_t>(tensor.file)]);
  };
  std::int64_t reached = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const StoredTensor& part = *parts[i];
    if (i > 0) {
      const std::string both = file_of(*parts[i - 1]) + ", and " + file_of(part);
      if (part.shape != first.shape || part.type != first.type || part.dimension != first.dimension)
        return fail("has another shape, type or dimension in " + both);
      if (part.dimension == kWhole || part.offset < reached) return fail("the same slice is in " + both);
    }
    if (part.dimension == kWhole) continue;
    if (part.offset > reached) return fail("the slice from " + std::to_string(reached) + " is missing");
    reached = part.offset + part.length;
  }
  if (first.dimension == kWhole || reached == first.shape[static_cast<std::size_t>(first.dimension)]) return {};
  return fail("the slice from " + std::to_string(reached) + " is missing");
}

}  // namespace

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName && name.front() != '.' &&
         std::ranges::none_of(name, [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' '; });
}

std::string describe(const CheckpointFile& file) { return file.name + ", written by rank " + std::to_string(file.rank); }

std::string to_json(const Manifest& manifest) {
  Json object{{"version", kManifestVersion}, {"about", Json::parse(manifest.about)}};
  object["files"] = Json::array();
  for (const CheckpointFile& file : manifest.files) object["files"].push_back({{"name", file.name}, {"rank", file.rank}});
  object["tensors"] = Json::array();
  for (const StoredTensor& tensor : manifest.tensors) {
    Json entry{{"name", tensor.name},
               {"shape", tensor.shape},
               {"type", tensor.type},
               {"file", tensor.file},
               {"checksum", to_hex(tensor.checksum)}};
    if (tensor.dimension != kWhole)
      entry.update(Json{{"dimension", tensor.dimension}, {"offset", tensor.offset}, {"length", tensor.length}});
    object["tensors"].push_back(std::move(entry));
  }
  return object.dump(1);
}

Result<Manifest> parse_manifest(std::string_view json, std::string_view origin) {
  Result<Json> parsed = pipeline::parse_object(json, origin, "manifest of a checkpoint");
  if (!parsed.ok()) return parsed.status();
  const Json& object = *parsed;
  if (whole_number(object, "version", kMostElements) != kManifestVersion) {
    return bad_manifest(origin, "'version' is not " + std::to_string(kManifestVersion) + ", the one that this program reads");
  }
  for (const char* key : {"about", "files", "tensors"}) {
    const bool is_right =
        object.contains(key) && (key == std::string_view("about") ? object[key].is_object() : object[key].is_array());
    if (!is_right) return bad_manifest(origin, std::string("'") + key + "' is missing or of another kind");
  }
  Manifest manifest;
  manifest.about = object["about"].dump(-1, ' ', false, Json::error_handler_t::replace);
  std::set<std::string> names;
  for (const Json& each : object["files"]) {
    Result<CheckpointFile> file = parse_file(each, "file " + std::to_string(manifest.files.size()), origin);
    if (!file.ok()) return file.status();
    if (!names.insert(file->name).second) return bad_manifest(origin, "'files' has " + describe(*file) + ", twice");
    manifest.files.push_back(*std::move(file));
  }
  for (const Json& each : object["tensors"]) {
    Result<StoredTensor> tensor =
        parse_tensor(each, manifest.files.size(), "tensor " + std::to_string(manifest.tensors.size()), origin);
    if (!tensor.ok()) return tensor.status();
    manifest.tensors.push_back(*std::move(tensor));
  }
  return manifest;
}

Status check_complete(const Manifest& manifest, std::string_view origin) {
  std::map<std::string_view, std::vector<const StoredTensor*>> parts;
  for (const StoredTensor& tensor : manifest.tensors) parts[tensor.name].push_back(&tensor);
  for (auto& [name, of_one] : parts) {
    std::ranges::stable_sort(of_one, {}, &StoredTensor::offset);
    if (Status status = check_parts(of_one, manifest, origin); !status.ok()) return status;
  }
  return {};
}

}  // namespace shoal::parallel
