// geopipectl data tokenize, on files that a test wrote.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/command.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

CommandResult Tokenize(std::vector<std::string> args) {
  args.insert(args.begin(), {"data", "tokenize"});
  CommandResult result = RunCommand("geopipectl", std::move(args));
  CHECK(result.exit_status.signal == 0);
  return result;
}

TEST_CASE("data tokenize writes a token file and says what is in it") {
  const TempDir dir;
  const std::string text = dir.Write("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"\"}\n{\"text\": \"two two\"}\n");
  const std::string output = dir.path() + "/a.tokens";
  const std::string tokenizer = SourcePath("tests/golden/tokenizer/llama3");
  CommandResult result =
      Tokenize({"--tokenizer", tokenizer, "--output", output, "--eos", "<|end_of_text|>", dir.path() + "/*.jsonl"});
  CHECK(result.err.empty());
  REQUIRE(result.exit_status.exit_code == 0);
  CHECK_THAT(result.out, Catch::Contains("of 2 documents to " + output + ": uint16, "));
  CHECK_THAT(result.out,
             Catch::Contains("each document: <|begin_of_text|> (758) before it, <|end_of_text|> (759) behind "
                             "it; 1 empty document left out\n"));
  CHECK_THAT(result.out, Catch::Contains("in a job: data: {format: tokens, path: [" + output +
                                         "], dtype: uint16}, with model.vocab_size 761 or more\n"));
  const auto size = fs::file_size(output);
  result = Tokenize({"--tokenizer", tokenizer, "--output", output, "--eos", "none", text});
  CHECK(result.exit_status.exit_code == 2);
  CHECK(result.err == "error: --output " + output + " exists; choose another, or replace it with --replace\n");
  CHECK(fs::file_size(output) == size);
  result = Tokenize({"--tokenizer", tokenizer, "--output", output, "--eos", "none", "--replace", "-o", "json", text});
  REQUIRE(result.exit_status.exit_code == 0);
  const Json json = Json::parse(result.out);
  CHECK(json["dtype"] == "uint16");
  CHECK(json["vocabulary"] == 761);
  CHECK(json["documents"] == 2);
  CHECK(json["empty_documents"] == 1);
  CHECK(json["before"] == Json{758});
  CHECK(json["behind"] == Json::array());
  CHECK(json["tokens"].get<uint64_t>() * 2 == fs::file_size(output));
  CHECK(fs::file_size(output) == size - 4);  // two ends
}

TEST_CASE("data tokenize names what it was given that is wrong, and leaves nothing") {
  const TempDir dir;
  const std::string text = dir.Write("a.txt", "some text\n");
  const std::string bad = dir.Write("bad.txt", "some \xff text\n");
  const std::string tokenizer = SourcePath("tests/golden/tokenizer/llama3");
  const std::string output = dir.path() + "/a.tokens";
  const auto refused = [&](std::vector<std::string> args, const std::string& message) {
    const CommandResult result = Tokenize(std::move(args));
    INFO(message);
    CHECK(result.exit_status.exit_code == 2);
    CHECK(result.out.empty());
    CHECK_THAT(result.err, Catch::StartsWith("error: " + message));
    CHECK(!fs::exists(output));
  };
  refused({}, "no tokenizer: ");
  refused({"--tokenizer", tokenizer}, "no output: ");
  refused({"--tokenizer", tokenizer, "--output", output}, "no text: ");
  refused({"--tokenizer", tokenizer, "--output", output, text}, "--eos: the tokenizer names no end of text");
  refused({"--tokenizer", tokenizer, "--output", output, "--eos", "</s>", text}, "--eos: '</s>' is no token");
  refused({"--tokenizer", tokenizer, "--output", output, "--threads", "0", text}, "--threads: 0 is not from 1");
  refused({"--tokenizer", dir.path(), "--output", output, text}, dir.path() + ": has neither tokenizer.json nor");
  refused({"--tokenizer", text, "--output", output, text},
          text + ": is neither a tokenizer.json nor a SentencePiece model");
  refused({"--tokenizer", tokenizer, "--output", output, "--eos", "none", dir.path() + "/*.md"},
          dir.path() + "/*.md: FILE matches no file");
  refused({"--tokenizer", tokenizer, "--output", output, "--eos", "none", text, bad}, bad + ": byte 5 is 0xff");
  refused({"--tokenizer", tokenizer, "--output", dir.path(), "--eos", "none", text},
          "--output " + dir.path() + " is no file");
  refused({"--tokenizer", tokenizer, "--output", text, "--replace", "--eos", "none", text},
          "--output " + text + " is " + text + ", which would be lost");
  refused({"--tokenizer", tokenizer, "--output", output, "--eos", "none", dir.Write("empty.txt", "")},
          dir.path() + "/empty.txt: no document in any of 1 file");
  refused({"--bos"}, "--bos");
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 3);
}

}  // namespace
}  // namespace geopipe
