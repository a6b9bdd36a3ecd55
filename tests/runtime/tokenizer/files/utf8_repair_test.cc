#include "runtime/tokenizer/files/utf8_repair.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

// Values are those of Python's bytes.decode("utf-8", errors="replace").
TEST_CASE("Bytes that are no UTF-8 become U+FFFD, one for each cut sequence") {
  struct Case {
    std::string_view text;
    std::string_view repaired;
    size_t at;
  };
  for (const Case& c : {
           Case{"abc\xff\x64", "abc\ufffd\x64", 3},
           Case{"\xe4\xb8", "\ufffd", 0},
           Case{"12345678\xe4\xb8\x61", "12345678\ufffd\x61", 8},
           Case{"\xc0\x80", "\ufffd\ufffd", 0},
           Case{"\xed\xa0\x80x", "\ufffd\ufffd\ufffdx", 0},
           Case{"\xf0\x9f\x99", "\ufffd", 0},
           Case{"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd", 0},
           Case{"é\xf0\x80\x80\x80", "é\ufffd\ufffd\ufffd\ufffd", 2},
           Case{"\x80", "\ufffd", 0},
       }) {
    std::string room;
    REQUIRE(FindInvalidUtf8(c.text).has_value());
    CHECK(FindInvalidUtf8(c.text)->at == c.at);
    CHECK(RepairUtf8(c.text, room) == c.repaired);
    CHECK(!FindInvalidUtf8(RepairUtf8(c.text, room)).has_value());
  }
  std::string room;
  const std::string_view good = "ascii, ümläut, 中文, 🙂\u0000\u07ff\uffff\U0010ffff";
  CHECK(RepairUtf8(good, room).data() == good.data());
}

}  // namespace
}  // namespace geopipe
