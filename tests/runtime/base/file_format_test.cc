#include "runtime/base/file_format.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "optimizer/base/splitmix64.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/format_of_file.h"
#include "tests/support/seed.h"
#include "tests/support/temp_dir.h"

namespace geopipe {
namespace {

using namespace std::string_literals;

template <class T>
std::string Number(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string NameOf(const std::string& content) {
  const FileFormat* format = RecogniseFormat(content);
  return format == nullptr ? "" : std::string(format->name);
}

// Fills `begin` up with bytes that stand for the rest of a file of its format.
std::string Filled(std::string begin, size_t bytes = 600) {
  SplitMix64 random(7);
  while (begin.size() < bytes) {
    begin += static_cast<char>(random.Next());
  }
  return begin;
}

std::string TfRecord() {
  const std::string length = Number<uint64_t>(40);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(length)));
  return length + Number(((crc >> 15) | (crc << 17)) + 0xa282ead8U) + std::string(44, 'x');
}

std::string Mds() {
  const std::string config = R"({"version": 2, "format": "mds"})";
  std::string places;
  const auto begin = static_cast<uint32_t>(4 + 4 * 4 + config.size());
  for (uint32_t i = 0; i < 4; ++i) {
    places += Number<uint32_t>(begin + i * 10);
  }
  return Number<uint32_t>(3) + places + config + std::string(30, '\x05');
}

TEST_CASE("files of known formats are named") {
  const auto [content, name] = GENERATE(table<std::string, std::string>({
      {Number<uint32_t>(20240520) + Number<uint32_t>(1) + std::string(2040, '\0'),
       "a token file of llm.c with its header of 1,024 bytes"},
      {Number<uint32_t>(20240801) + Number<uint32_t>(7) + std::string(2040, '\0'),
       "a token file of llm.c (uint32, data.dtype: uint32) with its header of 1,024 bytes"},
      {"MMIDIDX\0\0\x01\0\0\0\0\0\0\0\x08"s, "an index (.idx) of Megatron-LM or NeMo"},
      {"TNTIDX\0\0\x01\0\0\0"s, "an index (.idx) of fairseq"},
      {"\x93NUMPY\x01\0v\0{'descr': '<u2', 'fortran_order': False}"s, "a NumPy array (.npy)"},
      {"PK\x03\x04"s + std::string(22, '\0') + "\x05\0\0\0a.npy"s, "an archive of NumPy arrays (.npz)"},
      {"PK\x03\x04"s + std::string(22, '\0') + "\x10\0\0\0archive/data.pkl"s, "a PyTorch file (.pt, .pth, .bin)"},
      {"PK\x03\x04"s + std::string(22, '\0') + "\x05\0\0\0a.txt"s, "a zip archive"},
      {"\x1f\x8b\x08\0\0\0\0\0\0\x03"s, "a gzip file"},
      {Filled("\x28\xb5\x2f\xfd"), "a zstd file"},
      {Filled("\xfd\x37zXZ\0"s), "an xz file"},
      {Filled("BZh91AY&SY"), "a bzip2 file"},
      {Filled("\x04\x22\x4d\x18"), "an lz4 file"},
      {Filled("7z\xbc\xaf\x27\x1c"), "a 7z archive"},
      {"shard/000.txt"s + std::string(244, '\0') + "ustar\0"s + "00", "a tar archive (WebDataset shards are such)"},
      {Filled("PAR1"), "a Parquet file"},
      {Filled("ARROW1\0\0"s), "an Arrow (Feather) file"},
      {"\xff\xff\xff\xff\x58\x01\0\0\x10\0\0\0\0\0\x0a\0"s, "an Arrow stream (as Hugging Face datasets keeps)"},
      {Filled("\x89HDF\r\n\x1a\n"), "an HDF5 file"},
      {"SQLite format 3\0\x10\0"s, "an SQLite database"},
      {std::string(16, '\0') + "\xde\xc0\xef\xbe\x01\0\0\0"s, "an LMDB database"},
      {Filled("", 300) + Number<uint64_t>(0xdb4775248b80fb57ULL), "a table of LevelDB or a TensorFlow checkpoint"},
      {Filled("", 300) + Number<uint64_t>(0x88e241b785f4cff7ULL), "a table of RocksDB"},
      {TfRecord(), "a TFRecord file"},
      {Mds(), "a shard (.mds) of MosaicML streaming"},
      {"\x80\x04\x95\x05\0\0\0\0\0\0\0]\x94(K\x01"
       "e."s,
       "a Python pickle"},
      {"\x80\x02}q\0X\x01\0\0\0aq\x01K\x01s."s, "a Python pickle"},
      {"\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02"s, "a PyTorch file (.pt)"},
      {Number<uint64_t>(2) + "{}", ""},  // too short to tell
      {Number<uint64_t>(55) + R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}} 12345678)",
       "a safetensors file"},
      {Filled("GGUF\x03\0\0\0"s), "a GGUF file (llama.cpp)"},
      {"\x0a\x0e\x0a\x05<unk>\x15\0\0\0\0\x18\x02"s, "a SentencePiece model"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "a Git LFS pointer"},
      {Filled("%PDF-1.7\n"), "a PDF document"},
      {Filled("\x7f"
              "ELF\x02\x01\x01"),
       "an ELF program"},
      {Filled("\x89PNG\r\n\x1a\n"), "a PNG picture"},
      {Filled("\xff\xd8\xff\xe0"), "a JPEG picture"},
      {"<!DOCTYPE html>\n<html><head><title>404: Not Found</title>", "an HTML page"},
      {"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<a></a>", "XML"},
      {"{\"text\": \"once upon a time\"}\n{\"text\": \"there was\"}\n", "JSON or JSON Lines"},
      {"[{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}]", "JSON or JSON Lines"},
      {"Once upon a time there was a file of plain text.\n", "text"},
      {"Es war einmal eine Datei mit Umlauten: \u00e4\u00f6\u00fc\u00df, \u4e16\u754c.\n", "text"},
      {"\xff\xfeO\0n\0c\0e\0 \0u\0p\0o\0n\0 \0a\0"s, "text in UTF-16"},
  }));
  INFO(name);
  CHECK(NameOf(content) == name);
  // A format that is cut short anywhere must not crash it.
  for (size_t length = 0; length < std::min<size_t>(content.size(), 300); ++length) {
    RecogniseFormat(content.substr(0, length));
  }
}

