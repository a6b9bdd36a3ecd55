// Checks for bugs: conditions that hold in every correct program, whatever the world does. Failures of the world are an
// absl::Status instead. A failed check prints the condition, the place and a message, then aborts; checks stay on in
// release builds.
#pragma once

#include <fmt/format.h>

#include <string>

namespace geopipe::internal {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace geopipe::internal

// GP_CHECK(condition) or GP_CHECK(condition, "format {}", argument...).
#define GP_CHECK(condition, ...)                                                                       \
  do {                                                                                                 \
    if (!(condition)) [[unlikely]] {                                                                   \
      ::geopipe::internal::CheckFailed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
    }                                                                                                  \
  } while (false)
