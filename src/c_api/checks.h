// What all files of the C API use: handles, checks of arguments, the message of the last failure.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <shoal/communicator.h>
#include <shoal/shoal.h>

struct shoal_comm {
  std::unique_ptr<shoal::Communicator> communicator;
  int ranks = communicator->size();
};

namespace shoal {

/// Keeps the message of a failure for shoal_last_error_message().
shoal_status report(StatusCode code, std::string_view message) noexcept;
shoal_status report(const Status& status) noexcept;

inline Status invalid(std::string message) { return {StatusCode::invalid_argument, std::move(message)}; }

/// Checks arguments that are possible in C and not in C++: null handles and out parameters, and ints outside the enums. The
/// Communicator checks everything else. Keeps the first fault; its message is made later, in a place that may throw.
class Checks {
 public:
  explicit Checks(const char* function) noexcept : function_(function) {}

  Checks& not_null(const char* argument, const void* pointer) noexcept {
    return fault_if(pointer == nullptr, argument, Fault::null);
  }
  /// Also clears `*handle`, so that a failed call leaves no garbage there.
  template <typename Handle>
  Checks& out(const char* argument, Handle* handle) noexcept {
    if (handle != nullptr) *handle = nullptr;
    return not_null(argument, handle);
  }
  Checks& type(shoal_data_type value) noexcept {
    return fault_if(value < 0 || value >= kDataTypeCount, "type", Fault::type, value);
  }
  Checks& op(shoal_reduce_op value) noexcept { return fault_if(value < 0 || value >= kReduceOpCount, "op", Fault::op, value); }
  Checks& not_negative(const char* argument, std::int64_t value) noexcept {
    return fault_if(value < 0, argument, Fault::negative, value);
  }

  [[nodiscard]] const char* function() const noexcept { return function_; }
  [[nodiscard]] Status status() const {
    if (fault_ == Fault::none) return {};
    const std::string where = std::string(function_) + ": " + argument_;
    switch (fault_) {
      case Fault::null:
        return invalid(where + " is NULL");
      case Fault::negative:
        return invalid(where + " is " + std::to_string(value_) + "; 0 or more is needed");
      case Fault::type:
        return invalid(where + " is " + std::to_string(value_) +
                       ", an unknown data type; known: SHOAL_FLOAT32 (0) to SHOAL_FLOAT8_E5M2 (" +
                       std::to_string(kDataTypeCount - 1) + ")");
      default:
        return invalid(where + " is " + std::to_string(value_) +
                       ", an unknown operation; known: SHOAL_SUM (0) to SHOAL_BXOR (" + std::to_string(kReduceOpCount - 1) +
                       ")");
    }
  }

 private:
  enum class Fault { none, null, negative, type, op };

  Checks& fault_if(bool wrong, const char* argument, Fault fault, std::int64_t value = 0) noexcept {
    if (wrong && fault_ == Fault::none) {
      fault_ = fault;
      argument_ = argument;
      value_ = value;
    }
    return *this;
  }

  const char* function_;
  const char* argument_ = "";
  Fault fault_ = Fault::none;
  std::int64_t value_ = 0;
};

/// Runs `body`, which returns a Status, if `checks` found no fault. Every exception becomes a status.
template <typename Body>
shoal_status guarded(const Checks& checks, Body body) noexcept {
  const auto unexpected = [&checks](const char* what) {
    std::array<char, 512> message{};
    std::snprintf(message.data(), message.size(), "%s: unexpected exception: %s", checks.function(), what);
    return report(StatusCode::internal, message.data());
  };
  try {
    const Status fault = checks.status();
    return report(fault.ok() ? body() : fault);
  } catch (const std::bad_alloc&) {
    return report(StatusCode::system_error, "out of memory");
  } catch (const std::exception& exception) {
    return unexpected(exception.what());
  } catch (...) {
    return unexpected("not derived from std::exception");
  }
}

/// `timeout_ms`, at most ten years, so that the clock cannot overflow.
inline std::chrono::milliseconds clamped_ms(std::int64_t timeout_ms) {
  constexpr std::int64_t kTenYearsMs = std::int64_t{10} * 365 * 24 * 3600 * 1000;
  return std::chrono::milliseconds(std::min(timeout_ms, kTenYearsMs));
}

/// The options that shoal_set_call_options() has set for this thread.
CallOptions call_options();

/// What a C function got that C++ could not express: its handle, and ints for the type and the operation.
template <typename Comm>
struct Given {
  const char* function;
  Comm* comm;
  shoal_data_type type = 0;
  shoal_reduce_op op = 0;
};

/// Counts of a Request, before submit() knows how many there are.
inline Request::Counts counts_at(const std::size_t* counts) { return {counts, 0}; }

/// Checks what is `given`, then calls `body` with `request`, in which the C functions leave the type, the operation and the
/// number of counts open.
template <typename Comm, typename Body>
shoal_status submit_checked(Checks checks, const Given<Comm>& given, Request request, Body body) noexcept {
  checks.not_null("comm", given.comm);
  const bool two_lists = request.kind == CollectiveKind::all_to_all;
  if (request.has_counts) checks.not_null(two_lists ? "send_counts" : "counts", request.counts.data());
  if (request.has_counts && two_lists) checks.not_null("receive_counts", request.receive_counts.data());
  checks.type(given.type).op(given.op);
  return guarded(checks, [&] {
    request.type = static_cast<DataType>(given.type);
    request.op = static_cast<ReduceOp>(given.op);
    const auto ranks = static_cast<std::size_t>(given.comm->ranks);
    if (request.has_counts) request.counts = {request.counts.data(), ranks};
    if (request.has_counts && two_lists) request.receive_counts = {request.receive_counts.data(), ranks};
    return body(request);
  });
}

}  // namespace shoal
