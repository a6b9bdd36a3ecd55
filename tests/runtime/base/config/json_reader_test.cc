#include "runtime/base/config/json_reader.h"

#include <catch2/catch.hpp>
#include <string>
#include <utility>
#include <vector>

namespace geopipe {
namespace {

std::string JsonError(std::string_view text, const JsonLimits& limits = {}) {
  const absl::StatusOr<YamlDocument> document = ParseJsonDocument(text, "f.json", limits);
  return document.ok() ? "" : std::string(document.status().message());
}

TEST_CASE("JSON is read into the tree of YAML, with places") {
  const auto document =
      ParseJsonDocument("{\n \"a\": [1, -2.5e+3, \"x\"],\n \"b\": {\"c\": true, \"d\": null}\n}", "f");
  REQUIRE(document.ok());
  const YamlNode& list = document->root.Find("a")->value;
  REQUIRE(list.items.size() == 3);
  CHECK(list.items[0].scalar == "1");
  CHECK_FALSE(list.items[0].quoted);
  CHECK(list.items[1].scalar == "-2.5e+3");
  CHECK(list.items[2].scalar == "x");
  CHECK(list.items[2].quoted);
  const YamlNode& map = document->root.Find("b")->value;
  CHECK(map.Find("c")->value.scalar == "true");
  CHECK(map.Find("d")->value.is_null());
  CHECK(document->Locate("a[1]").line == 2);
  CHECK(document->Locate("a[1]").column == 11);
  CHECK(document->Locate("b.c").line == 3);
}

TEST_CASE("Escapes stand for characters, pairs of surrogates for one") {
  const auto document = ParseJsonDocument(R"(["\"\\\/\b\f\n\r\t", "\u0041\u00e9\u4e16", "\ud83e\udd99", "🦙"])", "f");
  REQUIRE(document.ok());
  CHECK(document->root.items[0].scalar == "\"\\/\b\f\n\r\t");
  CHECK(document->root.items[1].scalar == "A\u00e9\u4e16");
  CHECK(document->root.items[2].scalar == "\U0001f999");
  CHECK(document->root.items[3].scalar == "\U0001f999");
}

TEST_CASE("What is no JSON is refused as JSON, with its place") {
  const auto [text, error] = GENERATE(table<std::string, std::string>({
      {"", "f.json:1:1: not valid JSON: the end of the file stands where a value is needed"},
      {"{\"a\": ", "f.json:1:7: not valid JSON: the end of the file stands where a value is needed"},
      {"{\"a\"\n 1}", "f.json:2:2: not valid JSON: '1' stands where ':' is needed after a key"},
      {"{\"a\": 1 \"b\": 2}", "f.json:1:9: not valid JSON: '\"' stands where ',' or '}' is needed"},
      {"{\"a\": 1,}", "f.json:1:9: not valid JSON: a comma stands before '}'"},
      {"[1, 2,]", "f.json:1:7: not valid JSON: a comma stands before ']'"},
      {"{a: 1}", "f.json:1:2: not valid JSON: 'a' stands where a key in double quotes is needed"},
      {"{'a': 1}", "f.json:1:2: not valid JSON: ''' stands where a key in double quotes is needed"},
      {"{\"a\": NaN}", "f.json:1:7: not valid JSON: NaN, which JSON does not have, stands where a value is needed"},
      {"{\"a\": -Infinity}",
       "f.json:1:8: not valid JSON: Infinity, which JSON does not have, stands where a digit is needed"},
      {"{\"a\": None}", "f.json:1:7: not valid JSON: Python's None stands where a value is needed"},
      {"{\"a\": 1, // the first\n \"b\": 2}",
       "f.json:1:10: not valid JSON: a comment, which JSON does not have, stands where a key in double quotes is "
       "needed"},
      {"# c\n{}", "f.json:1:1: not valid JSON: a comment, which JSON does not have, stands where a value is needed"},
      {"{\"a\": 1, \"a\": 2}", "f.json:1:10: a: given twice, first on line 1; keep one of the two"},
      {"{} {}", "f.json:1:4: not valid JSON: '{' follows the end of the value"},
      {"\"\\ud83e\"", "f.json:1:8: not valid JSON: half of a surrogate pair stands alone in a text"},
      {"\"\\ud83e\\u0041\"", "f.json:1:14: not valid JSON: half of a surrogate pair stands alone in a text"},
      {"\"\\udd99\\ud83e\"", "f.json:1:8: not valid JSON: half of a surrogate pair stands alone in a text"},
      {"\"\\x41\"", "f.json:1:3: not valid JSON: 'x' stands behind a backslash in a text"},
      {"\"\\u00g0\"",
       "f.json:1:6: not valid JSON: 'g' stands where one of the four hexadecimal digits of \\u is needed"},
      {"\"\\u0000\"", "f.json:1:8: a text holds \\u0000, which is not supported"},
      {"\"abc", "f.json:1:1: not valid JSON: the text that begins here does not end"},
      {"\"a\nb\"", "f.json:1:3: not valid JSON: a control character stands in a text; write it as \\n, \\t or \\u00XX"},
      {"[01]", "f.json:1:4: not valid JSON: a number begins with 0"},
      {"[1.]", "f.json:1:4: not valid JSON: ']' stands where a digit is needed"},
      {"[+1]", "f.json:1:2: not valid JSON: '+' stands where a value is needed"},
      {"[.5]", "f.json:1:2: not valid JSON: '.' stands where a value is needed"},
      {"[0x10]", "f.json:1:3: not valid JSON: 'x' stands where ',' or ']' is needed"},
      {"\xef\xbb\xbf{}", "f.json:1:1: not valid JSON: a byte order mark stands before it; save the file without one"},
      {"\n<!DOCTYPE html>",
       "f.json:1:1: not valid JSON but a page of HTML or XML; download the file itself, with a login if its model asks "
       "for one"},
      {"[\"\xff\"]", "f.json: not valid JSON: not UTF-8 text"},
      {std::string("[\0]", 3), "f.json: not valid JSON: not UTF-8 text"},
  }));
  CHECK(JsonError(text) == error);
}

TEST_CASE("JSON has limits: bytes, depth and values") {
  CHECK(JsonError("[1, 2]", {.max_bytes = 5}) == "f.json: larger than 5 bytes, the limit for a file");
  CHECK(JsonError("[1, 2]", {.max_values = 2}) == "f.json:1:5: more than 2 values, the limit for a file");
  CHECK(JsonError(std::string(64, '[') + std::string(64, ']')).empty());
  CHECK(JsonError(std::string(800'000, '[')) == "f.json:1:66: nested deeper than 64 levels");
  CHECK(JsonError(std::string(800'000, '{')).starts_with("f.json:1:2: not valid JSON"));
}

TEST_CASE("Every beginning of a document is an error, never a crash") {
  const std::string whole = R"({"a": [1, -2.5e+3, "x\u00e9\ud83e\udd99"], "b": {"c": true, "d": null}})";
  for (size_t length = 0; length < whole.size(); ++length) {
    CHECK_FALSE(JsonError(whole.substr(0, length)).empty());
  }
  CHECK(JsonError(whole).empty());
}

}  // namespace
}  // namespace geopipe
