#include "bench/train/pipeline/exchange.h"

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "torch_plugin/parallel/partition/text_of_rank_0.h"

namespace shoal::train {
namespace {

using Json = nlohmann::ordered_json;

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
  const std::string mine = settings.dump(-1, ' ', false, Json::error_handler_t::replace);
  const Result<std::vector<std::string>> texts =
      parallel::texts_of_ranks(*job.control, refusal.ok() ? Result<std::string>(mine) : refusal);
  if (!texts.ok()) return texts.status();
  std::vector<Json> all;
  for (const std::string& text : *texts) all.push_back(Json::parse(text));
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (Status status = difference(all[0], all[rank], rank); !status.ok()) return status;
  }
  return {};
}

}  // namespace shoal::train
