// Status and Result: how every fallible function of Slackline reports failure.
//
// No exception crosses a module's interface. A message is written for a person: what was expected,
// what was found, what to do. The function that decides an error logs it (if anyone should read
// it); callers pass it on and do not log it again. Threading: values; no shared state.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace slackline {

enum class StatusCode : uint8_t {
  kOk = 0,
  kInvalidArgument,     // The caller's or peer's input is wrong; repeating it will not help.
  kNotFound,            // A file, tensor, chunk or peer that was named does not exist.
  kAlreadyExists,       // A name, port or identity is taken.
  kFailedPrecondition,  // The input is fine, the state is not (yet): wrong epoch, not initialised.
  kResourceExhausted,   // A bounded queue, pool or limit is full: back off and retry.
  kUnavailable,         // The peer cannot be reached now: reconnect and retry.
  kDeadlineExceeded,    // A bounded wait ran out.
  kAborted,             // The operation was given up because its channel or job ended.
  kDataLoss,            // Bytes are damaged: a checksum or a format check failed.
  kUnauthenticated,     // The peer did not prove who it is.
  kUnimplemented,       // The peer or build lacks this feature.
  kInternal,            // A bug of ours that could be survived.
};

// The code's name in upper case, e.g. "INVALID_ARGUMENT".
std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "OK" or "CODE: message".
  std::string ToString() const;

  friend bool operator==(const Status&, const Status&) = default;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

std::ostream& operator<<(std::ostream& out, const Status& status);

inline Status OkStatus() { return {}; }
Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status AlreadyExists(std::string message);
Status FailedPrecondition(std::string message);
Status ResourceExhausted(std::string message);
Status Unavailable(std::string message);
Status DeadlineExceeded(std::string message);
Status Aborted(std::string message);
Status DataLoss(std::string message);
Status Unauthenticated(std::string message);
Status Unimplemented(std::string message);
Status Internal(std::string message);
// The system's error number as a Status: "what: strerror (errno N)". ENOENT is NotFound, EADDRINUSE
// and EEXIST AlreadyExists, ENOSPC, EMFILE and ENOMEM ResourceExhausted, connection errors
// Unavailable, others Internal.
Status ErrnoStatus(int error_number, std::string_view what);

template <typename T>
using Result = tl::expected<T, Status>;

// Turns a Status into the error side of any Result<T>.
inline tl::unexpected<Status> Err(Status status) {
  return tl::unexpected<Status>(std::move(status));
}

}  // namespace slackline

#define SLACKLINE_CONCAT_INNER(a, b) a##b
#define SLACKLINE_CONCAT(a, b) SLACKLINE_CONCAT_INNER(a, b)

// Returns the error of a Status expression from a function that returns Status.
#define SLACKLINE_RETURN_IF_ERROR(expression)                \
  do {                                                       \
    ::slackline::Status status_macro_value = (expression);   \
    if (!status_macro_value.ok()) return status_macro_value; \
  } while (false)

// The same in a function that returns Result<T>.
#define SLACKLINE_RETURN_ERR_IF_ERROR(expression)                                         \
  do {                                                                                    \
    ::slackline::Status status_macro_value = (expression);                                \
    if (!status_macro_value.ok()) return ::slackline::Err(std::move(status_macro_value)); \
  } while (false)

// Declares `lhs` from a Result expression, or returns its error from a function returning
// Result<T>.
#define SLACKLINE_ASSIGN_OR_RETURN(lhs, expression) \
  SLACKLINE_ASSIGN_OR_RETURN_IMPL(SLACKLINE_CONCAT(result_macro_value_, __LINE__), lhs, expression)
#define SLACKLINE_ASSIGN_OR_RETURN_IMPL(result, lhs, expression)   \
  auto result = (expression);                                      \
  if (!result) return ::slackline::Err(std::move(result).error()); \
  lhs = std::move(*result)

// The same in a function that returns Status.
#define SLACKLINE_ASSIGN_OR_RETURN_STATUS(lhs, expression)                                     \
  SLACKLINE_ASSIGN_OR_RETURN_STATUS_IMPL(SLACKLINE_CONCAT(result_macro_value_, __LINE__), lhs, \
                                         expression)
#define SLACKLINE_ASSIGN_OR_RETURN_STATUS_IMPL(result, lhs, expression) \
  auto result = (expression);                                           \
  if (!result) return std::move(result).error();                        \
  lhs = std::move(*result)
