#include "runtime/tokenizer/files/piece_encoder.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/tokenizer/hf_tokenizer.h"
#include "tests/runtime/tokenizer/golden.h"

namespace geopipe {
namespace {

std::unique_ptr<Tokenizer> Llama() {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      OpenHfTokenizer(TokenizerGolden("llama3/tokenizer.json"), false);
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::vector<uint32_t> Encoded(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<uint32_t> ids;
  REQUIRE(tokenizer.NewEncoder()->Encode(text, ids).ok());
  return ids;
}

std::vector<uint32_t> Unpacked(const std::string& tokens) {
  std::vector<uint32_t> ids;
  for (size_t i = 0; i < tokens.size(); i += 2) {
    uint16_t id = 0;
    std::memcpy(&id, tokens.data() + i, sizeof(id));
    ids.push_back(id);
  }
  return ids;
}

TEST_CASE("Documents stand between their marks, and empty ones leave nothing") {
  const std::unique_ptr<Tokenizer> tokenizer = Llama();
  const EncodingOptions options{.begin = {{"b", 7}}, .end = {{"e", 8}, {"f", 9}}};
  PieceEncoder encoder(*tokenizer, options);
  const std::vector<uint32_t> one = Encoded(*tokenizer, "one");
  const std::vector<uint32_t> two = Encoded(*tokenizer, "two\n2 é");
  std::vector<uint32_t> expected{7};
  expected.insert(expected.end(), one.begin(), one.end());
  expected.insert(expected.end(), {8, 9, 7});
  expected.insert(expected.end(), two.begin(), two.end());
  expected.insert(expected.end(), {8, 9});
  const EncodedPiece lines = encoder.Encode(
      {.layout = TextLayout::kJsonLines,
       .path = "a",
       .bytes =
           "{\"text\": \"one\"}\n\n{\"id\": {\"text\": [1]}, \"text\": \"two\\n2 \\u00e9\"}\r\n{\"text\":\"\"}\n"});
  REQUIRE(lines.status.ok());
  CHECK(Unpacked(lines.tokens) == expected);
  CHECK(lines.counts ==
        TextCounts{
            .documents = 2, .empty_documents = 1, .text_bytes = 11, .tokens = static_cast<int64_t>(expected.size())});
  const EncodedPiece plain = encoder.Encode({.layout = TextLayout::kLines, .path = "a", .bytes = "one\r\n\none"});
  REQUIRE(plain.status.ok());
  CHECK(plain.counts.documents == 2);
  CHECK(plain.counts.empty_documents == 1);
  const EncodedPiece first = encoder.Encode(
      {.layout = TextLayout::kFile, .path = "a", .bytes = "one\n", .follows = "two", .begins = true, .ends = false});
  CHECK(Unpacked(first.tokens).front() == 7);
  CHECK(Unpacked(first.tokens).back() != 9);
  CHECK(first.counts.documents == 0);
}

TEST_CASE("Errors of a piece name the file and the place") {
  const std::unique_ptr<Tokenizer> tokenizer = Llama();
  EncodingOptions options;
  const auto error = [&](TextLayout layout, const std::string& bytes) {
    const EncodedPiece encoded = PieceEncoder(*tokenizer, options)
                                     .Encode({.layout = layout, .path = "a", .offset = 100, .line = 5, .bytes = bytes});
    CHECK((encoded.status.ok() || absl::IsInvalidArgument(encoded.status)));
    return std::string(encoded.status.message());
  };
  CHECK(error(TextLayout::kFile, "abc\xff") ==
        "a: byte 103 is 0xff, which is no UTF-8 there; convert the file (iconv), or replace such bytes with "
        "--invalid-utf8 replace");
  CHECK_THAT(error(TextLayout::kJsonLines, "{\"text\":\"a\"}\n{\"text\": \"\xc3\"}"),
             Catch::StartsWith("a: byte 123 is 0xc3"));
  CHECK(error(TextLayout::kJsonLines, "{\"text\":\"a\"}\n{\"other\": {\"text\": \"a\"}}") ==
        "a:6: has no key 'text'; name the document's key with --key");
  CHECK(error(TextLayout::kJsonLines, "{\"text\":[1]}") ==
        "a:5: has a list at the key 'text', not a text; name the document's key with --key");
  CHECK_THAT(error(TextLayout::kJsonLines, "{\"text\":\"a"), Catch::StartsWith("a:5: is no JSON from character 11"));
  CHECK_THAT(error(TextLayout::kJsonLines, "[\"a\"]"), Catch::StartsWith("a:5: is no JSON object"));
  CHECK_THAT(error(TextLayout::kJsonLines, "\"a\""), Catch::StartsWith("a:5: is no JSON object"));
  CHECK_THAT(error(TextLayout::kJsonLines, "{\"text\":\"\\ud800\"}"), Catch::StartsWith("a:5: is no JSON"));
  CHECK_THAT(error(TextLayout::kJsonLines, "{\"text\":\"a\"} {}"), Catch::StartsWith("a:5: is no JSON"));
  const std::string deep = "{\"deep\":" + std::string(100'000, '[') + std::string(100'000, ']') + ",\"text\":\"a\"}";
  CHECK(error(TextLayout::kJsonLines, deep).empty());
  options.repairs_utf8 = true;
  CHECK(error(TextLayout::kFile, "abc\xff").empty());
}

}  // namespace
}  // namespace geopipe
