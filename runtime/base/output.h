// The two streams that people read. Nothing else in the product writes to them (tests/architecture), because what a
// stream does not take (a full disk, a pipe without a reader, a closed descriptor) must neither end a daemon nor hide
// behind another exit code. Any thread.
#pragma once

#include <absl/status/status.h>
#include <fmt/format.h>

#include <cstdio>
#include <string_view>
#include <utility>

namespace geopipe {

// The first call of every main. Takes those of descriptors 0 to 2 that are closed, so that no file or socket becomes
// one of them: reading 0 and writing 1 or 2 fails as if they were closed still. A write to a pipe without a reader, or
// beyond the limit on a file's size, is an error, not a signal.
void PrepareStandardStreams();

// Writes `text` to standard output or standard error. What standard output does not take is told by FlushOutput; what
// standard error does not take is lost, for there is nobody to tell.
void WriteTo(std::FILE* stream, std::string_view text);

template <class... Args>
void PrintTo(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  WriteTo(stream, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
void PrintOut(fmt::format_string<Args...> format, Args&&... args) {
  PrintTo(stdout, format, std::forward<Args>(args)...);
}

template <class... Args>
void PrintErr(fmt::format_string<Args...> format, Args&&... args) {
  PrintTo(stderr, format, std::forward<Args>(args)...);
}

// Writes out what standard output has buffered. The first error since the process began, with the system's reason.
absl::Status FlushOutput();

// Makes the last call of a main: returns `exit_code`, or 1 when that is 0 and standard output has lost something, which
// it reports on standard error in the name of `program`. A reader that has gone away is no error: it has all that it
// wants.
int ExitCodeAfterOutput(std::string_view program, int exit_code);

}  // namespace geopipe
