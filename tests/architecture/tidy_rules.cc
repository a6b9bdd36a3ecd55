#include "tests/architecture/tidy_rules.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/architecture/layer_rules.h"

namespace geopipe::architecture {
namespace {

std::vector<std::string> Lines(const std::string& content) {
  std::vector<std::string> lines;
  std::istringstream stream(content);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

bool IsWordChar(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool HasWord(std::string_view line, std::string_view word) {
  for (size_t at = line.find(word); at != std::string_view::npos; at = line.find(word, at + 1)) {
    const bool starts = at == 0 || !IsWordChar(line[at - 1]);
    const size_t end = at + word.size();
    if (starts && (end == line.size() || !IsWordChar(line[end]))) {
      return true;
    }
  }
  return false;
}

struct Forbidden {
  std::string text;
  std::string remedy;
  bool in_tests_only = false;
};

// Written in two halves, so that this file passes its own check.
const std::vector<Forbidden>& ForbiddenInSources() {
  static const std::vector<Forbidden> forbidden = {
      {std::string("catch (") + "...)", "name the exception that the third-party call throws"},
      {std::string("sys") + "tem(", "start processes without a shell"},
      {std::string("sleep") + "_for", "use the fake clock or wait for the event itself", true},
      {std::string("u") + "sleep(", "use the fake clock or wait for the event itself", true},
  };
  return forbidden;
}

// Standard output and error have one writer, which no full disk and no closed descriptor can end.
Findings CheckStreams(const SourceFile& file, const std::vector<std::string>& lines) {
  static const std::array<std::string_view, 10> raw = {"fmt::print",  "std::cout",  "std::cerr",  "std::clog",
                                                       "std::printf", "std::puts",  "std::fputs", "std::fprintf",
                                                       "std::fwrite", "std::fflush"};
  static const std::array<std::string_view, 3> writers = {"runtime/base/output.cc", "runtime/base/output.h",
                                                          "optimizer/base/check.cc"};
  Findings findings;
  if (file.path.starts_with("tests/") || std::ranges::find(writers, file.path) != writers.end()) {
    return findings;
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const std::string_view call : raw) {
      if (HasWord(lines[i], call)) {
        findings.push_back({file.path, static_cast<int>(i) + 1,
                            "has `" + std::string(call) + "`: print with runtime/base/output.h, which cannot throw"});
      }
    }
  }
  return findings;
}

// A function starts where a line at column 0 opens a parameter list and the body's brace ends that line or a following
// indented one; it ends with a brace at column 0. (Members inside a class body are left to clang-tidy and the eye.)
Findings CheckFunctionLengths(const SourceFile& file, const std::vector<std::string>& lines) {
  static const std::array<std::string_view, 8> not_functions = {"namespace", "class", "struct", "enum",
                                                                "union",     "using", "#",      "//"};
  Findings findings;
  size_t start = 0;
  bool in_function = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string& line = lines[i];
    const bool at_column_0 = !line.empty() && line[0] != ' ' && line[0] != '}';
    if (at_column_0) {
      start = i;
      in_function = line.find('(') != std::string::npos &&
                    std::none_of(not_functions.begin(), not_functions.end(),
                                 [&](std::string_view word) { return line.starts_with(word); });
    }
    if (line == "}" && in_function) {
      const int length = static_cast<int>(i - start) + 1;
      if (length > kMaxFunctionLines) {
        findings.push_back(
            {file.path, static_cast<int>(start) + 1,
             "function of " + std::to_string(length) + " lines; at most " + std::to_string(kMaxFunctionLines)});
      }
      in_function = false;
    }
  }
  return findings;
}

Findings CheckHeader(const SourceFile& file, const std::vector<std::string>& lines) {
  Findings findings;
  if (lines.empty() || !lines[0].starts_with("//")) {
    findings.push_back({file.path, 1, "a header starts with a comment that says what it is"});
  }
  if (std::find(lines.begin(), lines.end(), "#pragma once") == lines.end()) {
    findings.push_back({file.path, 0, "has no #pragma once"});
  }
  return findings;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

// True when the text names the file as a whole word.
bool Names(const std::string& cmake, const std::string& file) {
  for (size_t at = cmake.find(file); at != std::string::npos; at = cmake.find(file, at + 1)) {
    const size_t end = at + file.size();
    const bool starts = at == 0 || std::isspace(static_cast<unsigned char>(cmake[at - 1])) != 0 || cmake[at - 1] == '/';
    if (starts &&
        (end == cmake.size() || std::isspace(static_cast<unsigned char>(cmake[end])) != 0 || cmake[end] == ')')) {
      return true;
    }
  }
  return false;
}

}  // namespace

Findings CheckText(const SourceFile& file) {
  static const std::array<std::string, 3> unfinished = {std::string("TO") + "DO", std::string("FIX") + "ME",
                                                        std::string("XX") + "X"};
  Findings findings;
  const std::vector<std::string> lines = Lines(file.content);
  for (size_t i = 0; i < lines.size(); ++i) {
    const int number = static_cast<int>(i) + 1;
    const std::string& line = lines[i];
    if (line.find('\t') != std::string::npos) {
      findings.push_back({file.path, number, "has a tab"});
    }
    if (!line.empty() && (line.back() == ' ' || line.back() == '\r')) {
      findings.push_back({file.path, number, "has trailing blanks"});
    }
    for (const std::string& mark : unfinished) {
      if (HasWord(line, mark)) {
        findings.push_back({file.path, number, "has a " + mark});
      }
    }
  }
  if (!file.content.empty() && (!file.content.ends_with('\n') || file.content.ends_with("\n\n"))) {
    findings.push_back({file.path, 0, "does not end with one newline"});
  }
  return findings;
}

Findings CheckLength(const SourceFile& file) {
  const auto lines = std::count(file.content.begin(), file.content.end(), '\n');
  if (lines <= kLongFileLines) {
    return {};
  }
  return {{file.path, 0, "has " + std::to_string(lines) + " lines; are they more than one concept?"}};
}

Findings CheckFolders(const std::vector<SourceFile>& sources) {
  std::map<std::string, std::ptrdiff_t> lines;
  for (const SourceFile& file : sources) {
    if (!file.path.starts_with("tests/")) {
      lines[file.path.substr(0, file.path.rfind('/'))] += std::ranges::count(file.content, '\n');
    }
  }
  Findings findings;
  for (const auto& [folder, count] : lines) {
    if (count > kMaxFolderLines) {
      findings.push_back({folder, 0, "has " + std::to_string(count) + " lines; move what is a concept of its own out"});
    }
  }
  return findings;
}

Findings CheckSource(const SourceFile& file) {
  const std::vector<std::string> lines = Lines(file.content);
  const bool is_test = file.path.starts_with("tests/");
  Findings findings;
  for (size_t i = 0; i < lines.size(); ++i) {
    for (const Forbidden& forbidden : ForbiddenInSources()) {
      if ((is_test || !forbidden.in_tests_only) && lines[i].find(forbidden.text) != std::string::npos) {
        findings.push_back({file.path, static_cast<int>(i) + 1, "has `" + forbidden.text + "`: " + forbidden.remedy});
      }
    }
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    constexpr std::string_view kTestCase = "TEST_CASE(\"";
    const size_t name_end = lines[i].find('"', kTestCase.size());
    if (lines[i].starts_with(kTestCase) && lines[i].find(';') < name_end) {
      findings.push_back(
          {file.path, static_cast<int>(i) + 1, "a test's name with a `;` is two tests to CTest, and neither runs"});
    }
  }
  Append(CheckStreams(file, lines), findings);
  if (file.path.ends_with(".h")) {
    Append(CheckHeader(file, lines), findings);
  } else {
    Append(CheckFunctionLengths(file, lines), findings);
  }
  const bool draws_a_seed = is_test && file.content.find(std::string("= Test") + "Seed(") != std::string::npos;
  if (draws_a_seed && file.content.find("GEOPIPE_TEST_SEED=") == std::string::npos) {
    findings.push_back({file.path, 0, "uses TestSeed() and does not print it: INFO(\"GEOPIPE_TEST_SEED=\" << seed)"});
  }
  return findings;
}

Findings CheckOrphans(const std::vector<SourceFile>& sources, const std::vector<SourceFile>& cmake_lists) {
  std::map<std::string, const std::string*> cmake_of_folder;
  for (const SourceFile& cmake : cmake_lists) {
    cmake_of_folder[FolderOf(cmake.path)] = &cmake.content;
  }
  std::set<std::string> included;
  for (const SourceFile& source : sources) {
    for (const Include& include : DirectIncludes(source.content)) {
      if (FolderOf(source.path) + '/' + include.name != source.path) {
        included.insert(include.name);
      }
    }
  }
  Findings findings;
  for (const SourceFile& source : sources) {
    if (source.path.ends_with(".h")) {
      if (!included.contains(source.path)) {
        findings.push_back({source.path, 0, "is included by nothing"});
      }
      continue;
    }
    bool listed = std::any_of(cmake_lists.begin(), cmake_lists.end(), [&](const SourceFile& cmake) {
      return cmake.content.find("${CMAKE_SOURCE_DIR}/" + source.path) != std::string::npos;
    });
    for (std::string folder = FolderOf(source.path); !listed && !folder.empty(); folder = FolderOf(folder)) {
      const auto cmake = cmake_of_folder.find(folder);
      listed = cmake != cmake_of_folder.end() && Names(*cmake->second, source.path.substr(folder.size() + 1));
    }
    if (!listed) {
      findings.push_back({source.path, 0, "is listed in no CMakeLists.txt"});
    }
  }
  return findings;
}

Findings CheckNamedTests(const SourceFile& page, const std::vector<SourceFile>& tests) {
  Findings findings;
  std::istringstream lines(page.content);
  int number = 0;
  bool names_tests = false;  // the table does
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const bool heading = line.ends_with("| test |");
    names_tests = heading || (names_tests && line.starts_with('|'));
    if (!names_tests || heading || !line.starts_with("| ")) {
      continue;
    }
    static const std::regex kReference("`(tests/[^`]+)`: (.+?)(?: \\||<br>)");
    const auto begin = std::sregex_iterator(line.begin(), line.end(), kReference);
    if (begin == std::sregex_iterator()) {
      findings.push_back({page.path, number, "a row names no test"});
    }
    for (auto reference = begin; reference != std::sregex_iterator(); ++reference) {
      const std::string path = (*reference)[1];
      const std::string name = (*reference)[2];
      const auto file = std::ranges::find(tests, path, &SourceFile::path);
      static const std::regex kBreak("(TEST_CASE\\()\\s+|\"\\s*\n\\s*\"");  // of a long name
      const std::string content = file == tests.end() ? "" : std::regex_replace(file->content, kBreak, "$1");
      if (content.find("TEST_CASE(\"" + name + "\"") == std::string::npos) {
        findings.push_back({page.path, number, path + " has no test named '" + name + "'"});
      }
    }
  }
  return findings;
}

Findings CheckTopLevel(const std::vector<std::string>& entries) {
  static const std::set<std::string> allowed = {
      "CMakeLists.txt", "proto", "coordinator", "agent", "runtime", "optimizer", "deploy", "tests", "README.md", ".ci",
      ".clang-format", ".clang-tidy", "CMakePresets.json", "LICENSE", "docs", ".gitignore", "CHANGELOG.md",
      // Never committed.
      ".git", "build", ".cache", ".device", "compile_commands.json"};
  Findings findings;
  for (const std::string& entry : entries) {
    const bool report = entry.ends_with(".playground");  // of a run from here; never committed either
    if (!allowed.contains(entry) && !report) {
      findings.push_back({entry, 0, "is not among the names of the top level"});
    }
  }
  return findings;
}

}  // namespace geopipe::architecture