// Tokens as training data has them: ids of several vocabularies and distributions, runs and padding, of both widths.
std::string RandomTokens(SplitMix64& random) {
  const uint64_t vocab = uint64_t{1} << (1 + random.Next() % 16);
  const bool wide = random.Next() % 2 == 0;
  const uint64_t skew = random.Next() % 3;
  const uint64_t pad = random.Next() % vocab;
  const uint64_t pad_every = 1 + random.Next() % 8;
  std::string bytes;
  for (int i = 0; i < 1100; ++i) {
    uint64_t token = random.Next() % vocab;
    for (uint64_t k = 0; k < skew; ++k) {
      token = random.Next() % (token + 1);
    }
    token = (i / 64) % static_cast<int>(pad_every) == 1 ? pad : token;
    bytes += wide ? Number(static_cast<uint32_t>(token)) : Number(static_cast<uint16_t>(token));
  }
  return bytes;
}

TEST_CASE("flat files of tokens are taken for nothing else") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  SplitMix64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    CAPTURE(i);
    REQUIRE(NameOf(RandomTokens(random)).empty());
  }
  for (const uint16_t token : {uint16_t{0}, uint16_t{1}, uint16_t{0x4141}, uint16_t{50256}, uint16_t{65535}}) {
    std::string padding;
    for (int i = 0; i < 4096; ++i) {
      padding += Number(token);
    }
    CAPTURE(token);
    CHECK(NameOf(padding).empty());
  }
  std::string counted;
  for (uint16_t i = 0; i < 4096; ++i) {
    counted += Number(i);
  }
  CHECK(NameOf(counted).empty());
  CHECK(NameOf("").empty());
}

TEST_CASE("a remedy is there for every kind of file, whatever is wanted") {
  for (const std::string& content : {"\x1f\x8b\x08\0\0\0\0\0\0\x03"s, "GGUF1234"s, "PAR1"s, "PK\x03\x04"s, "%PDF-1.7"s,
                                     Mds(), "\x93NUMPY"s, "Once upon a time there was a file of plain text.\n"s}) {
    for (const WantedFile wanted :
         {WantedFile::kTokens, WantedFile::kText, WantedFile::kConfiguration, WantedFile::kWeights}) {
      REQUIRE(RecogniseFormat(content) != nullptr);
      CHECK_FALSE(RemedyFor(*RecogniseFormat(content), wanted).empty());
    }
  }
}

TEST_CASE("folders of other programs are named") {
  const auto name = [](std::vector<std::string> names) {
    const FolderFormat* format = RecogniseFolder(names);
    return format == nullptr ? "" : std::string(format->name);
  };
  CHECK(name({"config.json", "pytorch_model-00001-of-00002.bin"}) == "PyTorch weights");
  CHECK(name({"adapter_config.json", "adapter_model.safetensors"}) == "a LoRA adapter");
  CHECK(name({"consolidated.00.pth", "params.json"}) == "weights as Meta publishes them");
  CHECK(name({"llama-7b.Q4_K_M.gguf"}) == "GGUF weights (llama.cpp)");
  CHECK(name({"model.ckpt-100.data-00000-of-00001", "model.ckpt-100.index"}) == "a TensorFlow checkpoint");
  CHECK(name({"latest_checkpointed_iteration.txt", "iter_0000100"}) == "a Megatron-LM checkpoint");
  CHECK(name({"__0_0.distcp", ".metadata"}) == "a PyTorch distributed checkpoint");
  CHECK(name({"index.json", "shard.00000.mds"}) == "a dataset of MosaicML streaming");
  CHECK(name({"CURRENT", "MANIFEST-000004", "LOCK"}) == "a LevelDB or RocksDB database");
  CHECK(name({"config.json", "model.safetensors", "README.md"}).empty());
  CHECK(name({}).empty());
}

TEST_CASE("the format of a file on disk is that of its ends") {
  const TempDir dir;
  const auto format = [&](const std::string& content) {
    const auto file = InputFile::Open(dir.Write("f", content));
    REQUIRE(file.ok());
    const auto found = FormatOfFile(*file);
    REQUIRE(found.ok());
    return *found == nullptr ? "" : std::string((*found)->name);
  };
  CHECK(format("").empty());
  CHECK(format("ab").empty());
  CHECK(format(Filled("", 9000) + Number<uint64_t>(0x88e241b785f4cff7ULL)) == "a table of RocksDB");
  CHECK(DescribeOtherWeights(dir.Write("m.gguf", Filled("GGUF")))
            .starts_with("is a GGUF file (llama.cpp); name a folder"));
  CHECK(DescribeOtherWeights(dir.path()).starts_with("holds GGUF weights (llama.cpp) (*.gguf); take "));
  CHECK(DescribeOtherWeights("/nowhere").empty());
}

}  // namespace
}  // namespace geopipe
