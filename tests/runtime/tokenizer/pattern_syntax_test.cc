#include "runtime/tokenizer/pattern_syntax.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "runtime/tokenizer/split_pattern.h"

namespace geopipe {
namespace {

std::vector<std::string> Pieces(std::string_view pattern, std::string_view text,
                                SplitPattern::Kind kind = SplitPattern::Kind::kIsolated) {
  const absl::StatusOr<SplitPattern> split = SplitPattern::Compile(pattern, kind);
  INFO(split.status());
  REQUIRE(split.ok());
  SplitPattern::Room room;
  std::vector<std::string> pieces;
  const absl::StatusOr<bool> closed = split->Split(text, text.size(), room, [&](std::string_view piece) {
    pieces.emplace_back(piece);
    return absl::OkStatus();
  });
  CHECK(closed.ok());
  CHECK(*closed);
  return pieces;
}

using Strings = std::vector<std::string>;

TEST_CASE("Patterns are read as Oniguruma reads them") {
  CHECK(Pieces("\\s+", "a \u180e\u3000b") == Strings{"a", " ", "\u180e", "\u3000", "b"});  // U+180E is no blank
  CHECK(Pieces("(?i:'s)", "x'Sy'ſz") == Strings{"x", "'S", "y", "'ſ", "z"});
  CHECK(Pieces("\\p{Lu}[^\\p{Lu}]*", "AbÉcd") == Strings{"Ab", "Écd"});
  CHECK(Pieces("\\p{Han}", "a中b") == Strings{"a", "中", "b"});
  CHECK(Pieces(".", "a\nb") == Strings{"a", "\n", "b"});
  CHECK(Pieces("[a-c\\-\\]\\x41\\u00e9]+", "ab-]Aéd") == Strings{"ab-]Aé", "d"});
  CHECK(Pieces("a{1,2}", "aaa") == Strings{"aa", "a"});
  CHECK(Pieces("#+ ?", "## a# ") == Strings{"## ", "a", "# "});
  CHECK(Pieces("b", "abcb", SplitPattern::Kind::kMatchesOnly) == Strings{"b", "b"});
}

TEST_CASE("Patterns that mean something else there are refused") {
  for (const std::string pattern :
       {"\\w",   "\\b",     "^a",           "a$",      "(?<=a)b",     "(?i)a",  "(?>a)",
        "a{,2}", "a{1,2}+", "a{2}?",        "a**",     "[[:alpha:]]", "[a&&b]", "[\\s\\S]",
        "[]",    "\\p{Cn}", "\\p{Nothing}", "\\pL",    "(?i:ss)",     "(?i:ä)", "(?i:\\p{L})",
        "\\1",   "\\h",     "\\xff",        "[b-a]",   "{",           "(a",     "a)",
        "[a",    "\\",      "(*UTF)",       "[a-\\d]", "\\x{110000}", "\\u12"}) {
    INFO(pattern);
    CHECK(!TranslatePattern(pattern).ok());
  }
  CHECK(!TranslatePattern("\xff").ok());
}

}  // namespace
}  // namespace geopipe
