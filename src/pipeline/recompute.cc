#include "src/pipeline/recompute.h"

#include <fmt/format.h>

#include "src/pipeline/error.h"

namespace shoal::pipeline {

std::string_view to_string(Recompute recompute) noexcept {
  return recompute == Recompute::none ? "none" : recompute == Recompute::all ? "all" : "where_needed";
}

Result<Recompute> parse_recompute(std::string_view name) {
  for (const Recompute recompute : {Recompute::none, Recompute::all, Recompute::where_needed}) {
    if (name == to_string(recompute)) return recompute;
  }
  return invalid(fmt::format("no recomputation '{}'; there is none, all, where_needed", name));
}

}  // namespace shoal::pipeline
