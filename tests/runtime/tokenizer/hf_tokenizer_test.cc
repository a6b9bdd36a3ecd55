// Ids against Hugging Face's own tokenizers (tests/golden/tokenizer/make_golden.mjs), and what is refused.
#include "runtime/tokenizer/hf_tokenizer.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/tokenizer/hf_tokenizer_file.h"
#include "tests/runtime/tokenizer/golden.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

using Json = nlohmann::json;

std::unique_ptr<Tokenizer> Open(const std::string& name, bool ignore_special = false) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      OpenHfTokenizer(TokenizerGolden(name + "/tokenizer.json"), ignore_special);
  INFO(tokenizer.status());
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::vector<uint32_t> Ids(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<uint32_t> ids;
  REQUIRE(tokenizer.NewEncoder()->Encode(text, ids).ok());
  return ids;
}

TEST_CASE("Ids are those of Hugging Face's tokenizers") {
  const std::string name = GENERATE("llama3", "qwen2", "gpt2", "spaced");
  const std::unique_ptr<Tokenizer> tokenizer = Open(name);
  const std::unique_ptr<TextEncoder> encoder = tokenizer->NewEncoder();
  const Json texts = TokenizerGoldenJson("texts.json");
  const Json expected = TokenizerGoldenJson(name + "/ids.json");
  REQUIRE(texts.size() == expected.size());
  for (int round = 0; round < 2; ++round) {  // the second finds words that are remembered
    for (size_t i = 0; i < texts.size(); ++i) {
      std::vector<uint32_t> ids;
      REQUIRE(encoder->Encode(texts[i].get<std::string>(), ids).ok());
      INFO(name << " text " << i << ": " << texts[i]);
      CHECK(ids == expected[i].get<std::vector<uint32_t>>());
    }
  }
}

TEST_CASE("A document in parts has the ids of the whole, or its part says that it is not closed") {
  const std::string name = GENERATE("llama3", "gpt2");
  const std::unique_ptr<Tokenizer> tokenizer = Open(name);
  REQUIRE(tokenizer->can_cut());
  const std::unique_ptr<TextEncoder> encoder = tokenizer->NewEncoder();
  std::string text;
  for (const Json& each : TokenizerGoldenJson("texts.json")) {
    text += each.get<std::string>() + "\n";
  }
  const std::vector<uint32_t> whole = Ids(*tokenizer, text);
  int closed_cuts = 0;
  for (size_t cut = text.find('\n') + 1; cut < text.size(); cut = text.find('\n', cut) + 1) {
    bool closed = true;
    std::vector<uint32_t> ids;
    REQUIRE(
        encoder->Encode(std::string_view(text).substr(0, cut), std::string_view(text).substr(cut), ids, closed).ok());
    if (closed) {
      ++closed_cuts;
      REQUIRE(encoder->Encode(std::string_view(text).substr(cut), ids).ok());
      INFO("cut at " << cut);
      CHECK(ids == whole);
    } else {  // a blank follows, or the end of what is seen
      CHECK((static_cast<uint8_t>(text[cut]) <= ' ' || static_cast<uint8_t>(text[cut]) >= 0x80 ||
             cut + 1 == text.size()));
    }
  }
  CHECK(closed_cuts > 50);
  CHECK(!Open("qwen2")->can_cut());   // a token takes blanks around it
  CHECK(!Open("spaced")->can_cut());  // a space is added to each document
}

TEST_CASE("Special tokens in a text can be read as text") {
  const std::vector<uint32_t> read = Ids(*Open("llama3"), "a<|eot_id|>b");
  const std::vector<uint32_t> as_text = Ids(*Open("llama3", /*ignore_special=*/true), "a<|eot_id|>b");
  CHECK(read.size() == 3);
  CHECK(as_text.size() > 3);
  CHECK(std::ranges::find(as_text, *Open("llama3")->IdOf("<|eot_id|>")) == as_text.end());
}

TEST_CASE("A long word takes no more than it should") {
  const std::unique_ptr<Tokenizer> tokenizer = Open("llama3");
  std::string word;
  for (int i = 0; i < 400'000; ++i) {  // quadratic, this is hours
    word += "trainingmodel"[i % 13];
  }
  CHECK(Ids(*tokenizer, word).size() > 1000);
}

