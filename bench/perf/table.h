// The printed table: nccl-tests' columns, then shoal's own.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "bench/perf/record.h"

namespace shoal::perf {

/// The three lines above the rows.
[[nodiscard]] std::string table_header();
/// One line. `shoal` is shoal's row of the same size; a peer's row ends with its times divided by shoal's, one for each form.
[[nodiscard]] std::string table_row(const Row& row, DataType type, ReduceOp op);
/// For each form of both libraries: "# gloo time / shoal time, in-place : 3.2 over all sizes, 2.1 from 64 KiB (geometric
/// means)".
[[nodiscard]] std::string ratio_lines(std::span<const Row> rows, const std::string& peer);
/// "# Out of bounds values" and "# Avg bus bandwidth"; the latter over shoal's rows, both forms.
[[nodiscard]] std::string table_tail(std::size_t wrong, double average_busbw_gbs);

/// Wrong elements of all rows, peers included.
[[nodiscard]] std::size_t total_wrong(std::span<const Row> rows);
/// The mean of shoal's busbw over its rows and both forms, as nccl-tests reports it.
[[nodiscard]] double average_busbw_gbs(std::span<const Row> rows);

}  // namespace shoal::perf
