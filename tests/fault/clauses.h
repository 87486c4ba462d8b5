// Parses reports of failures: clauses divided by "; " (src/diagnosis/failures.md). The first clause says what failed. Then come
// lists of ranks, "...: rank 1, rank 3", and where late ranks are instead, "rank 1: ...".
#pragma once

#include <algorithm>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/facts.h"

namespace shoal::testing {

inline std::vector<std::string_view> clauses_of(std::string_view report) {
  std::vector<std::string_view> clauses;
  for (std::size_t begin = 0; begin <= report.size();) {
    const std::size_t end = report.find("; ", begin);
    clauses.push_back(report.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) break;
    begin = end + 2;
  }
  return clauses;
}

/// The ranks that `text` names, in this order, by their numbers in the job: 3 for "rank 1 (rank 3 of the job)".
inline std::vector<int> ranks_named_in(std::string_view text) {
  constexpr std::string_view kRank = "rank ";
  constexpr std::string_view kDigits = "0123456789";
  std::vector<int> ranks;
  bool in_brackets = false;  // the next number is the same rank, as numbered in the job
  for (std::size_t at = text.find(kRank); at != std::string_view::npos; at = text.find(kRank, at)) {
    const bool inside = at >= 2 && text.substr(at - 2, 2) == " (";
    const std::size_t begin = at + kRank.size();
    at = std::min(text.find_first_not_of(kDigits, begin), text.size());
    if (at == begin) continue;
    const int number = std::atoi(std::string(text.substr(begin, at - begin)).c_str());
    if (inside && in_brackets && !ranks.empty()) {
      ranks.back() = number;
    } else {
      ranks.push_back(number);
    }
    in_brackets = text.substr(at, kRank.size() + 2) == " (rank ";
  }
  return ranks;
}

/// The first rank that the report names: its subject. -1: none.
inline int first_rank_named_in(std::string_view report) {
  const std::vector<int> ranks = ranks_named_in(report);
  return ranks.empty() ? -1 : ranks.front();
}

/// The ranks that a timeout's report blames: its first list and the list of ranks whose data is missing, but not the ranks that
/// wait in turn.
inline std::set<int> late_ranks_in(std::string_view report) {
  std::set<int> late;
  std::vector<std::string_view> clauses = clauses_of(report);
  bool first = true;
  for (std::size_t i = 1; i < clauses.size(); ++i) {
    const std::size_t list = clauses[i].find(": rank ");
    if (list == std::string_view::npos || clauses[i].starts_with("rank ")) continue;
    const std::vector<int> ranks = ranks_named_in(clauses[i].substr(list));
    if (!mentions(clauses[i], "waiting") && (first || mentions(clauses[i], "missing"))) late.insert(ranks.begin(), ranks.end());
    first = false;
  }
  return late;
}

/// Where late `rank` is instead, according to a report; empty if it does not say.
inline std::string whereabouts_in(std::string_view report, int rank) {
  const std::string beginning = "rank " + std::to_string(rank) + ": ";
  for (const std::string_view clause : clauses_of(report)) {
    if (clause.starts_with(beginning)) return std::string(clause.substr(beginning.size()));
  }
  return {};
}

}  // namespace shoal::testing
