// Propagation of absl::Status and absl::StatusOr.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <utility>

#define GP_MACRO_CONCAT_INNER(a, b) a##b
#define GP_MACRO_CONCAT(a, b) GP_MACRO_CONCAT_INNER(a, b)

// Returns from the enclosing function when `expression` (an absl::Status) is an error.
#define GP_RETURN_IF_ERROR(expression)                              \
  do {                                                              \
    if (absl::Status gp_status_ = (expression); !gp_status_.ok()) { \
      return gp_status_;                                            \
    }                                                               \
  } while (false)

// NOLINTBEGIN(bugprone-macro-parentheses): neither a declaration nor the name of a variable can stand in parentheses.

// GP_ASSIGN_OR_RETURN(auto x, F()): assigns the value of an absl::StatusOr, or returns its error.
#define GP_ASSIGN_OR_RETURN(declaration, expression) \
  GP_ASSIGN_OR_RETURN_INNER(GP_MACRO_CONCAT(gp_statusor_, __LINE__), declaration, expression)

#define GP_ASSIGN_OR_RETURN_INNER(temporary, declaration, expression) \
  auto temporary = (expression);                                      \
  if (!temporary.ok()) {                                              \
    return std::move(temporary).status();                             \
  }                                                                   \
  declaration = *std::move(temporary)

// NOLINTEND(bugprone-macro-parentheses)
