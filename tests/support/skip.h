// Lets a test say that it cannot run here.
#pragma once

#include <string_view>

namespace geopipe {

// Exit code of a program of tests in which a test was skipped and no assertion failed. ctest counts it as skipped; any
// failure exits with 1 instead.
inline constexpr int kSkipReturnCode = 77;

// Prints why the running test cannot check anything here and makes it count as skipped; the caller returns. Not for
// half a test: what can be checked everywhere is a test of its own, which a skip would hide.
void Skip(std::string_view why);

// True when a test of this process was skipped.
bool AnySkipped();

}  // namespace geopipe
