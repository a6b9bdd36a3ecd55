// Reads the source tree and what the build knows of it: files, commands' output, the compiler's dependency lists.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe::architecture {

struct SourceFile {
  std::string path;  // from the source root
  std::string content;
};

// GEOPIPE_SOURCE_DIR and GEOPIPE_BINARY_DIR, symlinks resolved.
std::filesystem::path SourceDir();
std::filesystem::path BinaryDir();

std::string ReadFile(const std::filesystem::path& path);

// The files of the product below the source root whose names end in one of `suffixes`, sorted by path. Build folders
// and tests/golden are left out.
std::vector<SourceFile> ReadTree(const std::vector<std::string>& suffixes);

struct CommandResult {
  int exit_code = -1;
  std::string output;  // stdout and stderr
};

// Runs one /bin/sh command line and waits for it.
CommandResult RunCommand(const std::string& command);

// Quotes one argument for /bin/sh.
std::string ShellQuote(std::string_view argument);

// The value of a variable in CMakeCache.txt; empty when it has none.
std::string CacheVariable(std::string_view name);

// One source of the build and every file that the compiler opened for it, from `ninja -t deps`; of sources that are
// compiled as one, each has what it was the first to open. Paths inside the source root are relative to it, generated
// files start with "build/", others are absolute; symlinks are resolved.
struct ObjectDeps {
  std::string source;
  std::vector<std::string> headers;
};

// True when the build folder is Ninja's (otherwise there are no dependency lists to read).
bool BuildIsNinja();
std::vector<ObjectDeps> ReadObjectDeps();
// Parses the output of `ninja -t deps`, with paths relative to `binary_dir`.
std::vector<ObjectDeps> ParseNinjaDeps(std::string_view text, const std::filesystem::path& source_dir,
                                       const std::filesystem::path& binary_dir);

}  // namespace geopipe::architecture
