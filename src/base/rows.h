// Rows: a list of lists in two vectors, so that thousands of short lists need two allocations.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace shoal {

/// Grows at its end only: add() appends to the row that end_row() then closes.
/// Thread rule: none of its own; the owner's lock.
template <typename Value>
class Rows {
 public:
  void reserve(std::size_t rows, std::size_t values) {
    begins_.reserve(rows + 1);
    values_.reserve(values);
  }
  void add(const Value& value) { values_.push_back(value); }
  void end_row() { begins_.push_back(values_.size()); }

  /// Number of rows that have ended.
  [[nodiscard]] std::size_t size() const noexcept { return begins_.size() - 1; }
  [[nodiscard]] std::span<const Value> operator[](std::size_t row) const noexcept {
    return {values_.data() + begins_[row], values_.data() + begins_[row + 1]};
  }
  /// The values of all rows, in order.
  [[nodiscard]] std::span<const Value> values() const noexcept { return values_; }
  [[nodiscard]] std::span<Value> values() noexcept { return values_; }

 private:
  std::vector<Value> values_;
  std::vector<std::size_t> begins_{0};  // of every row, and the end of the last one
};

}  // namespace shoal
