#include "runtime/data/data_check.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "runtime/base/crc32c.h"
#include "runtime/data/text_corpus.h"
#include "runtime/data/token_file.h"
#include "tests/support/seed.h"
#include "tests/support/skip.h"
#include "tests/support/sparse_file.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

std::unique_ptr<Corpus> Open(const std::string& path) {
  auto corpus = OpenTokenFiles({path}, TokenDtype::kUint16, 65'536);
  INFO(corpus.status().message());
  REQUIRE(corpus.ok());
  return *std::move(corpus);
}

std::vector<uint32_t> Checksums(const Corpus& corpus) {
  DataCheck check(corpus);
  while (!check.done()) {
    REQUIRE(check.Next().ok());
  }
  return check.checksums();
}

bool Sampled(int64_t offset, int64_t bytes) {
  return std::ranges::any_of(SampledBlocks(bytes),
                             [&](const ByteRange& block) { return block.begin <= offset && offset < block.end; });
}

TEST_CASE("chunks are at least 16 MiB, whole pieces, and at most 4096") {
  CHECK(DataChunkBytes(1) == 16 * kMiB);
  CHECK(DataChunkBytes(4096 * 16 * kMiB) == 16 * kMiB);
  CHECK(DataChunkBytes(4096 * 16 * kMiB + 1) == 17 * kMiB);
  for (const int64_t bytes : {int64_t{100'000'000'000}, int64_t{1} << 44, int64_t{1} << 60}) {
    const int64_t chunk = DataChunkBytes(bytes);
    CHECK(chunk % kMiB == 0);
    CHECK((bytes - 1) / chunk < kMaxDataChunks);
    CHECK((bytes - 1) / (chunk - kMiB) >= kMaxDataChunks);
  }
}

TEST_CASE("the list has the checksum of each chunk, whatever the data's size") {
  const TempDir dir;
  SplitMix64 random(3);
  std::string content(33 * kMiB, '\0');
  for (size_t i = 0; i < content.size(); i += 4099) {
    content[i] = static_cast<char>(random.Next());
  }
  for (const int64_t bytes :
       {int64_t{2}, kMiB, kMiB + 2, 16 * kMiB - 2, 16 * kMiB, 16 * kMiB + 2, 32 * kMiB, 33 * kMiB}) {
    CAPTURE(bytes);
    const std::string_view data = std::string_view(content).substr(0, bytes);
    const std::unique_ptr<Corpus> corpus = Open(dir.Write("tokens", data));
    std::vector<uint32_t> expected;
    for (size_t begin = 0; begin < data.size(); begin += 16 * kMiB) {
      const std::string_view chunk = data.substr(begin, 16 * kMiB);
      expected.push_back(Crc32c(std::as_bytes(std::span(chunk))));
    }
    CHECK(Checksums(*corpus) == expected);
  }
}

TEST_CASE("a changed byte is found by the check wherever it is, and by the fingerprint where it looks") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  const TempDir dir;
  const int64_t bytes = 40 * kMiB + 2 * static_cast<int64_t>(random.Next() % kMiB);
  const std::string path = Resize(dir, "tokens", bytes);
  const DataFingerprint fingerprint = Open(path)->fingerprint();
  const std::vector<uint32_t> checksums = Checksums(*Open(path));
  REQUIRE(checksums.size() == 3);
  std::vector<int64_t> places = {0,         4095,         4096,         16 * kMiB - 1, 16 * kMiB,
                                 32 * kMiB, bytes - 4097, bytes - 4096, bytes - 1};
  for (int i = 0; i < 20; ++i) {
    places.push_back(static_cast<int64_t>(random.Next() % static_cast<uint64_t>(bytes)));
  }
  for (const int64_t place : places) {
    CAPTURE(place, bytes);
    Poke(path, place, "\x01");
    const std::unique_ptr<Corpus> changed = Open(path);
    CHECK((changed->fingerprint() == fingerprint) == !Sampled(place, bytes));
    const std::vector<uint32_t> found = Checksums(*changed);
    REQUIRE(found.size() == checksums.size());
    for (int64_t chunk = 0; chunk < 3; ++chunk) {
      CHECK((found[chunk] == checksums[chunk]) == (chunk != place / (16 * kMiB)));
    }
    Poke(path, place, std::string(1, '\0'));
  }
  CHECK(Open(Resize(dir, "tokens", bytes - 2))->fingerprint() != fingerprint);
}

TEST_CASE("a token outside the vocabulary that opening has not met is found by the check, with its position") {
  const TempDir dir;
  const std::string path = Resize(dir, "tokens", 40 * kMiB);
  constexpr int64_t kPlace = 20 * kMiB + 5000;
  REQUIRE_FALSE(Sampled(kPlace, 40 * kMiB));
  Poke(path, kPlace, "\xe8\x03");  // 1000
  const auto corpus = OpenTokenFiles({path}, TokenDtype::kUint16, 1000);
  REQUIRE(corpus.ok());
  DataCheck check(**corpus);
  absl::Status status;
  while (status.ok() && !check.done()) {
    status = check.Next();
  }
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  const std::string sentence = path + ": token 1000 at position " + std::to_string(kPlace / 2) +
                               " is outside model.vocab_size 1000; was the file made with another tokenizer, or with "
                               "another data.dtype than 16-bit?";
  CHECK(status.message() == sentence);
  std::vector<int32_t> tokens(3);
  CHECK((*corpus)->Copy(kPlace / 2 - 3, tokens).ok());
  CHECK((*corpus)->Copy(kPlace / 2 - 2, tokens).message() == sentence);
  CHECK((*corpus)->Copy(kPlace / 2 + 1, tokens).ok());
}

TEST_CASE("data that is cut short under the check is an error") {
  const TempDir dir;
  const std::string path = Resize(dir, "tokens", 3 * kMiB);
  const std::unique_ptr<Corpus> corpus = Open(path);
  DataCheck check(*corpus);
  REQUIRE(check.Next().ok());
  Resize(dir, "tokens", 2 * kMiB);
  REQUIRE(check.Next().ok());
  CHECK(check.Next().message() ==
        path + ": the file had 3145728 bytes when it was opened, and ends at 2097152 now; restore it");
}

TEST_CASE("text files are checked as one sequence of bytes") {
  const TempDir dir;
  Resize(dir, "1", 15 * kMiB);
  const std::string second = Resize(dir, "2", 15 * kMiB);
  for (const char* file : {"/1", "/2"}) {
    Poke(dir.path() + file, 0, std::string(8192, 'x'));  // text by its first bytes
  }
  const auto checksums = [&] {
    const auto corpus = OpenText({dir.path() + "/?"});
    REQUIRE(corpus.ok());
    return Checksums(**corpus);
  };
  const std::vector<uint32_t> before = checksums();
  REQUIRE(before.size() == 2);
  Poke(second, 7 * kMiB + 5, "x");
  CHECK(checksums()[0] == before[0]);
  CHECK(checksums()[1] != before[1]);
}

// Bytes that this thread has asked the system to read so far; nullopt: the system does not count them.
std::optional<int64_t> BytesRead() {
  std::ifstream io("/proc/thread-self/io");
  std::string name;
  int64_t count = 0;
  return io >> name >> count && name == "rchar:" ? std::optional(count) : std::nullopt;
}

constexpr int64_t kLargeFiles[] = {100'000'000'000, 4'000'000'000'000};  // bytes

// Opens the data, reads its end and checks its first piece.
void BeginOn(const std::string& path, int64_t bytes) {
  const std::unique_ptr<Corpus> corpus = Open(path);
  std::vector<int32_t> tokens(4096);
  REQUIRE(corpus->Copy(bytes / 2 - 4096, tokens).ok());
  CHECK(corpus->tokens() == bytes / 2);
  DataCheck check(*corpus);
  REQUIRE(check.Next().ok());
  CHECK_FALSE(check.done());
}

TEST_CASE("100 GB are opened and read from, and the check goes on from piece to piece") {
  const TempDir dir;
  for (const int64_t bytes : kLargeFiles) {
    BeginOn(Resize(dir, "tokens", bytes), bytes);
  }
}

TEST_CASE("of 100 GB less than 4 MiB are read at once") {
  const TempDir dir;
  for (const int64_t bytes : kLargeFiles) {
    const std::string path = Resize(dir, "tokens", bytes);
    const std::optional<int64_t> before = BytesRead();
    if (!before.has_value()) {
      Skip("this system does not count what a thread reads");
      return;
    }
    BeginOn(path, bytes);
    CHECK(*BytesRead() - *before < 4 * kMiB);
  }
}

}  // namespace
}  // namespace geopipe
