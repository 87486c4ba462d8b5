// Errors as values: a Status describes an error, Result<T> is a T or a Status.
#pragma once

#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace shoal {

/// The kinds of failure that a caller may want to distinguish. The numbers are part of the C API (shoal.h); append only.
enum class StatusCode : int {
  ok = 0,
  invalid_argument = 1,  ///< An argument or setting is not valid; nothing was started.
  mismatch = 2,          ///< Ranks disagree about a call; the message names both sides. Closes the communicator.
  timeout = 3,           ///< A deadline passed; the message names the ranks that are late. Closes the communicator.
  peer_failed = 4,       ///< A rank died or closed its connection. Closes the communicator.
  aborted = 5,           ///< The communicator was closed, here or by another rank.
  system_error = 6,      ///< The operating system refused something; the message has the system's error text.
  unsupported = 7,       ///< A valid request that this build, machine or algorithm cannot serve.
  not_found = 8,         ///< A key, file or name does not exist.
  internal = 9,          ///< A bug in shoal.
};

/// The name of a code as written in messages, for example "peer_failed".
std::string_view to_string(StatusCode code) noexcept;

/// The outcome of an operation. An ok Status is one null pointer: cheap to make, copy and test.
/// A message names what failed, the peer or file, and the system's error text.
/// Thread rule: a value; distinct copies may be used from distinct threads.
class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(StatusCode code, std::string message);

  [[nodiscard]] bool ok() const noexcept { return error_ == nullptr; }
  [[nodiscard]] StatusCode code() const noexcept { return ok() ? StatusCode::ok : error_->code; }
  /// Empty when ok().
  [[nodiscard]] const std::string& message() const noexcept;
  /// "ok", or "peer_failed: rank 3 ...".
  [[nodiscard]] std::string to_string() const;

 private:
  struct Error {
    StatusCode code;
    std::string message;
  };
  std::shared_ptr<const Error> error_;
};

/// A system_error with the text of errno_value appended: "bind 127.0.0.1:7592: Address already in use".
Status system_error(std::string_view what, int errno_value);

/// A value, or the Status with the reason why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor): `return value;` is the point
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.ok() && "a Result without a value needs an error");
  }

  [[nodiscard]] bool ok() const noexcept { return value_.has_value(); }
  [[nodiscard]] const Status& status() const noexcept { return status_; }

  [[nodiscard]] T& value() & { return assert(ok()), *value_; }
  [[nodiscard]] const T& value() const& { return assert(ok()), *value_; }
  [[nodiscard]] T&& value() && { return assert(ok()), *std::move(value_); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace shoal
