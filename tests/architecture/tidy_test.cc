// Layout and habits, on the tree as it is and on planted faults.
#include <catch2/catch.hpp>

#include "tests/architecture/tidy_rules.h"

namespace geopipe::architecture {
namespace {

namespace fs = std::filesystem;

TEST_CASE("text files are tidy") {
  Findings findings;
  for (const SourceFile& file : ReadTree({".h", ".cc", ".proto", ".txt", ".sh", ".md", ".yaml", ".json", ".py"})) {
    Append(CheckText(file), findings);
  }
  CHECK(ToString(findings) == "");
}

TEST_CASE("sources keep to the house rules") {
  Findings findings;
  Findings warnings;
  const std::vector<SourceFile> files = ReadTree({".h", ".cc"});
  for (const SourceFile& file : files) {
    Append(CheckSource(file), findings);
    Append(CheckLength(file), warnings);
  }
  CHECK(ToString(findings) == "");
  if (!warnings.empty()) {
    WARN(ToString(warnings));
  }
  CHECK(files.size() > 50);
}

TEST_CASE("no source or header is an orphan") {
  CHECK(ToString(CheckOrphans(ReadTree({".h", ".cc"}), ReadTree({"CMakeLists.txt"}))) == "");
}

TEST_CASE("the top level holds only what the architecture names") {
  std::vector<std::string> entries;
  for (const auto& entry : fs::directory_iterator(SourceDir())) {
    entries.push_back(entry.path().filename().string());
  }
  CHECK(ToString(CheckTopLevel(entries)) == "");
}

TEST_CASE("each row of docs/operating.md names a test that is there") {
  const std::vector<SourceFile> pages = ReadTree({"docs/operating.md"});
  REQUIRE(pages.size() == 1);
  CHECK(ToString(CheckNamedTests(pages.front(), ReadTree({"_test.cc"}))) == "");
}

TEST_CASE("planted: rows whose tests are not there") {
  const std::vector<SourceFile> tests{
      {"tests/a_test.cc", "TEST_CASE(\"it holds\") {\nTEST_CASE(\"so does this\", \"\") {\n"}};
  const auto [row, message] = GENERATE(table<std::string, std::string>({
      {"| it | `tests/a_test.cc`: it holds |", ""},
      {"| it | `tests/a_test.cc`: it holds<br>`tests/a_test.cc`: so does this |", ""},
      {"| it | by hand |", "x.md:7: a row names no test"},
      {"| it | `tests/a_test.cc`: it hold |", "tests/a_test.cc has no test named 'it hold'"},
      {"| it | `tests/a_test.cc`: it holds<br>`tests/b_test.cc`: it holds |", "tests/b_test.cc has no test named"},
  }));
  CAPTURE(row);
  const std::string other = "| symptom | type |\n|---|---|\n| none | nothing |\n\n";  // a table of something else
  CheckFound(CheckNamedTests({"x.md", other + "| what | test |\n|---|---|\n" + row + "\n\n" + other}, tests), message);
}

TEST_CASE("planted: untidy text") {
  const auto [content, message] = GENERATE(table<std::string, std::string>({
      {"fine\n", ""},
      {"a\n\tb\n", "x.txt:2: has a tab"},
      {"a \n", "trailing blanks"},
      {"a\r\n", "trailing blanks"},
      {"// TO"
       "DO: later\n",
       "has a TO"
       "DO"},
      {"MASTO"
       "DON\n",
       ""},
      {"a", "one newline"},
      {"a\n\n", "one newline"},
  }));
  CAPTURE(content);
  CheckFound(CheckText({"x.txt", content}), message);
}

std::string Repeat(const std::string& text, int times) {
  std::string repeated;
  for (int i = 0; i < times; ++i) {
    repeated += text;
  }
  return repeated;
}

TEST_CASE("planted: sources that break the house rules") {
  const std::string long_function = "int F(int a,\n      int b) {\n" + Repeat("  a;\n", kMaxFunctionLines) + "}\n";
  const std::string full_function = "int F() {\n" + Repeat("  a;\n", kMaxFunctionLines - 2) + "}\n";
  const std::string long_table = "const int kTable[] = {\n" + Repeat("  1,\n", 100) + "};\n";
  const auto [path, content, message] = GENERATE_COPY(table<std::string, std::string, std::string>({
      {"agent/x.h", "// What.\n#pragma once\n", ""},
      {"agent/x.h", "#pragma once\n", "x.h:1: a header starts with a comment"},
      {"agent/x.h", "// What.\n", "no #pragma once"},
      {"agent/x.cc", long_function, "x.cc:1: function of 78 lines"},
      {"agent/x.cc", full_function + full_function, ""},
      {"agent/x.cc", long_table, ""},
      {"tests/agent/x.cc", "TEST_CASE(\"one; two\") {\n", "two tests to CTest"},
      {"tests/agent/x.cc", "TEST_CASE(\"one, two\") { F(); }\n", ""},
      {"agent/x.cc", "  fmt::print(stderr, \"error\");\n", "x.cc:1: has `fmt::print`"},
      {"agent/x.cc", "  std::cerr << 1;\n", "output.h"},
      {"runtime/base/output.cc", "  std::fwrite(p, 1, n, stream);\n", ""},
      {"tests/agent/x.cc", "  fmt::print(\"{}\", 1);\n", ""},
      {"agent/x.cc",
       "} catch ("
       "...) {\n",
       "name the exception"},
      {"agent/x.cc",
       "  sys"
       "tem(\"ls\");\n",
       "without a shell"},
      {"agent/x.cc",
       "sleep"
       "_for(1s);\n",
       ""},
      {"tests/agent/x.cc",
       "sleep"
       "_for(1s);\n",
       "fake clock"},
      {"tests/agent/x.cc",
       "seed = Test"
       "Seed();\n",
       "does not print it"},
      {"tests/agent/x.cc",
       "seed = Test"
       "Seed();\nINFO(\"GEOPIPE_TEST_SEED=\" << seed);\n",
       ""},
  }));
  CAPTURE(path, content);
  CheckFound(CheckSource({path, content}), message);
}

TEST_CASE("planted: a long source") {
  CHECK(ToString(CheckLength({"agent/x.cc", Repeat("\n", kLongFileLines)})) == "");
  CHECK_THAT(ToString(CheckLength({"agent/x.cc", Repeat("\n", kLongFileLines + 1)})), Catch::Contains("has 601 lines"));
}

TEST_CASE("no folder is too large") { CHECK(ToString(CheckFolders(ReadTree({".h", ".cc"}))) == ""); }

TEST_CASE("planted: a folder that is too large") {
  const std::string half = Repeat("\n", kMaxFolderLines / 2);
  CHECK(ToString(CheckFolders({{"agent/x.cc", half}, {"agent/y.cc", half}, {"tests/z.cc", half + half + half}})) == "");
  CHECK_THAT(ToString(CheckFolders({{"agent/x.cc", half + "\n"}, {"agent/y.cc", half}})),
             Catch::Contains("has 5501 lines"));
}

TEST_CASE("planted: orphans") {
  const std::vector<SourceFile> cmake = {
      {"agent/CMakeLists.txt", "geopipe_module(agent\n  SOURCES agent.cc sub/b.cc)\n"}};
  CHECK(ToString(CheckOrphans({{"agent/agent.cc", ""}, {"agent/sub/b.cc", ""}}, cmake)) == "");
  CHECK_THAT(ToString(CheckOrphans({{"agent/ent.cc", ""}}, cmake)), Catch::Contains("listed in no CMakeLists.txt"));
  CHECK_THAT(ToString(CheckOrphans({{"agent/c.cc", ""}}, cmake)), Catch::Contains("listed in no CMakeLists.txt"));
  const SourceFile user{"agent/agent.cc", "#include \"agent/agent.h\"\n"};
  CHECK(ToString(CheckOrphans({user, {"agent/agent.h", ""}}, cmake)) == "");
  CHECK_THAT(ToString(CheckOrphans({user, {"agent/other.h", ""}}, cmake)), Catch::Contains("included by nothing"));
}

TEST_CASE("planted: a name that the top level does not have") {
  CHECK(ToString(CheckTopLevel({"agent", "README.md", "build"})) == "");
  CHECK_THAT(ToString(CheckTopLevel({"scripts"})), Catch::Contains("scripts"));
}

}  // namespace
}  // namespace geopipe::architecture
