#include "runtime/tokenizer/files/text_reader.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

std::vector<TextPiece> ReadAll(const std::vector<std::string>& paths, TextReaderOptions options) {
  TextReader reader(paths, options);
  std::vector<TextPiece> pieces;
  while (true) {
    absl::StatusOr<std::optional<TextPiece>> piece = reader.Next();
    INFO(piece.status());
    REQUIRE(piece.ok());
    if (!piece->has_value()) {
      return pieces;
    }
    pieces.push_back(*std::move(*piece));
  }
}

TEST_CASE("Lines come whole, with their number and place") {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += "line " + std::to_string(i) + "\n";
  }
  text += "the last has no end";
  const std::string path = dir.Write("a.jsonl", text);
  int64_t line = 1;
  std::string joined;
  for (const TextPiece& piece : ReadAll({path, dir.Write("empty.jsonl", "")}, {.piece_bytes = 64})) {
    CHECK(piece.layout == TextLayout::kJsonLines);
    CHECK(piece.offset == static_cast<int64_t>(joined.size()));
    CHECK(piece.line == line);
    line += std::ranges::count(piece.bytes, '\n');
    joined += piece.bytes;
    CHECK((piece.bytes.ends_with('\n') || joined == text));
  }
  CHECK(joined == text);
}

TEST_CASE("A file comes in parts behind line feeds, each with what follows") {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 2000; ++i) {
    text += i % 3 == 0 ? "\n" : i % 5 == 0 ? " 中文\n" : "some words é\n";
  }
  const std::string path = dir.Write("a.txt", text);
  const std::vector<TextPiece> pieces = ReadAll({path}, {.cuts = true, .piece_bytes = 1000});
  CHECK(pieces.size() > 10);
  std::string joined;
  for (const TextPiece& piece : pieces) {
    CHECK(piece.begins == joined.empty());
    joined += piece.bytes;
    CHECK(piece.ends == (joined == text));
    CHECK(piece.follows.empty() == piece.ends);
    if (!piece.ends) {
      CHECK(piece.bytes.ends_with('\n'));
      CHECK(static_cast<uint8_t>(text[joined.size()]) > ' ');
      CHECK(std::string_view(text).substr(joined.size()).starts_with(piece.follows));
    }
  }
  CHECK(joined == text);
  CHECK(ReadAll({path}, {.cuts = false, .piece_bytes = 1000}).size() == 1);
  CHECK(ReadAll({dir.Write("b.txt", std::string(10'000, 'x'))}, {.cuts = true, .piece_bytes = 1000}).size() == 1);
}

TEST_CASE("A document that is too long, and a file that is no text, are refused") {
  const TempDir dir;
  TextReader lines({dir.Write("a.jsonl", "{}\n" + std::string(5000, 'x'))},
                   {.piece_bytes = 100, .max_piece_bytes = 1000});
  CHECK(lines.Next().ok());
  CHECK(std::string(lines.Next().status().message()) ==
        dir.path() +
            "/a.jsonl: the line at byte 3 is longer than 1000 B, the most that this tokenizer takes at once; "
            "divide it");
  TextReader file({dir.Write("a.txt", std::string(5000, 'x'))}, {.piece_bytes = 100, .max_piece_bytes = 1000});
  CHECK(absl::IsOutOfRange(file.Next().status()));
  TextReader packed(
      {dir.Write("a.gz", std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03xxxxxxxxxxxxxxxxxxxxxx", 32))}, {});
  CHECK_THAT(std::string(packed.CheckFiles().status().message()), Catch::Contains("is a gzip file, not text"));
}

}  // namespace
}  // namespace geopipe
