#include "torch_plugin/parallel/partition/text_of_rank_0.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace shoal::parallel {

Result<std::string> text_of_rank_0(Communicator& communicator, const Result<std::string>& own) {
  std::array<std::int64_t, 2> header{};  // code, bytes
  std::string text;
  if (communicator.rank() == 0) {
    text = own.ok() ? *own : own.status().message();
    header = {static_cast<std::int64_t>(own.status().code()), static_cast<std::int64_t>(text.size())};
  }
  if (Status status = communicator.broadcast(header.data(), header.size(), DataType::int64, 0); !status.ok()) return status;
  text.resize(static_cast<std::size_t>(header[1]));
  if (Status status = communicator.broadcast(text.data(), text.size(), DataType::uint8, 0); !status.ok()) return status;
  if (header[0] != static_cast<std::int64_t>(StatusCode::ok)) return Status(static_cast<StatusCode>(header[0]), text);
  return text;
}

Result<std::vector<std::string>> texts_of_ranks(Communicator& communicator, const Result<std::string>& own) {
  const auto ranks = static_cast<std::size_t>(communicator.size());
  const std::string mine = own.ok() ? *own : own.status().message();
  using Header = std::array<std::int64_t, 2>;  // code, bytes
  const Header header{static_cast<std::int64_t>(own.status().code()), static_cast<std::int64_t>(mine.size())};
  std::vector<Header> headers(ranks);
  if (Status status = communicator.all_gather(header.data(), headers.data(), header.size(), DataType::int64); !status.ok())
    return status;
  const auto longest = static_cast<std::size_t>(std::ranges::max(headers, {}, [](const Header& each) { return each[1]; })[1]);
  std::string padded = mine;
  padded.resize(longest);
  std::string all(longest * ranks, '\0');
  if (Status status = communicator.all_gather(padded.data(), all.data(), longest, DataType::uint8); !status.ok()) return status;
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    texts.push_back(all.substr(rank * longest, static_cast<std::size_t>(headers[rank][1])));
  }
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    if (headers[rank][0] == static_cast<std::int64_t>(StatusCode::ok)) continue;
    const auto is_this = [&](std::size_t other) { return headers[other] == headers[rank] && texts[other] == texts[rank]; };
    bool everywhere = true;
    for (std::size_t other = 0; other < ranks; ++other) everywhere = everywhere && is_this(other);
    const std::string where = everywhere ? "" : "rank " + std::to_string(rank) + ": ";
    return Status(static_cast<StatusCode>(headers[rank][0]), where + texts[rank]);
  }
  return texts;
}

Status agree_on_outcome(Communicator& communicator, const Status& own) {
  return texts_of_ranks(communicator, own.ok() ? Result<std::string>(std::string()) : own).status();
}

}  // namespace shoal::parallel
