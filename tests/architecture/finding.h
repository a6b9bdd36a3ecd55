// One finding of a check of the source tree.
#pragma once

#include <string>
#include <vector>

namespace geopipe::architecture {

struct Finding {
  std::string path;  // from the source root
  int line = 0;      // 0: the file as a whole
  std::string message;
};

using Findings = std::vector<Finding>;

// One line per finding, as a compiler would print it: "path:line: message".
std::string ToString(const Findings& findings);

void Append(Findings more, Findings& all);

// Fails the test unless the findings say `message`, or there are none when it is empty.
void CheckFound(const Findings& findings, const std::string& message);

}  // namespace geopipe::architecture
