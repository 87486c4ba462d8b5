#include "torch_plugin/parallel/partition/text_of_rank_0.h"

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

}  // namespace shoal::parallel
