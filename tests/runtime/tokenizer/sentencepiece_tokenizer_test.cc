// Ids against SentencePiece's own spm_encode (tests/golden/tokenizer/make_sentencepiece.py).
#include "runtime/tokenizer/sentencepiece_tokenizer.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/tokenizer/open_tokenizer.h"
#include "tests/runtime/tokenizer/golden.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

TEST_CASE("Ids of SentencePiece models are those of spm_encode") {
  const std::string name = GENERATE("llama2", "unigram");
  const absl::StatusOr<OpenedTokenizer> opened =
      OpenTokenizer(TokenizerGolden(name), false);  // a folder with tokenizer.model
  INFO(opened.status());
  REQUIRE(opened.ok());
  CHECK(opened->path == TokenizerGolden(name) + "/tokenizer.model");
  const std::unique_ptr<TextEncoder> encoder = opened->tokenizer->NewEncoder();
  for (const auto& pair : TokenizerGoldenJson(name + "/ids.json")) {
    std::vector<uint32_t> ids;
    INFO(name << " " << pair[0]);
    REQUIRE(encoder->Encode(pair[0].get<std::string>(), ids).ok());
    CHECK(ids == pair[1].get<std::vector<uint32_t>>());
    CHECK((ids.empty() || std::ranges::max(ids) < opened->tokenizer->vocabulary()));
  }
}

TEST_CASE("Marks of a SentencePiece model are its own") {
  const std::unique_ptr<Tokenizer> llama = *OpenSentencePiece(TokenizerGolden("llama2/tokenizer.model"));
  CHECK(llama->own_marks().begin == std::vector<Mark>{{"<s>", 1}});
  CHECK(llama->own_marks().end == std::vector<Mark>{{"</s>", 2}});
  CHECK(llama->IdOf("<s>") == 1);
  CHECK(!llama->IdOf("<no such piece>").has_value());
  const std::unique_ptr<Tokenizer> unigram = *OpenSentencePiece(TokenizerGolden("unigram/tokenizer.model"));
  CHECK(unigram->own_marks().begin.empty());
  CHECK(unigram->own_marks().end == std::vector<Mark>{{"</s>", 1}});
  CHECK(*MarkNamed(*unigram, "<tool>", {}) == std::vector<Mark>{{"<tool>", *unigram->IdOf("<tool>")}});
  CHECK(MarkNamed(*unigram, "none", unigram->own_marks().end)->empty());
}

TEST_CASE("Files that are no SentencePiece model are refused") {
  const TempDir dir;
  const std::string model = *ReadFile(TokenizerGolden("unigram/tokenizer.model"), size_t{1} << 24);
  for (const std::string& text :
       {std::string(), std::string("text"), std::string(1000, '\xff'), model.substr(0, model.size() / 2)}) {
    CHECK(absl::IsInvalidArgument(OpenTokenizer(dir.Write("t.model", text), false).status()));
  }
  CHECK(absl::IsNotFound(OpenTokenizer(dir.path() + "/none", false).status()));
}

}  // namespace
}  // namespace geopipe
