#include "runtime/base/config/yaml_reader.h"

#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <random>
#include <string>

#include "tests/support/seed.h"

namespace geopipe {
namespace {

std::string ParseError(const std::string& text) { return std::string(ParseYaml(text, "f").status().message()); }

TEST_CASE("Every key and value knows its place") {
  const auto document = ParseYaml("a: 1\nb:\n  - x\n  - {c: \"5\", d: ~}\n", "f");
  REQUIRE(document.ok());
  const YamlNode& root = document->root;
  REQUIRE(root.is_map());
  CHECK(root.Find("a")->value.scalar == "1");
  CHECK_FALSE(root.Find("a")->value.quoted);
  const YamlNode& list = root.Find("b")->value;
  REQUIRE(list.items.size() == 2);
  CHECK(list.items[0].mark.line == 3);
  CHECK(list.items[0].mark.column == 5);
  CHECK(list.items[1].Find("c")->value.quoted);
  CHECK(list.items[1].Find("d")->value.is_null());
  CHECK(root.Find("z") == nullptr);
  const YamlMark c = document->Locate("b[1].c");
  CHECK(c.line == 4);
  CHECK(c.column == 9);
  CHECK(document->Locate("b[1].nothing.below").line == 4);
  CHECK(document->Locate("b[7]").line == 2);
  CHECK(document->Error(c, "b[1].c", "is wrong").message() == "f:4:9: b[1].c: is wrong");
  CHECK(document->Error({}, "", "is wrong").message() == "f: is wrong");
}

TEST_CASE("What YAML allows and we do not is refused at its place") {
  CHECK(ParseError("a: 1\nb: 2\na: 3\n") == "f:3:1: a: given twice, first on line 1; keep one of the two");
  CHECK(ParseError("x:\n  - {k: 1, k: 2}\n") == "f:2:12: x[0].k: given twice, first on line 2; keep one of the two");
  CHECK(ParseError("? [a, b]\n: 1\n") == "f:1:3: a key is a list; keys are plain text");
  CHECK(ParseError("a: !!int 5\n") == "f:1:4: a: the tag tag:yaml.org,2002:int is not used here; leave it out");
  CHECK(ParseError("a: 1\n---\nb: 2\n") == "f:3:1: a second document begins here; a file holds one");
  CHECK(ParseError("a: \xff") == "f: not UTF-8 text; save the file as UTF-8");
  CHECK(ParseError("a: [1, 2\nb: 3\n").starts_with("f:"));
  CHECK(ParseError("a:\n\tb: 1\n") == "f:2:1: a tab indents this line; YAML is indented with spaces");
  CHECK(ParseError("a: 1\n\tb: 1\n") == "f:2:1: a tab indents this line; YAML is indented with spaces");
  CHECK(ParseError("a:\n  b: 1\n  \tc: 1\n") == "f:3:3: a tab indents this line; YAML is indented with spaces");
  CHECK(ParseError("a: \t1\n").empty());
  CHECK(ParseError(std::string("a: 1\nb: \0\n", 11)) == "f:2:4: a NUL byte stands here; save the file as UTF-8 text");
  CHECK(ParseError(std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10)) ==
        "f: is a gzip file, not YAML text; decompress it first");
  CHECK(ParseError(std::string("\xff\xfe") + std::string("a\0:\0 \0"
                                                         "1\0\n\0b\0:\0 \0"
                                                         "2\0",
                                                         18)) ==
        "f: is text in UTF-16, not YAML text; save it as UTF-8");
  CHECK(ParseError("a: &x [*x]\n") == "f:1:8: a[0]: an alias stands inside what it names; write the value out");
  CHECK(ParseError(std::string(5000, '[')).starts_with("f:1:"));
}

TEST_CASE("The same key in different maps is no duplicate") {
  CHECK(ParseError("a: {k: 1}\nb: {k: 1}\nc: [{k: 1}, {j: 0, k: {k: 1}}]\n").empty());
}

TEST_CASE("An alias is a copy, and copies are counted") {
  const auto document = ParseYaml("a: &x {k: [1, 2]}\nb: *x\n", "f");
  REQUIRE(document.ok());
  CHECK(document->root.Find("b")->value.Find("k")->value.items.size() == 2);
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    laughs += fmt::format("a{}: &a{} [x", i, i);
    for (int j = 0; j < 10; ++j) {
      laughs += fmt::format(", *a{}", i - 1);
    }
    laughs += "]\n";
  }
  CHECK(ParseError(laughs).find("more than 1048576 values") != std::string::npos);
}

TEST_CASE("Random damage to a file is never a crash") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::mt19937_64 random(seed);
  const std::string text = "a: {b: [1, 'two', \"three\"], c: &x ~}\nd: *x\ne: |\n  text\n  more\nf: >-\n  folded\n";
  const std::string alphabet = "{}[]:,-&*!|>'\"#%@`?~ \n\tab1\xc3\xff";
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = text;
    for (uint64_t change = 0; change <= random() % 4; ++change) {
      damaged[random() % damaged.size()] = alphabet[random() % alphabet.size()];
    }
    const auto document = ParseYaml(damaged, "f");
    CHECK((document.ok() || document.status().code() == absl::StatusCode::kInvalidArgument));
  }
}

}  // namespace
}  // namespace geopipe
