#include "optimizer/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace geopipe::internal {

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, condition, message.empty() ? "" : ": ",
               message.c_str());
  std::abort();
}

}  // namespace geopipe::internal
