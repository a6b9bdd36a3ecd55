#include "tests/architecture/source_tree.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>

namespace geopipe::architecture {
namespace {

namespace fs = std::filesystem;

bool IsInside(const fs::path& path, const fs::path& folder) {
  const auto [end, rest] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end();
}

// The path as ObjectDeps states it. The build folder may lie inside the source folder, so it is looked at first.
std::string Normalise(const fs::path& path, const fs::path& source_dir, const fs::path& binary_dir) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  if (IsInside(real, binary_dir)) {
    return "build/" + real.lexically_relative(binary_dir).string();
  }
  return IsInside(real, source_dir) ? real.lexically_relative(source_dir).string() : real.string();
}

bool EndsWithOneOf(const std::string& name, const std::vector<std::string>& suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(), [&](const std::string& s) { return name.ends_with(s); });
}

}  // namespace

fs::path SourceDir() { return fs::canonical(GEOPIPE_SOURCE_DIR); }
fs::path BinaryDir() { return fs::canonical(GEOPIPE_BINARY_DIR); }

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  INFO("reading " << path);
  REQUIRE(file.good());
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::vector<SourceFile> ReadTree(const std::vector<std::string>& suffixes) {
  const fs::path root = SourceDir();
  std::vector<SourceFile> files;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator(); ++it) {
    const std::string path = it->path().lexically_relative(root).string();
    if (it->is_directory()) {
      if (path == "build" || path == ".git" || path == ".cache" || path == "tests/golden") {
        it.disable_recursion_pending();
      }
    } else if (it->is_regular_file() && EndsWithOneOf(path, suffixes)) {
      files.push_back({path, ReadFile(it->path())});
    }
  }
  std::sort(files.begin(), files.end(), [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

CommandResult RunCommand(const std::string& command) {
  CommandResult result;
  FILE* pipe = popen(("{ " + command + "\n} 2>&1 </dev/null").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::array<char, 65536> buffer{};
  for (size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    result.output.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

std::string ShellQuote(std::string_view argument) {
  std::string quoted = "'";
  for (const char c : argument) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return quoted + "'";
}

std::string CacheVariable(std::string_view name) {
  std::istringstream cache(ReadFile(BinaryDir() / "CMakeCache.txt"));
  for (std::string line; std::getline(cache, line);) {
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == ':') {
      return line.substr(line.find('=') + 1);
    }
  }
  return "";
}

bool BuildIsNinja() { return fs::exists(BinaryDir() / "build.ninja"); }

std::vector<ObjectDeps> ParseNinjaDeps(std::string_view text, const fs::path& source_dir, const fs::path& binary_dir) {
  std::map<std::string, std::string>
      normalised;  // resolving symlinks is slow and the same headers come again and again
  std::vector<ObjectDeps> objects;
  std::istringstream lines{std::string(text)};
  bool valid = false;
  bool first = false;
  bool joins = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) {
      continue;
    }
    if (!line.starts_with(' ')) {  // "folder/x.cc.o: #deps 3, deps mtime 1 (VALID)"
      valid = line.ends_with("(VALID)") && line.find(".o: #deps") != std::string::npos;
      first = true;
      continue;
    }
    if (!valid) {
      continue;
    }
    const std::string raw = line.substr(line.find_first_not_of(' '));
    auto [entry, is_new] = normalised.try_emplace(raw);
    if (is_new) {
      entry->second = Normalise(fs::path(raw).is_absolute() ? fs::path(raw) : binary_dir / raw, source_dir, binary_dir);
    }
    // The compiler lists the source itself first. One that only joins others is followed by these, each by what it is
    // the first to open.
    joins = first ? entry->second.find("/Unity/unity_") != std::string::npos : joins;
    if (first || (joins && entry->second.ends_with(".cc"))) {
      objects.push_back({.source = entry->second, .headers = {}});
      first = false;
    } else {
      objects.back().headers.push_back(entry->second);
    }
  }
  return objects;
}

std::vector<ObjectDeps> ReadObjectDeps() {
  const std::string ninja = CacheVariable("CMAKE_MAKE_PROGRAM");
  const CommandResult result = RunCommand(ShellQuote(ninja) + " -C " + ShellQuote(BinaryDir().string()) + " -t deps");
  INFO(result.output.substr(0, 1000));
  REQUIRE(result.exit_code == 0);
  std::vector<ObjectDeps> objects = ParseNinjaDeps(result.output, SourceDir(), BinaryDir());
  // Objects of sources that are gone stay in Ninja's log until it is compacted.
  std::erase_if(objects, [](const ObjectDeps& o) {
    return !o.source.starts_with("build/") && !fs::exists(SourceDir() / o.source);
  });
  return objects;
}

}  // namespace geopipe::architecture
