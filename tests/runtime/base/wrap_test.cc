#include "runtime/base/wrap.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace geopipe {
namespace {

using Lines = std::vector<std::string>;

TEST_CASE("widths are columns on the terminal") {
  CHECK(DisplayWidth("") == 0);
  CHECK(DisplayWidth("ΔN ≤ 3 µs") == 9);
  CHECK(DisplayWidth("日本") == 4);
  CHECK(DisplayWidth("e\u0301") == 1);  // a letter and a combining accent
  CHECK(DisplayWidth("\xFF"
                     "a"
                     "\xC3") == 3);  // not UTF-8
}

TEST_CASE("lines break between words, not between a number and its unit") {
  CHECK(Wrap("takes 12.3 s and 2.0 % more", 11) == Lines{"takes", "12.3 s and", "2.0 % more"});
  CHECK(Wrap("b 4 × 128 tokens", 8) == Lines{"b", "4 × 128", "tokens"});
  CHECK(Wrap("at most ≤ 3 GiB, or so", 10) == Lines{"at most", "≤ 3 GiB,", "or so"});
  CHECK(Wrap("", 10) == Lines{""});
  CHECK(Wrap("  key of a map", 8, 4) == Lines{"  key of", "    a", "    map"});
  CHECK(WidestPiece("12.3 GiB of it") == 8);
}

TEST_CASE("a word that is longer than a line breaks behind a comma or a slash, else anywhere") {
  CHECK(Wrap("1,2,3,4,5,6,7,8", 7) == Lines{"1,2,3,", "4,5,6,", "7,8"});
  CHECK(Wrap("on /a/path/of/it", 8) == Lines{"on", "/a/path/", "of/it"});
  CHECK(Wrap("abcdefghij", 4) == Lines{"abcd", "efgh", "ij"});
  CHECK(Wrap("日本日本日", 5) == Lines{"日本", "日本", "日"});
}

TEST_CASE("further lines hang behind their label") {
  CHECK(WrapLines("warning       one two three four five\nshort\n", 28) ==
        "warning       one two three\n"
        "              four five\n"
        "short\n");
  CHECK(WrapLines("no plan at all: it needs more memory", 20) ==
        "no plan at all: it\n"
        "  needs more memory");
  CHECK(WrapLines("a\n\nb\n", 20) == "a\n\nb\n");
  const std::string text = "label         what is too long for this";
  CHECK(WrapLines(WrapLines(text, 30), 30) == WrapLines(text, 30));
}

}  // namespace
}  // namespace geopipe
