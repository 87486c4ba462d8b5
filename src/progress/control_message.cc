#include "src/progress/control_message.h"

#include <fmt/format.h>

#include "src/base/printable.h"

namespace shoal {

Status parse_abort(int from, std::span<const std::byte> data) {
  if (data.empty()) return {StatusCode::aborted, fmt::format("rank {} closed the communicator", from)};
  const auto raw = std::to_integer<int>(data[0]);
  const bool known = raw > static_cast<int>(StatusCode::ok) && raw <= static_cast<int>(StatusCode::internal);
  return {known ? static_cast<StatusCode>(raw) : StatusCode::aborted,
          printable({reinterpret_cast<const char*>(data.data()) + 1, data.size() - 1})};
}

std::optional<ControlMessage> ControlMessage::parse(int rank, std::uint32_t kind, const GroupName& group,
                                                    std::span<const std::byte> payload) {
  switch (const auto known = static_cast<Kind>(kind)) {
    case Kind::abort:
      return ControlMessage{known, group, rank, parse_abort(rank, payload), {}};
    case Kind::farewell:
    case Kind::goodbye:
    case Kind::waits:
    case Kind::calls:
      return ControlMessage{known, group, rank, {}, {payload.begin(), payload.end()}};
    case Kind::death:  // known from the connection only
      break;
  }
  return std::nullopt;
}

}  // namespace shoal
