#include "runtime/data/token_file.h"

#include <catch2/catch.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

template <class Element>
std::string Bytes(const std::vector<Element>& tokens) {
  return {reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(Element)};
}

std::vector<int32_t> All(const Corpus& corpus) {
  std::vector<int32_t> tokens(corpus.tokens());
  REQUIRE(corpus.Copy(0, tokens).ok());
  return tokens;
}

TEST_CASE("uint16 and uint32 files are read little-endian") {
  const TempDir dir;
  using namespace std::string_view_literals;
  const auto narrow = OpenTokenFile(dir.Write("narrow.bin", "\x01\x00\x02\x01\xff\xff"sv), TokenDtype::kUint16, 65536);
  REQUIRE(narrow.ok());
  CHECK(All(**narrow) == std::vector<int32_t>{1, 258, 65535});
  CHECK((*narrow)->fingerprint().bytes == 6);
  const auto wide =
      OpenTokenFile(dir.Write("wide.bin", "\x01\x00\x02\x00\x05\x00\x00\x00"sv), TokenDtype::kUint32, 131074);
  REQUIRE(wide.ok());
  CHECK(All(**wide) == std::vector<int32_t>{131073, 5});
  std::vector<int32_t> one(1);
  REQUIRE((*wide)->Copy(1, one).ok());
  CHECK(one.front() == 5);
}

TEST_CASE("the checksum follows the content") {
  const TempDir dir;
  const std::vector<uint16_t> tokens{1, 2, 3};
  const auto a = OpenTokenFile(dir.Write("a.bin", Bytes(tokens)), TokenDtype::kUint16, 10);
  const auto b = OpenTokenFile(dir.Write("b.bin", Bytes(tokens)), TokenDtype::kUint16, 10);
  const auto c = OpenTokenFile(dir.Write("c.bin", Bytes(std::vector<uint16_t>{1, 2, 4})), TokenDtype::kUint16, 10);
  REQUIRE((a.ok() && b.ok() && c.ok()));
  CHECK((*a)->fingerprint() == (*b)->fingerprint());
  CHECK((*a)->fingerprint().checksum != (*c)->fingerprint().checksum);
}

TEST_CASE("a bad token file is refused in one sentence") {
  const TempDir dir;
  const auto missing = OpenTokenFile(dir.path() + "/no.bin", TokenDtype::kUint16, 10);
  CHECK(missing.status().message() == dir.path() + "/no.bin: no such file on this node");

  const std::string empty = dir.Write("empty.bin", "");
  CHECK(OpenTokenFile(empty, TokenDtype::kUint16, 10).status().message() ==
        empty + ": the file is empty; data.path must hold tokens");

  const std::string odd = dir.Write("odd.bin", "abc");
  CHECK(OpenTokenFile(odd, TokenDtype::kUint16, 10).status().message() ==
        odd + ": 3 bytes are not a whole number of uint16 tokens; the file is cut short, or data.dtype is wrong");

  std::vector<uint16_t> tokens(200'000, 3);  // the bad one lies in the second piece that is checked
  tokens[150'000] = 10;
  const std::string outside = dir.Write("outside.bin", Bytes(tokens));
  const auto refused = OpenTokenFile(outside, TokenDtype::kUint16, 10);
  CHECK(refused.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(refused.status().message() ==
        outside +
            ": token 10 at position 150000 is outside model.vocab_size 10; was the file made with another "
            "tokenizer, or with another data.dtype than 16-bit?");
  CHECK(OpenTokenFile(outside, TokenDtype::kUint16, 11).ok());
}

TEST_CASE("format tokens reads one file") {
  DataSpec spec;
  spec.paths = {"/a", "/b"};
  CHECK(OpenCorpus(spec, 10).status().message() ==
        "data.path: format tokens reads exactly one file, found 2; join them into one file");
}

}  // namespace
}  // namespace geopipe
