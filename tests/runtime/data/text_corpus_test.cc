#include "runtime/data/text_corpus.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

// The corpus as text: BOS as '<', EOS as '>'.
std::string Rendered(const Corpus& corpus, int64_t first, int64_t count) {
  std::vector<int32_t> tokens(count);
  REQUIRE(corpus.Copy(first, tokens).ok());
  std::string text;
  for (const int32_t token : tokens) {
    text += token == kByteTokenizerBos ? '<' : token == kByteTokenizerEos ? '>' : static_cast<char>(token);
  }
  return text;
}

std::string Rendered(const Corpus& corpus) { return Rendered(corpus, 0, corpus.tokens()); }

TEST_CASE("files follow each other in byte order of their resolved paths, each between BOS and EOS") {
  const TempDir dir;
  dir.Write("b.txt", "second");
  dir.Write("a.txt", "first");
  dir.Write("Z.txt", "upper case comes before lower case in byte order");
  dir.Write("sub/c.txt", "not matched");
  std::filesystem::create_symlink(dir.path() + "/a.txt", dir.path() + "/y-link.txt");
  const auto corpus =
      OpenText({dir.path() + "/b.txt", dir.path() + "/*",
                dir.path() + "/../" + std::filesystem::path(dir.path()).filename().string() + "/a.txt"});
  REQUIRE(corpus.ok());
  CHECK(Rendered(**corpus) == "<upper case comes before lower case in byte order><first><second>");
  CHECK((*corpus)->fingerprint().bytes == 48 + 5 + 6);
}

TEST_CASE("any window is read as the whole says") {
  const TempDir dir;
  dir.Write("1", "ab");
  dir.Write("2", "");
  dir.Write("3", "\xc3\xa9");
  const auto corpus = OpenText({dir.path() + "/?"});
  REQUIRE(corpus.ok());
  const std::string whole = Rendered(**corpus);
  CHECK(whole == "<ab><><\xc3\xa9>");
  const auto size = static_cast<int64_t>(whole.size());
  for (int64_t first = 0; first < size; ++first) {
    for (int64_t count = 0; first + count <= size; ++count) {
      CHECK(Rendered(**corpus, first, count) == whole.substr(first, count));
    }
  }
}

TEST_CASE("a text file that is cut short is an error where it is read") {
  const TempDir dir;
  const std::string path = dir.Write("a", "some text");
  const auto corpus = OpenText({path});
  REQUIRE(corpus.ok());
  std::filesystem::resize_file(path, 4);
  std::vector<int32_t> tokens(8);
  CHECK((*corpus)->Copy(0, tokens).message() ==
        path + ": the file had 9 bytes when it was opened, and ends at 4 now; restore it");
}

TEST_CASE("a path that exists is not read as a glob") {
  const TempDir dir;
  const std::string path = dir.Write("odd[1].txt", "x");
  const auto corpus = OpenText({path});
  REQUIRE(corpus.ok());
  CHECK(Rendered(**corpus) == "<x>");
}

TEST_CASE("the checksum tells where one file ends and the next begins") {
  const TempDir one;
  one.Write("1", "ab");
  one.Write("2", "c");
  const TempDir two;
  two.Write("1", "a");
  two.Write("2", "bc");
  const auto a = OpenText({one.path() + "/*"});
  const auto b = OpenText({two.path() + "/*"});
  REQUIRE((a.ok() && b.ok()));
  CHECK((*a)->fingerprint().bytes == (*b)->fingerprint().bytes);
  CHECK((*a)->fingerprint().checksum != (*b)->fingerprint().checksum);
}

TEST_CASE("what is no text is named, in whichever file it lies") {
  const TempDir dir;
  dir.Write("a.txt", "a first file, which is text");
  dir.Write("b.json", "{\"text\": \"JSON is text to the byte tokenizer\"}");
  dir.Write("c.txt", "a stray NUL \1 in much text is taken, as in many a crawl; it is one of a hundred bytes or so.");
  CHECK(OpenText({dir.path() + "/*"}).ok());
  const std::string archive = dir.Write("d.gz", std::string("\x1f\x8b\x08\0\0\0\0\0\0\x03", 10));
  CHECK(OpenText({dir.path() + "/*"}).status().message() ==
        archive + ": is a gzip file, not text; decompress it first");
  std::filesystem::remove(archive);
  std::string ids;
  for (int i = 0; i < 1000; ++i) {
    ids += {static_cast<char>(i * 37), static_cast<char>(i % 5)};
  }
  const std::string tokens = dir.Write("e.bin", ids);
  const std::string message(OpenText({dir.path() + "/*"}).status().message());
  CAPTURE(message);
  CHECK(message.starts_with(tokens + ": is not text: "));
  CHECK(message.ends_with(
      "are control characters; name files of text, or use data.format: tokens if it holds token ids"));
}

TEST_CASE("text that cannot be read is refused in one sentence") {
  const TempDir dir;
  dir.Write("sub/file", "");
  const auto message = [](const std::string& pattern) { return std::string(OpenText({pattern}).status().message()); };
  CHECK(message(dir.path() + "/none") == dir.path() + "/none: no such file on this node");
  CHECK(message(dir.path() + "/*.txt") ==
        dir.path() + "/*.txt: data.path matches no file on this node; check the pattern, and that the data is here");
  CHECK(message(dir.path() + "/*") ==
        dir.path() + "/*: data.path matches no file on this node; check the pattern, and that the data is here");
  CHECK(message(dir.path() + "/sub") ==
        dir.path() + "/sub: data.path names a folder; name its files, as in " + dir.path() + "/sub/*");
  CHECK(message(dir.path() + "/sub/file") ==
        dir.path() + "/sub/file: data.path holds no text (1 files, all empty); name files with text");
}

}  // namespace
}  // namespace geopipe
