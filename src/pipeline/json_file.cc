#include "src/pipeline/json_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "src/pipeline/error.h"

namespace shoal::pipeline {
namespace {

constexpr std::size_t kMaxFileBytes = 16 << 20;
constexpr int kMaxDepth = 16;  // the parser's tree is freed recursively

}  // namespace

Result<std::string> read_text(const std::string& path, std::string_view what) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "r"), std::fclose);
  if (file == nullptr) return system_error(fmt::format("open the {} {}", what, path), errno);
  std::string text(kMaxFileBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return system_error(fmt::format("read the {} {}", what, path), errno);
  if (text.size() > kMaxFileBytes) {
    return invalid(fmt::format("{} is not a {}: larger than {} bytes", path, what, kMaxFileBytes));
  }
  return text;
}

Result<Json> parse_object(std::string_view json, std::string_view origin, std::string_view what) {
  std::string last_key;
  bool too_deep = false;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key) last_key = parsed.get<std::string>();
    too_deep = too_deep || depth > kMaxDepth;
    return !too_deep;  // what is deeper is dropped
  };
  Json object = Json::parse(json, watch, /*allow_exceptions=*/false);
  if (too_deep) {
    return invalid(fmt::format("{} is not a {}: nested deeper than {}", origin, what, kMaxDepth));
  }
  if (object.is_discarded()) {
    return invalid(fmt::format("{} is not a {}: broken JSON{}", origin, what,
                               last_key.empty() ? "" : fmt::format(" at or behind the field '{}'", last_key)));
  }
  if (!object.is_object()) {
    return invalid(fmt::format("{} is not a {}: not a JSON object", origin, what));
  }
  return object;
}

}  // namespace shoal::pipeline
