#include "runtime/base/utf8.h"

#include <catch2/catch.hpp>
#include <string>

#include "runtime/base/system_time.h"

namespace geopipe {
namespace {

TEST_CASE("Only what RFC 3629 allows is UTF-8") {
  for (const char* valid :
       {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"}) {
    CHECK(IsUtf8(valid));
    CHECK(ToUtf8(valid) == valid);
  }
  CHECK(ToUtf8("a\xff") == "a?");
  CHECK(ToUtf8("\xc3") == "?");
  CHECK(ToUtf8("\xc0\x80") == "??");            // overlong
  CHECK(ToUtf8("\xe0\x80\x80x") == "???x");     // overlong
  CHECK(ToUtf8("\xed\xa0\x80") == "???");       // surrogate
  CHECK(ToUtf8("\xf4\x90\x80\x80") == "????");  // beyond U+10FFFF
  CHECK(ToUtf8("\xc3\xa9\x80\xe2\x82") == "\xc3\xa9???");
  CHECK_FALSE(IsUtf8("\xf0\x9f\x98"));
}

TEST_CASE("What a terminal would obey is not printed") {
  CHECK(Printable("a\x1b[31mb\xff"
                  "c\x7f\r\n\td\xc3\xa9") == "a?[31mb?c??\n\td\xc3\xa9");
}

TEST_CASE("Of a long word its beginning is shown, on one line") {
  CHECK(Excerpt("plan") == "plan");
  CHECK(Excerpt("a\x1b[31m\nb") == "a?[31m b");
  CHECK(Excerpt(std::string(100'000, 'x')) == std::string(80, 'x') + "...");
  CHECK(Excerpt(std::string(79, 'x') + "\xc3\xa9") == std::string(79, 'x') + "...");
}

TEST_CASE("A clock of before 2020 is not right") {
  CHECK(CheckSystemTime(1'000'000'000).message() ==
        "this machine's clock says 1970-01-01 00:00:01 UTC; set it (timedatectl, chrony) and start again");
  CHECK(CheckSystemTime(1'577'836'800'000'000'000).ok());
}

}  // namespace
}  // namespace geopipe
