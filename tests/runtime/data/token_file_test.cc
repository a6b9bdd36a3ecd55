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
  const auto narrow =
      OpenTokenFiles({dir.Write("narrow.bin", "\x01\x00\x02\x01\xff\xff"sv)}, TokenDtype::kUint16, 65536);
  REQUIRE(narrow.ok());
  CHECK(All(**narrow) == std::vector<int32_t>{1, 258, 65535});
  CHECK((*narrow)->fingerprint().bytes == 6);
  const auto wide =
      OpenTokenFiles({dir.Write("wide.bin", "\x01\x00\x02\x00\x05\x00\x00\x00"sv)}, TokenDtype::kUint32, 131074);
  REQUIRE(wide.ok());
  CHECK(All(**wide) == std::vector<int32_t>{131073, 5});
  std::vector<int32_t> one(1);
  REQUIRE((*wide)->Copy(1, one).ok());
  CHECK(one.front() == 5);
}

TEST_CASE("the checksum follows the content") {
  const TempDir dir;
  const std::vector<uint16_t> tokens{1, 2, 3};
  const auto a = OpenTokenFiles({dir.Write("a.bin", Bytes(tokens))}, TokenDtype::kUint16, 10);
  const auto b = OpenTokenFiles({dir.Write("b.bin", Bytes(tokens))}, TokenDtype::kUint16, 10);
  const auto c = OpenTokenFiles({dir.Write("c.bin", Bytes(std::vector<uint16_t>{1, 2, 4}))}, TokenDtype::kUint16, 10);
  REQUIRE((a.ok() && b.ok() && c.ok()));
  CHECK((*a)->fingerprint() == (*b)->fingerprint());
  CHECK((*a)->fingerprint().checksum != (*c)->fingerprint().checksum);
}

