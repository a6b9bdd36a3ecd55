// Files of known formats by their first bytes, so that whoever is given the wrong kind of file says what it is. The one
// table of signatures. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace geopipe {

enum class FormatKind : uint8_t {
  kText,        // plain, JSON, XML, ...
  kUtf16,       // text that is not UTF-8
  kCompressed,  // one compressed file
  kArchive,     // many files in one
  kTokens,      // tokens behind a header or in an index of another program
  kDataset,     // tables, records, databases
  kWeights,     // of a model
  kPointer,     // stands for a file that is elsewhere
  kOther,       // documents, pictures, programs
};

struct FileFormat {
  FormatKind kind = FormatKind::kOther;
  std::string_view name;           // "a gzip file"
  std::string_view tokens_remedy;  // what makes a flat file of tokens of it; empty: what does of its kind
};

// Bytes that RecogniseFormat looks at, all of them in a shorter file; tar's signature is at 257, and records are
// recognised by the longest head.
inline constexpr int64_t kFormatHeadBytes = 4096;
inline constexpr int64_t kFormatTailBytes = 8;

struct FileSample {
  std::span<const std::byte> head;       // up to kFormatHeadBytes
  std::span<const std::byte> tail = {};  // the last kFormatTailBytes; may be left out
  int64_t file_bytes = 0;
};

// Recognises a file; nullptr: no format that is known, as of flat files of tokens. Short signatures count only with
// more that fits them, so that a flat file of tokens is taken for something else less than once in 2^28 files. Text is
// recognised from 32 bytes on.
const FileFormat* RecogniseFormat(const FileSample& sample);

// The same, for the whole content of a file.
const FileFormat* RecogniseFormat(std::string_view content);

// Bytes that text does not have: control characters but for blanks, line and page ends, and escapes.
int64_t CountControlBytes(std::span<const std::byte> bytes);

// RemedyFor says what to do with a file of this format where another kind is wanted: the end of an error's sentence.
enum class WantedFile : uint8_t { kTokens, kText, kConfiguration, kWeights };
std::string_view RemedyFor(const FileFormat& format, WantedFile wanted);

// "a folder", "a named pipe", ... of st_mode; empty: a regular file.
std::string_view KindOfFile(uint32_t st_mode);

// Another program's folder, known by the names in it, with the remedy where model weights or tokens are wanted.
struct FolderFormat {
  std::string_view sign;  // the name that shows it; '*' stands for any letters
  std::string_view name;  // "PyTorch weights"
  std::string_view remedy;
};
// Recognises a folder; nullptr: no format that is known. `names` are those of the folder's entries.
const FolderFormat* RecogniseFolder(std::span<const std::string> names);

}  // namespace geopipe
