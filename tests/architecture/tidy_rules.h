// Rules of layout and habit that neither the compiler nor clang-tidy checks, as functions over a file's path and text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tests/architecture/finding.h"
#include "tests/architecture/source_tree.h"

namespace geopipe::architecture {

constexpr int kLongFileLines = 600;
constexpr int kMaxFunctionLines = 75;
constexpr int kMaxFolderLines = 5'500;

// Any text file: no tabs (except in Makefiles), no trailing blanks, no marks of unfinished work, ends with one newline.
Findings CheckText(const SourceFile& file);

// A source is cut by concept, so a long one is no error, but somebody should look at it.
Findings CheckLength(const SourceFile& file);

// A folder of the product that has grown beyond kMaxFolderLines is more than one room.
Findings CheckFolders(const std::vector<SourceFile>& sources);

// C++: the longest function, headers begin with a comment and have `#pragma once`, no exception caught without
// a name, no shell, and in tests no sleeping and no random seed that a failure would not print.
Findings CheckSource(const SourceFile& file);

// Every source is named in the CMakeLists.txt of its folder or of one above, and every header of the product is
// included by some other file.
Findings CheckOrphans(const std::vector<SourceFile>& sources, const std::vector<SourceFile>& cmake_lists);

// Tables whose last column is "test" end each row with the tests that hold it true, as "`tests/a_test.cc`: the test's
// name", several separated by "<br>": every row names one, and every one named is there.
Findings CheckNamedTests(const SourceFile& page, const std::vector<SourceFile>& tests);

// Checks the entries of the source root, by name: only those that the architecture names, and some that are never
// committed.
Findings CheckTopLevel(const std::vector<std::string>& entries);

}  // namespace geopipe::architecture