TEST_CASE("a bad token file is refused in one sentence") {
  const TempDir dir;
  const auto missing = OpenTokenFiles({dir.path() + "/no.bin"}, TokenDtype::kUint16, 10);
  CHECK(missing.status().message() == dir.path() + "/no.bin: no such file on this node");

  const std::string empty = dir.Write("empty.bin", "");
  CHECK(OpenTokenFiles({empty}, TokenDtype::kUint16, 10).status().message() ==
        empty + ": the file is empty; data.path must hold tokens");

  const std::string odd = dir.Write("odd.bin", "abc");
  CHECK(OpenTokenFiles({odd}, TokenDtype::kUint16, 10).status().message() ==
        odd + ": 3 bytes are not a whole number of uint16 tokens; the file is cut short, or data.dtype is wrong");

  std::vector<uint16_t> tokens(200'000, 3);  // the bad one lies in the second piece that is checked
  tokens[150'000] = 10;
  const std::string outside = dir.Write("outside.bin", Bytes(tokens));
  const auto refused = OpenTokenFiles({outside}, TokenDtype::kUint16, 10);
  CHECK(refused.status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(refused.status().message() ==
        outside +
            ": token 10 at position 150000 is outside model.vocab_size 10; was the file made with another "
            "tokenizer, or with another data.dtype than 16-bit?");
  CHECK(OpenTokenFiles({outside}, TokenDtype::kUint16, 11).ok());
}

std::string RefusalOf(const std::string& path, TokenDtype dtype, int64_t vocab_size) {
  const auto corpus = OpenTokenFiles({path}, dtype, vocab_size);
  CHECK(corpus.status().code() == absl::StatusCode::kInvalidArgument);
  return std::string(corpus.status().message());
}

TEST_CASE("a file of another format is named, with what makes tokens of it") {
  const TempDir dir;
  std::vector<uint32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  std::vector<uint16_t> tokens(4096);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<uint16_t>(i * 7919);
  }
  std::string path = dir.Write("llm.bin", Bytes(header) + Bytes(tokens));
  CHECK(RefusalOf(path, TokenDtype::kUint16, 65536) ==
        path +
            ": is a token file of llm.c with its header of 1,024 bytes, not a flat file of tokens; cut its header "
            "off: tail -c +1025 FILE > tokens.bin");
  path = dir.Write("x.idx", "MMIDIDX" + std::string(27, '\0'));
  CHECK(RefusalOf(path, TokenDtype::kUint16, 65536) ==
        path +
            ": is an index (.idx) of Megatron-LM or NeMo, not a flat file of tokens; name the .bin file beside it, "
            "which holds the tokens");
  path = dir.Write("x.txt", "Once upon a time there was a file of plain text.\n");
  CHECK(RefusalOf(path, TokenDtype::kUint16, 65536) ==
        path + ": is text, not a flat file of tokens; tokenize it first, or use data.format: text");
  path = dir.Write("set/index.json", "{}");
  CHECK(OpenTokenFiles({dir.path() + "/set"}, TokenDtype::kUint16, 65536).status().message() ==
        dir.path() +
            "/set: data.path names a folder with a dataset of MosaicML streaming (index.json); write its tokens "
            "to one flat file");
}

TEST_CASE("tokens of another dtype are refused with the one that fits") {
  const TempDir dir;
  std::vector<uint32_t> wide(4096);
  for (size_t i = 0; i < wide.size(); ++i) {
    wide[i] = static_cast<uint32_t>(i * 7919 % 60'000);
  }
  const std::string path = dir.Write("wide.bin", Bytes(wide));
  CHECK(RefusalOf(path, TokenDtype::kUint16, 65536) ==
        path +
            ": data.dtype is uint16, but every second token is 0, as in a file of uint32 ids; set data.dtype: uint32");
  CHECK(OpenTokenFiles({path}, TokenDtype::kUint32, 60'000).ok());
  const std::string narrow = dir.Write("narrow.bin", Bytes(std::vector<uint16_t>(wide.begin(), wide.end())));
  CHECK(RefusalOf(narrow, TokenDtype::kUint32, 60'000) ==
        narrow +
            ": data.dtype is uint32, but some are beyond the vocabulary and their halves are not, as in a file of "
            "uint16 ids; set data.dtype: uint16");
  CHECK(OpenTokenFiles({narrow}, TokenDtype::kUint16, 60'000).ok());
}

TEST_CASE("several files are read as if joined, and each is checked by itself") {
  const TempDir dir;
  std::vector<uint16_t> tokens(50'000);
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<uint16_t>(i * 7919 % 1000);
  }
  const auto part = [&](const std::string& name, size_t begin, size_t end) {
    return dir.Write(name, Bytes(std::vector<uint16_t>(tokens.begin() + begin, tokens.begin() + end)));
  };
  const std::string whole = part("whole.bin", 0, tokens.size());
  const std::vector<std::string> parts{part("z.bin", 0, 1), part("a.bin", 1, 40'000), part("m.bin", 40'000, 50'000)};
  const auto joined = OpenTokenFiles(parts, TokenDtype::kUint16, 1000);
  REQUIRE(joined.ok());
  CHECK((*joined)->tokens() == 50'000);
  CHECK((*joined)->file_tokens() == std::vector<int64_t>{1, 39'999, 10'000});
  for (const int64_t first : {0, 1, 39'000, 39'999, 49'990}) {
    std::vector<int32_t> expected(10);
    std::vector<int32_t> read(10);
    REQUIRE((*OpenTokenFiles({whole}, TokenDtype::kUint16, 1000))->Copy(first, expected).ok());
    REQUIRE((*joined)->Copy(first, read).ok());
    CHECK(read == expected);
  }
  const DataFingerprint fingerprint = (*joined)->fingerprint();
  const auto other_order = OpenTokenFiles({parts[0], parts[2], parts[1]}, TokenDtype::kUint16, 1000);
  CHECK((*other_order)->fingerprint().bytes == fingerprint.bytes);
  CHECK(!((*other_order)->fingerprint() == fingerprint));
  part("z.bin", 0, 2);  // a token moves from one file to the next
  part("a.bin", 2, 40'000);
  CHECK(!((*OpenTokenFiles(parts, TokenDtype::kUint16, 1000))->fingerprint() == fingerprint));
  tokens[40'005] = 1000;
  part("m.bin", 40'000, 50'000);
  CHECK(OpenTokenFiles(parts, TokenDtype::kUint16, 1000).status().message() ==
        parts[2] +
            ": token 1000 at position 5 is outside model.vocab_size 1000; was the file made with another tokenizer, "
            "or with another data.dtype than 16-bit?");
  const std::string wide = dir.Write("wide.bin", Bytes(std::vector<uint32_t>(tokens.begin(), tokens.begin() + 5000)));
  CHECK_THAT(std::string(OpenTokenFiles({parts[0], wide}, TokenDtype::kUint16, 65'536).status().message()),
             Catch::StartsWith(wide + ": data.dtype is uint16, but every second token is 0"));
  dir.Write("m.bin", "");
  CHECK(OpenTokenFiles(parts, TokenDtype::kUint16, 1000).status().message() ==
        parts[2] + ": the file is empty; data.path must hold tokens");
}

TEST_CASE("of many files each has its part of the blocks that are looked at") {
  constexpr int64_t kGiB = int64_t{1} << 30;
  CHECK(SampledBlocks(kGiB, 2).size() == 256);
  CHECK(SampledBlocks(kGiB, 1000).size() == 16);
  CHECK(SampledBlocks(kGiB, 1000).front() == ByteRange{0, 4096});
  CHECK(SampledBlocks(kGiB, 1000).back() == ByteRange{kGiB - 4096, kGiB});
  CHECK(SampledBlocks(int64_t{64} << 10, 1000) == std::vector<ByteRange>{{0, int64_t{64} << 10}});
  CHECK(SampledBlocks((int64_t{64} << 10) + 2, 1000).size() == 16);
}

}  // namespace
}  // namespace geopipe
