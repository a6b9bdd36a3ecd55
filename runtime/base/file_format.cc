#include "runtime/base/file_format.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cstring>

#include "runtime/base/crc32c.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

using std::string_view_literals::operator""sv;
using Kind = FormatKind;

struct Signature {
  int64_t offset;
  std::string_view bytes;
  FileFormat format;
};

constexpr std::string_view kLlmcRemedy = "cut its header off: tail -c +1025 FILE > tokens.bin";
constexpr std::string_view kIndexRemedy = "name the .bin file beside it, which holds the tokens";

// Signatures of at least four bytes each. The first that fits counts.
constexpr auto kSignatures = std::to_array<Signature>({
    // llm.c, dev/data/data_common.py: 256 int32 of header, the first of them this number.
    {0, "\x88\xd8\x34\x01"sv, {Kind::kTokens, "a token file of llm.c with its header of 1,024 bytes", kLlmcRemedy}},
    {0,
     "\xa1\xd9\x34\x01"sv,
     {Kind::kTokens, "a token file of llm.c (uint32, data.dtype: uint32) with its header of 1,024 bytes", kLlmcRemedy}},
    {0, "\xc6\xd7\x34\x01"sv, {Kind::kWeights, "a model of llm.c", ""}},
    {0, "\xc7\xd7\x34\x01"sv, {Kind::kWeights, "a debug state of llm.c", ""}},
    {0, "\xc8\xd7\x34\x01"sv, {Kind::kTokens, "a tokenizer of llm.c", "name a file of tokens"}},
    {0, "\x8a\xd8\x34\x01"sv, {Kind::kTokens, "an evaluation file of llm.c", "name a file of tokens"}},
    {0, "MMIDIDX\0\0"sv, {Kind::kTokens, "an index (.idx) of Megatron-LM or NeMo", kIndexRemedy}},
    {0, "TNTIDX\0\0"sv, {Kind::kTokens, "an index (.idx) of fairseq", kIndexRemedy}},
    {0,
     "\x93NUMPY"sv,
     {Kind::kTokens, "a NumPy array (.npy)", "write it without header: numpy.load(FILE).astype('uint16').tofile(OUT)"}},
    {0, "PK\x03\x04"sv, {Kind::kArchive, "a zip archive", ""}},
    {0, "PK\x05\x06"sv, {Kind::kArchive, "an empty zip archive", ""}},
    {0, "\x28\xb5\x2f\xfd"sv, {Kind::kCompressed, "a zstd file", ""}},
    {0, "\xfd\x37zXZ\0"sv, {Kind::kCompressed, "an xz file", ""}},
    {0, "\x04\x22\x4d\x18"sv, {Kind::kCompressed, "an lz4 file", ""}},
    {0, "\xff\x06\0\0sNaPpY"sv, {Kind::kCompressed, "a snappy file", ""}},
    {0, "LZIP\x01"sv, {Kind::kCompressed, "an lzip file", ""}},
    {4, "1AY&SY"sv, {Kind::kCompressed, "a bzip2 file", ""}},
    {0, "7z\xbc\xaf\x27\x1c"sv, {Kind::kArchive, "a 7z archive", ""}},
    {0, "Rar!\x1a\x07"sv, {Kind::kArchive, "a rar archive", ""}},
    {257, "ustar"sv, {Kind::kArchive, "a tar archive (WebDataset shards are such)", ""}},
    {0, "!<arch>\n"sv, {Kind::kArchive, "an ar archive", ""}},
    {0, "PAR1"sv, {Kind::kDataset, "a Parquet file", ""}},
    {0, "PARE"sv, {Kind::kDataset, "an encrypted Parquet file", ""}},
    {0, "ARROW1\0\0"sv, {Kind::kDataset, "an Arrow (Feather) file", ""}},
    {0, "FEA1"sv, {Kind::kDataset, "a Feather file", ""}},
    {0, "\x89HDF\r\n\x1a\n"sv, {Kind::kDataset, "an HDF5 file", ""}},
    {0, "CDF\x01"sv, {Kind::kDataset, "a NetCDF file", ""}},
    {0, "Obj\x01"sv, {Kind::kDataset, "an Avro file", ""}},
    {0, "ORC\x08"sv, {Kind::kDataset, "an ORC file", ""}},
    {0, "SQLite format 3\0"sv, {Kind::kDataset, "an SQLite database", ""}},
    {16, "\xde\xc0\xef\xbe"sv, {Kind::kDataset, "an LMDB database", ""}},
    {0, "MATLAB 5.0 MAT-file"sv, {Kind::kDataset, "a MATLAB file", ""}},
    {0, "GGUF"sv, {Kind::kWeights, "a GGUF file (llama.cpp)", ""}},
    {0, "lmgg"sv, {Kind::kWeights, "a GGML file (llama.cpp)", ""}},
    {0, "tjgg"sv, {Kind::kWeights, "a GGML file (llama.cpp)", ""}},
    {0, "fmgg"sv, {Kind::kWeights, "a GGML file (llama.cpp)", ""}},
    {4, "TFL3"sv, {Kind::kWeights, "a TensorFlow Lite model", ""}},
    {0, "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv, {Kind::kWeights, "a PyTorch file (.pt)", ""}},
    {0, "\x0a\x0e\x0a\x05<unk>"sv, {Kind::kTokens, "a SentencePiece model", "name a file of tokens"}},
    {0, "version https://git-lfs.github.com/"sv, {Kind::kPointer, "a Git LFS pointer", ""}},
    {0, "%PDF-"sv, {Kind::kOther, "a PDF document", ""}},
    {0, "{\\rtf"sv, {Kind::kOther, "an RTF document", ""}},
    {0, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"sv, {Kind::kOther, "an Office document", ""}},
    {0, "\x89PNG\r\n\x1a\n"sv, {Kind::kOther, "a PNG picture", ""}},
    {0, "\xff\xd8\xff\xe0"sv, {Kind::kOther, "a JPEG picture", ""}},
    {0, "\xff\xd8\xff\xe1"sv, {Kind::kOther, "a JPEG picture", ""}},
    {0, "\xff\xd8\xff\xdb"sv, {Kind::kOther, "a JPEG picture", ""}},
    {0, "GIF8"sv, {Kind::kOther, "a GIF picture", ""}},
    {0, "RIFF"sv, {Kind::kOther, "a RIFF file (sound, picture or film)", ""}},
    {4, "ftyp"sv, {Kind::kOther, "an MP4 file (film or sound)", ""}},
    {0, "OggS"sv, {Kind::kOther, "an Ogg file (sound)", ""}},
    {0, "fLaC"sv, {Kind::kOther, "a FLAC file (sound)", ""}},
    {0, "\x1a\x45\xdf\xa3"sv, {Kind::kOther, "a Matroska file (film)", ""}},
    {0,
     "\x7f"
     "ELF"sv,
     {Kind::kOther, "an ELF program", ""}},
    {0, "\xcf\xfa\xed\xfe"sv, {Kind::kOther, "a Mach-O program", ""}},
    {0, "\xca\xfe\xba\xbe"sv, {Kind::kOther, "a Java class or Mach-O program", ""}},
    {0, "\0asm"sv, {Kind::kOther, "a WebAssembly module", ""}},
});

constexpr FileFormat kGzip{Kind::kCompressed, "a gzip file", ""};
constexpr FileFormat kNpz{
    Kind::kArchive, "an archive of NumPy arrays (.npz)",
    "write one of its arrays without header: numpy.load(FILE)[NAME].astype('uint16').tofile(OUT)"};
constexpr FileFormat kTorchZip{Kind::kWeights, "a PyTorch file (.pt, .pth, .bin)", ""};
constexpr FileFormat kPickle{Kind::kDataset, "a Python pickle", ""};
constexpr FileFormat kSafetensors{Kind::kWeights, "a safetensors file", ""};
constexpr FileFormat kArrowStream{Kind::kDataset, "an Arrow stream (as Hugging Face datasets keeps)", ""};
constexpr FileFormat kTfRecord{Kind::kDataset, "a TFRecord file", ""};
constexpr FileFormat kMds{Kind::kDataset, "a shard (.mds) of MosaicML streaming", ""};
constexpr FileFormat kLevelDbTable{Kind::kDataset, "a table of LevelDB or a TensorFlow checkpoint", ""};
constexpr FileFormat kRocksDbTable{Kind::kDataset, "a table of RocksDB", ""};
constexpr FileFormat kWindowsProgram{Kind::kOther, "a Windows program", ""};
constexpr FileFormat kUtf16{Kind::kUtf16, "text in UTF-16", ""};
constexpr FileFormat kHtml{Kind::kText, "an HTML page", ""};
constexpr FileFormat kXml{Kind::kText, "XML", ""};
constexpr FileFormat kJson{Kind::kText, "JSON or JSON Lines", ""};
constexpr FileFormat kText{Kind::kText, "text", ""};

template <class T>
T At(std::span<const std::byte> bytes, size_t offset) {
  static_assert(std::endian::native == std::endian::little, "these formats are little-endian");
  T value{};
  if (offset + sizeof(T) <= bytes.size()) {
    std::memcpy(&value, bytes.data() + offset, sizeof(T));
  }
  return value;
}

// RFC 1952: method 8, no reserved flags, a known level and system.
bool IsGzip(std::string_view head) {
  if (head.size() < 10 || !head.starts_with("\x1f\x8b\x08")) {
    return false;
  }
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(head[i]); };
  return byte(3) < 0x20 && (byte(8) == 0 || byte(8) == 2 || byte(8) == 4) && (byte(9) < 14 || byte(9) == 255);
}

// The first name of a zip archive tells whose it is.
const FileFormat* ZipOf(const FileFormat* zip, const FileSample& sample, std::string_view head) {
  constexpr size_t kNameLength = 26;
  constexpr size_t kName = 30;
  const auto length = At<uint16_t>(sample.head, kNameLength);
  const std::string_view name = head.size() > kName ? head.substr(kName, length) : "";
  return name.ends_with(".npy")                                        ? &kNpz
         : name.ends_with("/data.pkl") || name.starts_with("archive/") ? &kTorchZip
                                                                       : zip;
}

// Protocols 4 and 5 begin with the length of a frame; 2 and 3 with one of the usual opcodes, and end with STOP.
bool IsPickle(const FileSample& sample, std::string_view head) {
  if (head.size() < 11 || head[0] != '\x80' || head[1] < 2 || head[1] > 5) {
    return false;
  }
  if (head[1] >= 4) {
    const auto frame = At<uint64_t>(sample.head, 3);
    return head[2] == '\x95' && frame > 0 && frame <= static_cast<uint64_t>(sample.file_bytes);
  }
  const bool begins =
      "}]()cX"sv.find(head[2]) != std::string_view::npos && "q(X\0K]}"sv.find(head[3]) != std::string_view::npos;
  return begins && !sample.tail.empty() && sample.tail.back() == std::byte{'.'};
}

bool IsSafetensors(const FileSample& sample, std::string_view head) {
  constexpr uint64_t kMaxHeader = 100'000'000;
  const auto length = At<uint64_t>(sample.head, 0);
  return head.size() > 10 && length <= kMaxHeader && static_cast<int64_t>(length) + 8 <= sample.file_bytes &&
         (head.substr(8).starts_with("{\"") || head.substr(8).starts_with("{ ") || head.substr(8).starts_with("{}"));
}

// A message of Arrow's stream: continuation, length of its metadata, offset of the metadata's root.
bool IsArrowStream(const FileSample& sample) {
  const auto length = At<uint32_t>(sample.head, 4);
  const auto root = At<uint32_t>(sample.head, 8);
  return sample.head.size() >= 12 && At<uint32_t>(sample.head, 0) == 0xffffffffU && length > 0 && length % 8 == 0 &&
         length < (1U << 24) && root >= 4 && root % 2 == 0 && root < 64;
}

// A length and its masked CRC-32C (tensorflow/core/lib/io/record_writer.cc).
bool IsTfRecord(const FileSample& sample) {
  if (sample.head.size() < 12) {
    return false;
  }
  const auto length = At<uint64_t>(sample.head, 0);
  const uint32_t crc = Crc32c(sample.head.first(8));
  return length + 16 <= static_cast<uint64_t>(sample.file_bytes) && length < (uint64_t{1} << 40) &&
         At<uint32_t>(sample.head, 8) == ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

// The number of samples, then ascending places of them and of the end, behind the places and a description in JSON
// (streaming/base/format/mds/writer.py).
bool IsMds(const FileSample& sample) {
  const auto samples = At<uint32_t>(sample.head, 0);
  const int64_t places = 8 + 4 * static_cast<int64_t>(samples);
  int64_t before = places;
  const int64_t seen = std::min<int64_t>(int64_t{samples} + 1, std::ssize(sample.head) / 4 - 1);
  for (int64_t i = 0; i < seen; ++i) {
    const int64_t place = At<uint32_t>(sample.head, static_cast<size_t>(4 + 4 * i));
    if (place <= before || place > sample.file_bytes) {
      return false;
    }
    before = place;
  }
  const bool all = seen == int64_t{samples} + 1;
  constexpr int64_t kEnough = 64;  // as many ascending numbers by chance: never
  return samples > 0 &&
         (all ? before == sample.file_bytes && seen >= 2 &&
                    (places < std::ssize(sample.head) && sample.head[static_cast<size_t>(places)] == std::byte{'{'})
              : seen >= kEnough);
}

// LevelDB's and RocksDB's tables end with these numbers (table/format.h of both).
const FileFormat* TableOf(const FileSample& sample) {
  const uint64_t magic = sample.tail.size() == 8 ? At<uint64_t>(sample.tail, 0) : 0;
  return magic == 0xdb4775248b80fb57ULL                                     ? &kLevelDbTable
         : magic == 0x88e241b785f4cff7ULL || magic == 0x79f3a4d2c1b0ae85ULL ? &kRocksDbTable
                                                                            : nullptr;
}

bool IsWindowsProgram(const FileSample& sample, std::string_view head) {
  const auto place = At<uint32_t>(sample.head, 60);
  return head.starts_with("MZ") && place < head.size() && head.substr(place).starts_with("PE\0\0"sv);
}

bool IsUtf16(std::string_view head) {
  constexpr size_t kMin = 16;
  const size_t zero = head.starts_with("\xff\xfe") ? 1 : head.starts_with("\xfe\xff") ? 0 : 2;
  if (zero == 2 || head.size() < kMin) {
    return false;
  }
  int64_t ascii = 0;
  for (size_t i = 2; i + 1 < head.size(); i += 2) {
    const char other = head[i + 1 - zero];
    ascii += head[i + zero] == '\0' && (other >= ' ' || other == '\n' || other == '\r' || other == '\t') ? 1 : 0;
  }
  return 2 * ascii > static_cast<int64_t>(head.size()) / 2;
}

// Text has some variety: one number over and over may consist of letters, too.
const FileFormat* TextOf(std::string_view head) {
  constexpr size_t kMin = 32;
  constexpr size_t kMinDifferent = 8;
  std::string_view whole = head;  // without a character that the head cuts
  for (int i = 0; i < 3 && head.size() == kFormatHeadBytes && !IsUtf8(whole); ++i) {
    whole.remove_suffix(1);
  }
  std::bitset<256> different;
  for (const char c : whole) {
    different.set(static_cast<unsigned char>(c));
  }
  if (whole.size() < kMin || different.count() < kMinDifferent || !IsUtf8(whole) ||
      CountControlBytes(std::as_bytes(std::span(whole))) > 0) {
    return nullptr;
  }
  whole.remove_prefix(std::min(whole.find_first_not_of("\xef\xbb\xbf \t\r\n"), whole.size()));
  if (whole.starts_with("<!DOCTYPE html") || whole.starts_with("<!doctype html") || whole.starts_with("<html")) {
    return &kHtml;
  }
  return whole.starts_with("<?xml") ? &kXml : whole.starts_with('{') || whole.starts_with('[') ? &kJson : &kText;
}

constexpr auto kFolderFormats = std::to_array<FolderFormat>({
    {"adapter_config.json", "a LoRA adapter", "merge it into its base model first (merge_and_unload of peft)"},
    {"adapter_model.*", "a LoRA adapter", "merge it into its base model first (merge_and_unload of peft)"},
    {"pytorch_model*.bin", "PyTorch weights", "save them as safetensors (save_pretrained of transformers does)"},
    {"pytorch_model.bin.index.json", "PyTorch weights",
     "save them as safetensors (save_pretrained of transformers does)"},
    {"consolidated*.pth", "weights as Meta publishes them",
     "convert them (convert_llama_weights_to_hf.py of transformers)"},
    {"consolidated*.safetensors", "weights as Mistral publishes them", "take the Hugging Face files of the model"},
    {"*.gguf", "GGUF weights (llama.cpp)", "take the model's Hugging Face files, from which they were made"},
    {"tf_model*.h5", "TensorFlow weights", "save them as safetensors (save_pretrained of transformers does)"},
    {"saved_model.pb", "a TensorFlow model", "save its weights as safetensors under Hugging Face's names"},
    {"*.data-00000-of-*", "a TensorFlow checkpoint", "save its weights as safetensors under Hugging Face's names"},
    {"flax_model*.msgpack", "Flax weights", "save them as safetensors (save_pretrained of transformers does)"},
    {"latest_checkpointed_iteration.txt", "a Megatron-LM checkpoint", "convert it to Hugging Face's format first"},
    {"mp_rank_*", "a Megatron-LM checkpoint", "convert it to Hugging Face's format first"},
    {"iter_*", "a Megatron-LM checkpoint", "convert it to Hugging Face's format first"},
    {"*.nemo", "a NeMo checkpoint", "convert it to Hugging Face's format first"},
    {"*.distcp", "a PyTorch distributed checkpoint", "convert it to Hugging Face's format first"},
    {"zero_pp_rank_*", "a DeepSpeed checkpoint", "convert it first (zero_to_fp32.py)"},
    {"global_step*", "a DeepSpeed checkpoint", "convert it first (zero_to_fp32.py)"},
    {"*.ckpt", "a Lightning or TensorFlow checkpoint", "convert it to Hugging Face's format first"},
    {"*.onnx", "an ONNX model", "take the model's Hugging Face files, from which it was made"},
    {"*.npz", "NumPy archives", "write what they hold as the format that is wanted"},
    {"*.pt", "PyTorch files", "save them as safetensors under Hugging Face's names"},
    {"*.pth", "PyTorch files", "save them as safetensors under Hugging Face's names"},
    {"dataset_info.json", "a Hugging Face dataset", "write its tokens to one flat file"},
    {"index.json", "a dataset of MosaicML streaming", "write its tokens to one flat file"},
    {"data.mdb", "an LMDB database", "write its tokens to one flat file"},
    {"MANIFEST-*", "a LevelDB or RocksDB database", "write its tokens to one flat file"},
    {".zarray", "a Zarr array", "write its tokens to one flat file"},
    {"zarr.json", "a Zarr array", "write its tokens to one flat file"},
    {"*.parquet", "Parquet files", "write their tokens to one flat file"},
    {"*.arrow", "Arrow files", "write their tokens to one flat file"},
    {"*.tfrecord*", "TFRecord files", "write their tokens to one flat file"},
});

bool Fits(std::string_view name, std::string_view sign) {
  const size_t star = sign.find('*');
  if (star == std::string_view::npos) {
    return name == sign;
  }
  if (!name.starts_with(sign.substr(0, star))) {
    return false;
  }
  const std::string_view rest = sign.substr(star + 1);
  for (size_t end = star; end <= name.size(); ++end) {
    if (Fits(name.substr(end), rest)) {
      return true;
    }
  }
  return false;
}

}  // namespace

const FileFormat* RecogniseFormat(const FileSample& sample) {
  const std::string_view head(reinterpret_cast<const char*>(sample.head.data()), sample.head.size());
  for (const Signature& signature : kSignatures) {
    if (std::ssize(head) >= signature.offset && head.substr(signature.offset).starts_with(signature.bytes)) {
      return signature.bytes.starts_with("PK\x03\x04") ? ZipOf(&signature.format, sample, head) : &signature.format;
    }
  }
  if (const FileFormat* table = TableOf(sample); table != nullptr) {
    return table;
  }
  return IsGzip(head)                     ? &kGzip
         : IsPickle(sample, head)         ? &kPickle
         : IsSafetensors(sample, head)    ? &kSafetensors
         : IsArrowStream(sample)          ? &kArrowStream
         : IsTfRecord(sample)             ? &kTfRecord
         : IsMds(sample)                  ? &kMds
         : IsWindowsProgram(sample, head) ? &kWindowsProgram
         : IsUtf16(head)                  ? &kUtf16
                                          : TextOf(head);
}

const FileFormat* RecogniseFormat(std::string_view content) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(content));
  const size_t head = std::min<size_t>(bytes.size(), kFormatHeadBytes);
  const size_t tail = std::min<size_t>(bytes.size(), kFormatTailBytes);
  return RecogniseFormat({.head = bytes.first(head), .tail = bytes.last(tail), .file_bytes = std::ssize(bytes)});
}

