// Names of jobs whose name was applied again. The latest job of a name is found under the name; an earlier one that is
// kept, under NAME@RUN: in the core, in the store and in the log. No job can be called so (kJobNameRule). Clients are
// told name and run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace geopipe {

struct RunName {
  std::string name;
  int64_t run = 0;  // 0: the latest
};

// "tiny@1". REQUIRES: run > 0.
std::string KeptName(std::string_view name, int64_t run);
bool IsKeptName(std::string_view found_under);
RunName RunNameOf(std::string_view found_under);
// For people: "job tiny", "run 1 of job tiny".
std::string DisplayName(const RunName& run);

}  // namespace geopipe
