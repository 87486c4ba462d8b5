#include "bench/train/pipeline/exchange.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <nlohmann/json.hpp>

namespace shoal::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kRefusal = "refusal";

/// A text of each rank.
Result<std::vector<std::string>> all_texts(const Job& job, const std::string& own) {
  const auto ranks = static_cast<std::size_t>(job.size());
  const auto bytes = static_cast<std::int64_t>(own.size());
  std::vector<std::int64_t> sizes(ranks);
  if (Status status = job.control->all_gather(&bytes, sizes.data(), 1, DataType::int64); !status.ok()) return status;
  const auto longest = static_cast<std::size_t>(std::ranges::max(sizes));
  std::string padded = own;
  padded.resize(longest);
  std::string all(longest * ranks, '\0');
  if (Status status = job.control->all_gather(padded.data(), all.data(), longest, DataType::uint8); !status.ok()) return status;
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts.push_back(all.substr(rank * longest, static_cast<std::size_t>(sizes[rank])));
  }
  return texts;
}

std::string value_text(const Json& object, const std::string& key) {
  return object.contains(key) ? object[key].dump() : "not given";
}

/// The first key of `first`, then of `other`, that they do not share.
Status difference(const Json& first, const Json& other, std::size_t rank) {
  for (const Json* const object : {&first, &other}) {
    for (const auto& [key, value] : object->items()) {
      if (value_text(first, key) == value_text(other, key)) continue;
      return {StatusCode::mismatch, "the ranks differ in " + key + ": " + value_text(first, key) + " on rank 0, " +
                                        value_text(other, key) + " on rank " + std::to_string(rank) +
                                        "; start all ranks with the same options"};
    }
  }
  return {};
}

}  // namespace

Status agree_on_settings(const Job& job, const Json& settings, const Status& refusal) {
  Json own = settings;
  if (!refusal.ok()) own = {{kRefusal, refusal.message()}, {"code", static_cast<int>(refusal.code())}};
  const Result<std::vector<std::string>> texts = all_texts(job, own.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!texts.ok()) return texts.status();
  std::vector<Json> all;
  for (const std::string& text : *texts) all.push_back(Json::parse(text));
  const auto refused = std::ranges::find_if(all, [](const Json& each) { return each.contains(kRefusal); });
  if (refused != all.end()) {
    const bool everywhere = std::ranges::all_of(all, [&](const Json& each) { return each == *refused; });
    const std::string where = everywhere ? "" : "rank " + std::to_string(refused - all.begin()) + ": ";
    return {static_cast<StatusCode>((*refused)["code"].get<int>()), where + (*refused)[kRefusal].get<std::string>()};
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (Status status = difference(all[0], all[rank], rank); !status.ok()) return status;
  }
  return {};
}

}  // namespace shoal::train