TEST_CASE("Marks of a document come from the file, or from those beside it") {
  CHECK(Open("llama3")->own_marks().begin ==
        std::vector<Mark>{{"<|begin_of_text|>", *Open("llama3")->IdOf("<|begin_of_text|>")}});
  CHECK(Open("llama3")->own_marks().end.empty());
  const TempDir dir;
  const std::string path =
      dir.Write("tokenizer.json", *ReadFile(TokenizerGolden("llama3/tokenizer.json"), size_t{1} << 24));
  dir.Write("special_tokens_map.json", R"({"eos_token": {"content": "<|eot_id|>", "lstrip": false}})");
  CHECK((*OpenHfTokenizer(path, false))->own_marks().end[0].token == "<|eot_id|>");
  dir.Write("tokenizer_config.json", R"({"eos_token": "<|end_of_text|>"})");
  CHECK((*OpenHfTokenizer(path, false))->own_marks().end[0].token == "<|end_of_text|>");
  dir.Write("tokenizer_config.json", R"({"eos_token": "<|nothing|>"})");
  CHECK(OpenHfTokenizer(path, false).status().message() ==
        dir.path() + "/tokenizer_config.json: eos_token '<|nothing|>' is no token of " + path +
            "; name another with --eos");
}

TEST_CASE("What changes ids and is not done is refused by its name and value") {
  const Json good = TokenizerGoldenJson("qwen2/tokenizer.json");
  struct Refusal {
    std::string pointer;
    Json value;
    std::string message;  // begins so
  };
  const std::vector<Refusal> refusals{
      {"/normalizer", {{"type", "NFKC"}}, R"(normalizer: {"type":"NFKC"} is not supported, only null and NFC)"},
      {"/truncation", {{"max_length", 8}}, R"(truncation: {"max_length":8} is not supported, only null)"},
      {"/model/dropout", 0.1, "model.dropout: 0.1 is not supported, only null"},
      {"/model/type", "Unigram", R"(model.type: "Unigram" is not supported, only "BPE")"},
      {"/model/byte_fallback", true, "model.byte_fallback: true is not supported, only false"},
      {"/model/end_of_word_suffix", "</w>", R"(model.end_of_word_suffix: "</w>" is not supported, only null)"},
      {"/model/novelty", 1, "model.novelty: 1 is not supported, only type, dropout"},
      {"/novelty", 1, "novelty: 1 is not supported, only version"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "MergedWithNext",
       R"(pre_tokenizer.behavior: "MergedWithNext" is not supported, only "Isolated")"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"(\w+|\s)",
       R"(pre_tokenizer: pattern \w+|\s: '\w' is not supported)"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "a*", "pre_tokenizer: pattern a*: matches the empty text"},
      {"/pre_tokenizer/pretokenizers/1",
       {{"type", "Metaspace"}},
       R"(pre_tokenizer: {"type":"Metaspace"} is not supported)"},
      {"/pre_tokenizer/pretokenizers/1/type", "Split", "pre_tokenizer.add_prefix_space: false is not supported"},
      {"/post_processor",
       {{"type", "BertProcessing"}},
       R"(post_processor: {"type":"BertProcessing"} is not supported)"},
      {"/added_tokens/0/single_word", true,
       "added_tokens '<|endoftext|>'.single_word: true is not supported, only false"},
      {"/added_tokens/0/id", 7, "added_tokens: '<|endoftext|>' has the id 7, and Hugging Face's tokenizers give it"},
      {"/added_tokens/1/content", "<|endoftext|>", "added_tokens: '<|endoftext|>' is there twice"},
      {"/model/merges/0", "a b c", R"(model.merges: number 0 is "a b c", not two tokens)"},
      {"/model/merges/0", "zz qq", "model.merges: number 0, 'zz qq', needs the token 'zz'"},
      {"/model/vocab/a", 66, "model.vocab: "},
      {"/model/vocab/a", -1, "model.vocab: 'a' has the id -1"},
  };
  for (const Refusal& refusal : refusals) {
    Json json = good;
    json[Json::json_pointer(refusal.pointer)] = refusal.value;
    const absl::StatusOr<HfTokenizerSteps> steps = ParseHfTokenizer(json.dump(), "t.json");
    INFO(refusal.pointer << " " << refusal.value);
    REQUIRE(!steps.ok());
    CHECK(absl::IsInvalidArgument(steps.status()));
    CHECK_THAT(std::string(steps.status().message()), Catch::StartsWith("t.json: " + refusal.message));
  }
  Json json = good;
  json["model"]["vocab"].erase("a");
  CHECK_THAT(std::string(ParseHfTokenizer(json.dump(), "t.json").status().message()),
             Catch::StartsWith("t.json: model.vocab: has no token 'a' for the byte 0x61"));
  const std::string deep = "{\"model\": 1, \"x\": " + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  CHECK(absl::IsInvalidArgument(ParseHfTokenizer(deep, "t.json").status()));
  for (const std::string text : {"", "[]", "{}", R"({"model": 1})", R"({"model": {"type": "BPE"}})", "{\"model\":"}) {
    INFO(text);
    CHECK(absl::IsInvalidArgument(ParseHfTokenizer(text, "t.json").status()));
  }
}

}  // namespace
}  // namespace geopipe
