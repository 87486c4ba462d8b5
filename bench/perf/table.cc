#include "bench/perf/table.h"

#include <utility>
#include <vector>

#include <fmt/format.h>

namespace shoal::perf {
namespace {

/// Seven characters, with as many digits as are significant: 0.118, 14.32, 143.2, 51234.
std::string seven(double value) {
  const int digits = value < 10 ? 3 : value < 100 ? 2 : value < 10000 ? 1 : 0;
  return fmt::format("{:7.{}f}", value, digits);
}

std::string figures(const std::optional<Record>& record) {
  if (!record) return fmt::format("{:>9}{:>8}{:>8}{:>7}", "N/A", "N/A", "N/A", "N/A");
  const std::string wrong = record->collective == CollectiveKind::barrier ? "N/A" : fmt::format("{}", record->wrong);
  return fmt::format("{:>9}{:>8}{:>8}{:>7}", seven(record->latency_us), seven(record->algbw_gbs), seven(record->busbw_gbs),
                     wrong);
}

std::string ratio_text(const std::optional<Record>& record) {
  const bool comparable = record && record->time_over_shoal;
  return comparable ? fmt::format("{:>9.2f}", *record->time_over_shoal) : fmt::format("{:>9}", "-");
}

}  // namespace

std::string table_header() {
  std::string text;
  text += fmt::format("#{:>59}{:>32}{:>32}\n", "", "out-of-place          ", "in-place          ");
  text += fmt::format("#{:>12}{:>13}{:>10}{:>9}{:>8}", "size", "count", "type", "redop", "root");
  for (int form = 0; form < 2; ++form) text += fmt::format("{:>9}{:>8}{:>8}{:>7}", "time", "algbw", "busbw", "#wrong");
  text += fmt::format("{:>9}{:>8}{:>7}{:>9}{:>9}  {:<8} {:<20} {}\n", "p10", "p90", "%limit", "ratio", "in-place", "library",
                      "algorithm", "transport");
  text += fmt::format("#{:>12}{:>13}{:>10}{:>9}{:>8}", "(B)", "(elements)", "", "", "");
  for (int form = 0; form < 2; ++form) text += fmt::format("{:>9}{:>8}{:>8}{:>7}", "(us)", "(GB/s)", "(GB/s)", "");
  text += fmt::format("{:>9}{:>8}\n", "(us)", "(us)");
  return text;
}

std::string table_row(const Row& row, DataType type, ReduceOp op) {
  const Record* main = row.main();
  const bool shows_op = main == nullptr || reduces(main->collective);
  std::string text = fmt::format("{:>13}{:>13}{:>10}{:>9}{:>8}", row.bytes, row.count, to_string(type),
                                 shows_op ? to_string(op) : "none", row.root);
  if (main == nullptr) return text + fmt::format("  {}: {}\n", row.library, row.unsupported);
  text += figures(row.out_of_place) + figures(row.in_place);
  text += fmt::format("{:>9}{:>8}", seven(main->latency_us_p10), seven(main->latency_us_p90));
  text += main->limit_fraction ? fmt::format("{:>7.1f}", *main->limit_fraction * 100) : fmt::format("{:>7}", "-");
  text += ratio_text(row.out_of_place) + ratio_text(row.in_place);
  text += fmt::format("  {:<8} {:<20} {}\n", row.library, main->algorithm, main->transport);
  return text;
}

std::string table_tail(std::size_t wrong, double average) {
  return fmt::format("# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:.6g}\n", wrong, wrong == 0 ? "OK" : "FAILED",
                     average);
}

std::string ratio_lines(std::span<const Row> rows, const std::string& peer) {
  constexpr std::size_t kLargeBytes = 64 << 10;
  std::string text;
  for (const auto& [form, name] : {std::pair{&Row::out_of_place, "out-of-place"}, std::pair{&Row::in_place, "in-place"}}) {
    const std::vector<Ratio> ratios = ratios_to_shoal(rows, peer, form);
    if (ratios.empty()) continue;
    const double large = mean_ratio(ratios, kLargeBytes);
    text += fmt::format("# {} time / shoal time, {:<12} : {:.3f} over all sizes, {} from 64 KiB (geometric means)\n", peer,
                        name, mean_ratio(ratios, 0), large > 0 ? fmt::format("{:.3f}", large) : "none");
  }
  return text;
}

std::size_t total_wrong(std::span<const Row> rows) {
  std::size_t wrong = 0;
  for (const Row& row : rows) {
    for (const auto* record : {&row.out_of_place, &row.in_place}) wrong += *record ? (*record)->wrong : 0;
  }
  return wrong;
}

double average_busbw_gbs(std::span<const Row> rows) {
  double sum = 0;
  int figures = 0;
  for (const Row& row : rows) {
    if (row.library != "shoal") continue;
    for (const auto* record : {&row.out_of_place, &row.in_place}) {
      if (!*record) continue;
      sum += (*record)->busbw_gbs;
      ++figures;
    }
  }
  return figures > 0 ? sum / figures : 0;
}

}  // namespace shoal::perf
