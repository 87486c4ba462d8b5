#include "src/selector/selector.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/selector/predict.h"

namespace shoal {
namespace {

// The model does not know more precisely than this; within it the algorithm that comes first in algorithms() wins.
constexpr double kAboutEqual = 1.02;

/// ok, or why `algorithm` cannot serve. Building one Program checks the arguments as well as supports().
Status can_serve(const Algorithm& algorithm, const Topology& topology, const Collective& collective) {
  return build_program(algorithm, topology, collective, 0).status();
}

std::vector<Candidate> rate_all(const Topology& topology, const Collective& collective) {
  std::vector<Candidate> candidates;
  for (const Algorithm& algorithm : algorithms()) {
    Candidate candidate{&algorithm, can_serve(algorithm, topology, collective), 0};
    if (candidate.status.ok()) candidate.predicted_us = predict_us(algorithm, topology, collective);
    candidates.push_back(std::move(candidate));
  }
  // Stable: of equals the first in algorithms() stays first.
  std::ranges::stable_sort(candidates, [](const Candidate& a, const Candidate& b) {
    if (a.status.ok() != b.status.ok()) return a.status.ok();
    return a.status.ok() && a.predicted_us < b.predicted_us;
  });
  return candidates;
}

Result<Choice> force(const Topology& topology, const Collective& collective, std::string_view name) {
  const auto algorithm = find_algorithm(name);
  if (!algorithm.ok()) return algorithm.status();
  if (Status status = can_serve(**algorithm, topology, collective); !status.ok()) return status;
  return Choice{*algorithm, predict_us(**algorithm, topology, collective)};
}

/// The simplest of the candidates that are about as fast as the fastest; or why there is none.
Result<Choice> best(const std::vector<Candidate>& candidates) {
  const Candidate* best = &candidates.front();
  if (!best->status.ok()) return best->status;
  const double limit_us = best->predicted_us * kAboutEqual;
  for (const Candidate& candidate : candidates) {
    if (!candidate.status.ok() || candidate.predicted_us > limit_us) break;
    if (candidate.algorithm < best->algorithm) best = &candidate;
  }
  return Choice{best->algorithm, best->predicted_us};
}

std::string reason_for(const std::vector<Candidate>& candidates, const Choice& choice, bool forced) {
  const std::string_view name = choice.algorithm->name;
  const Candidate& fastest = candidates.front();
  if (forced && fastest.algorithm != choice.algorithm) {
    return fmt::format("{} was asked for; {} is predicted to take {:.1f} us instead of {:.1f} us", name,
                       fastest.algorithm->name, fastest.predicted_us, choice.predicted_us);
  }
  if (forced) return fmt::format("{} was asked for, and is predicted to be the fastest", name);
  if (candidates.size() < 2 || !candidates[1].status.ok())
    return fmt::format("{} is the only algorithm that serves this call", name);
  if (fastest.algorithm != choice.algorithm) {
    return fmt::format("{} is predicted to take {:.1f} us, {} {:.1f} us: about equal, and {} is the simpler one", name,
                       choice.predicted_us, fastest.algorithm->name, fastest.predicted_us, name);
  }
  const Candidate& second = candidates[1];
  return fmt::format("{} is predicted to take {:.1f} us, the next best, {}, {:.1f} us", name, choice.predicted_us,
                     second.algorithm->name, second.predicted_us);
}

}  // namespace

Result<Choice> select(const Topology& topology, const Collective& collective, std::string_view forced_algorithm) {
  if (!forced_algorithm.empty()) return force(topology, collective, forced_algorithm);
  return best(rate_all(topology, collective));
}

Result<Explanation> explain(const Topology& topology, const Collective& collective, std::string_view forced_algorithm) {
  Explanation explanation{rate_all(topology, collective), {}, {}};
  const bool forced = !forced_algorithm.empty();
  const auto choice = forced ? force(topology, collective, forced_algorithm) : best(explanation.candidates);
  if (!choice.ok()) return choice.status();
  explanation.choice = *choice;
  explanation.reason = reason_for(explanation.candidates, explanation.choice, forced);
  return explanation;
}

}  // namespace shoal
