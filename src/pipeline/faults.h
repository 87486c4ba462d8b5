// Faults: collects what the Verifier finds, the first twenty.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/pipeline/verifier.h"

namespace shoal::pipeline {

class Faults {
 public:
  static constexpr std::size_t kMost = 20;

  void add(Fault fault) {
    if (faults_.size() < kMost) faults_.push_back(std::move(fault));
  }

  void add(FaultKind kind, std::string message) { add({kind, -1, -1, -1, -1, std::move(message)}); }

  /// The message names the place. Without a position the action is one that the rank lacks.
  void add(FaultKind kind, int rank, std::optional<std::size_t> position, const Action& action, const std::string& what) {
    if (faults_.size() >= kMost) return;
    const std::string place = position ? describe(rank, *position, action) : "rank " + std::to_string(rank);
    const int at = position ? static_cast<int>(*position) : -1;
    faults_.push_back({kind, rank, at, action.stage, action.microbatch, place + ": " + what});
  }

  [[nodiscard]] bool none() const { return faults_.empty(); }
  [[nodiscard]] std::vector<Fault> take() { return std::move(faults_); }

 private:
  std::vector<Fault> faults_;
};

}  // namespace shoal::pipeline
