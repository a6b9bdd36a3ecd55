#include "runtime/tokenizer/files/tokenize_files.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/tokenizer/hf_tokenizer.h"
#include "tests/runtime/tokenizer/golden.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

std::unique_ptr<Tokenizer> Open(const std::string& name) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      OpenHfTokenizer(TokenizerGolden(name + "/tokenizer.json"), false);
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

// A text of all the golden ones, with blanks at many ends of lines.
std::string LongText() {
  std::string text;
  for (const auto& each : TokenizerGoldenJson("texts.json")) {
    text += each.get<std::string>() + (text.size() % 3 == 0 ? "\n" : text.size() % 3 == 1 ? " \n" : "\n\n  ");
  }
  return text + text + text;
}

struct Written {
  absl::StatusOr<TextCounts> counts;
  std::string bytes;
};

Written Write(const std::vector<std::string>& paths, const Tokenizer& tokenizer, int64_t piece_bytes, int32_t threads) {
  Written written{.counts = TextCounts(), .bytes = ""};
  TextReader reader(paths, {.cuts = tokenizer.can_cut(), .piece_bytes = piece_bytes});
  const EncodingOptions options{.begin = {{"b", 1}}, .end = {{"e", 2}}};
  written.counts = TokenizeFiles(reader, tokenizer, options, threads, {.write = [&](std::span<const std::byte> bytes) {
                                   written.bytes.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                                   return absl::OkStatus();
                                 }});
  return written;
}

TEST_CASE("Tokens depend neither on the threads nor on where documents are cut") {
  const TempDir dir;
  const std::string name = GENERATE("llama3", "gpt2", "qwen2");
  const std::unique_ptr<Tokenizer> tokenizer = Open(name);
  const std::string text = LongText();
  const std::vector<std::string> paths{dir.Write("a.txt", text), dir.Write("b.txt", ""),
                                       dir.Write("c.jsonl", "{\"text\":\"x\"}\n{\"text\":\"y z\"}\n"),
                                       dir.Write("d.txt", "中文\n" + text.substr(0, text.find("\u0000")))};
  const Written whole = Write(paths, *tokenizer, int64_t{1} << 20, 1);
  REQUIRE(whole.counts.ok());
  CHECK(whole.counts->documents == 4);
  CHECK(whole.counts->tokens == static_cast<int64_t>(whole.bytes.size() / 2));
  for (const int64_t piece_bytes : {100, 333, 1000, 5000}) {
    for (const int32_t threads : {1, 3}) {
      const Written parts = Write(paths, *tokenizer, piece_bytes, threads);
      INFO(name << " pieces of " << piece_bytes << ", threads " << threads);
      REQUIRE(parts.counts.ok());
      CHECK(*parts.counts == *whole.counts);
      CHECK(parts.bytes == whole.bytes);
    }
  }
}

TEST_CASE("The error of the earliest piece ends the work, whatever else fails") {
  const TempDir dir;
  std::string lines;
  for (int i = 1; i <= 1000; ++i) {
    lines += i == 500 || i == 700 ? "{}\n" : "{\"text\":\"some text\"}\n";
  }
  const std::unique_ptr<Tokenizer> tokenizer = Open("llama3");
  const Written written = Write({dir.Write("a.jsonl", lines), dir.path() + "/none.txt"}, *tokenizer, 100, 4);
  CHECK_THAT(std::string(written.counts.status().message()), Catch::Contains("a.jsonl:500: has no key"));
  TextReader reader({dir.path() + "/a.jsonl"}, {.piece_bytes = 100});
  const EncodingOptions options;
  const absl::StatusOr<TextCounts> stopped = TokenizeFiles(
      reader, *tokenizer, options, 4, {.write = [](auto) { return absl::ResourceExhaustedError("full"); }});
  CHECK(stopped.status() == absl::ResourceExhaustedError("full"));
}

}  // namespace
}  // namespace geopipe