int64_t CountControlBytes(std::span<const std::byte> bytes) {
  return std::ranges::count_if(bytes, [](std::byte byte) {
    const auto c = static_cast<unsigned char>(byte);
    return (c < 0x20 && (c < 0x08 || c > 0x0d) && c != 0x1b) || c == 0x7f;
  });
}

std::string_view RemedyFor(const FileFormat& format, WantedFile wanted) {
  if (wanted == WantedFile::kTokens && !format.tokens_remedy.empty()) {
    return format.tokens_remedy;
  }
  switch (format.kind) {
    case Kind::kCompressed:
      return "decompress it first";
    case Kind::kArchive:
      return "unpack it first";
    case Kind::kPointer:
      return "fetch the file that it stands for: git lfs pull";
    case Kind::kUtf16:
      return wanted == WantedFile::kTokens ? "tokenize it first, or use data.format: text" : "save it as UTF-8";
    case Kind::kText:
    case Kind::kTokens:
    case Kind::kDataset:
    case Kind::kWeights:
    case Kind::kOther:
      break;
  }
  switch (wanted) {
    case WantedFile::kTokens:
      return format.kind == Kind::kText      ? "tokenize it first, or use data.format: text"
             : format.kind == Kind::kDataset ? "write its tokens to a flat file of uint16 or uint32"
                                             : "name a file of tokens";
    case WantedFile::kText:
      return format.kind == Kind::kTokens    ? "use data.format: tokens with a flat file"
             : format.kind == Kind::kDataset ? "write its text to a file"
                                             : "name files of text";
    case WantedFile::kConfiguration:
      return "name another file";
    case WantedFile::kWeights:
      return "copy or download the file again";
  }
  return "";
}

std::string_view KindOfFile(uint32_t st_mode) {
  switch (st_mode & S_IFMT) {
    case S_IFREG:
      return "";
    case S_IFDIR:
      return "a folder";
    case S_IFIFO:
      return "a named pipe";
    case S_IFSOCK:
      return "a socket";
    case S_IFCHR:
      return "a character device";
    case S_IFBLK:
      return "a block device";
    default:
      return "not a regular file";
  }
}

const FolderFormat* RecogniseFolder(std::span<const std::string> names) {
  for (const FolderFormat& format : kFolderFormats) {
    if (std::ranges::any_of(names, [&](const std::string& name) { return Fits(name, format.sign); })) {
      return &format;
    }
  }
  return nullptr;
}

}  // namespace geopipe
