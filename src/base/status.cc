#include <shoal/status.h>

#include <system_error>

namespace shoal {

std::string_view to_string(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid_argument";
    case StatusCode::mismatch:
      return "mismatch";
    case StatusCode::timeout:
      return "timeout";
    case StatusCode::peer_failed:
      return "peer_failed";
    case StatusCode::aborted:
      return "aborted";
    case StatusCode::system_error:
      return "system_error";
    case StatusCode::unsupported:
      return "unsupported";
    case StatusCode::not_found:
      return "not_found";
    case StatusCode::internal:
      return "internal";
  }
  return "?";
}

Status::Status(StatusCode code, std::string message)
    : error_(code == StatusCode::ok ? nullptr : std::make_shared<const Error>(Error{code, std::move(message)})) {}

const std::string& Status::message() const noexcept {
  static const std::string empty;
  return ok() ? empty : error_->message;
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(shoal::to_string(error_->code)) + ": " + error_->message;
}

Status system_error(std::string_view what, int errno_value) {
  return {StatusCode::system_error, std::string(what) + ": " + std::generic_category().message(errno_value)};
}

}  // namespace shoal
