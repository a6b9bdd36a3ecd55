// Looks at the processes of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace geopipe {

struct ProcessInfo {
  int64_t pid = 0;
  int64_t parent = 0;
  std::string state;                   // "R", "S", "Z", …
  std::vector<std::string> arguments;  // the program first; empty for a zombie

  bool Runs(const std::string& program) const;
};

// All descendants of `pid`, zombies left out.
std::vector<ProcessInfo> Descendants(int64_t pid);

// True while a process of this number and these arguments exists.
bool Exists(const ProcessInfo& process);

}  // namespace geopipe
