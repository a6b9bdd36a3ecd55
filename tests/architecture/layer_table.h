// The layers of docs/architecture.md as data: which folder may see which folders (the table of CMakeLists.txt, as the
// build wrote it down), libraries and system headers. The tests beside it hold the tree to these tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace geopipe::architecture {

struct Layer {
  std::string folder;
  std::vector<std::string> may_include;  // project folders; its own is always allowed
  std::vector<std::string> come_along;   // whose headers only those of the above, or its own, include
};

// One row per folder that is compiled. "proto" stands for the generated messages and stubs.
const std::vector<Layer>& Layers();

// nullptr when the table has no such folder.
const Layer* FindLayer(std::string_view folder);

// Headers and the folders or files below which they may be used.
struct HeaderUse {
  std::string_view name;                  // what a finding calls it
  std::vector<std::string_view> headers;  // prefixes: of the path below /usr/include, or of the name in `#include <>`
  std::vector<std::string_view> users;    // prefixes of source paths
};

// Third-party libraries, checked on all that the compiler opened for a source.
const std::vector<HeaderUse>& Libraries();

// Headers of the standard library and the system, checked where a file includes them directly.
const std::vector<HeaderUse>& SystemHeaders();

// Headers that optimizer/ may include directly with angle brackets: none that reads a clock, a file, the network or
// global randomness, and no threads.
const std::vector<std::string_view>& PureHeaders();

// Parts of (demangled) symbols that no archive of optimizer/ may need from elsewhere.
const std::vector<std::string_view>& ImpureSymbols();

}  // namespace geopipe::architecture
