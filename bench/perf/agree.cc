#include "bench/perf/agree.h"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>

namespace shoal::perf {

Result<std::vector<std::vector<double>>> gather(Communicator& communicator, const std::vector<double>& values) {
  const std::size_t count = values.size();
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<double> all(count * ranks);
  if (Status status = communicator.all_gather(values.data(), all.data(), count, DataType::float64); !status.ok()) return status;
  std::vector<std::vector<double>> by_rank;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(rank * count);
    by_rank.emplace_back(first, first + static_cast<std::ptrdiff_t>(count));
  }
  return by_rank;
}

Result<std::vector<std::string>> gather_text(Communicator& communicator, const std::string& text) {
  constexpr std::size_t kBytes = 1001;
  const auto ranks = static_cast<std::size_t>(communicator.size());
  std::vector<char> own(kBytes, '\0');
  text.copy(own.data(), kBytes - 1);
  std::vector<char> all(kBytes * ranks);
  if (Status status = communicator.all_gather(own.data(), all.data(), kBytes, DataType::uint8); !status.ok()) return status;
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank) texts.emplace_back(all.data() + rank * kBytes);
  return texts;
}

Result<double> decide(Communicator& communicator, double value) {
  if (Status status = communicator.broadcast(&value, 1, DataType::float64, 0); !status.ok()) return status;
  return value;
}

Status agree(Communicator& communicator, const Status& status) {
  Result<std::vector<std::vector<double>>> codes = gather(communicator, {static_cast<double>(status.code())});
  if (!codes.ok()) return codes.status();
  const auto bad = std::find_if(codes->begin(), codes->end(), [](const auto& code) { return code[0] != 0; });
  if (bad == codes->end()) return {};
  Result<std::vector<std::string>> messages = gather_text(communicator, status.message());
  if (!messages.ok()) return messages.status();
  const auto rank = static_cast<std::size_t>(bad - codes->begin());
  return Status(static_cast<StatusCode>((*bad)[0]), fmt::format("rank {}: {}", rank, (*messages)[rank]));
}

}  // namespace shoal::perf
