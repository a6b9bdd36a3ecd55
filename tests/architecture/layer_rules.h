// The checks of layers and of purity, as functions over what was read, so that planted faults can be tested too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/architecture/finding.h"
#include "tests/architecture/layer_table.h"
#include "tests/architecture/source_tree.h"

namespace geopipe::architecture {

// The `#include`s of a file, in order: name without brackets or quotes, and which they were.
struct Include {
  std::string name;
  bool angled = false;
  int line = 0;
};
std::vector<Include> DirectIncludes(std::string_view content);

// Every project header that the compiler opened for the object lies in its own folder or in one the table allows, and
// every library's header in a file that may use that library. Objects of tests and of generated sources are not looked
// at.
Findings CheckObject(const ObjectDeps& object);

// Every folder that a row names is used: some source of the row's folder includes a header of it or, of those that come
// along, some header that such a source includes does, and no source itself. `sources` are the product's.
Findings CheckGrants(const std::vector<Layer>& layers, const std::vector<SourceFile>& sources);

// Checks the direct includes of a file: project headers by their full path and from allowed folders, system headers
// only where the table has them, and in optimizer/ nothing off the list of pure headers.
Findings CheckIncludes(const SourceFile& file);

// The output of `nm -uC` on an archive of optimizer/: no line names what a pure library cannot need.
Findings CheckUndefinedSymbols(std::string_view archive, std::string_view nm_output);

}  // namespace geopipe::architecture
