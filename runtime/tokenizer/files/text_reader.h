// Text files as pieces of work for several threads, in the order of the files and of what is in them.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/input_file.h"

namespace geopipe {

// Places at which documents begin and end in a file.
enum class TextLayout : uint8_t {
  kFile,       // the whole file is one
  kLines,      // each line is one
  kJsonLines,  // each line is a JSON object, with the document as the value of a key
};

// A run of whole documents, or a part of one.
struct TextPiece {
  TextLayout layout = TextLayout::kFile;
  std::string path = {};
  int64_t offset = 0;        // of `bytes` in the file
  int64_t line = 1;          // in which they begin
  std::string bytes = {};    // of kLines and kJsonLines whole lines
  std::string follows = {};  // kFile: the beginning of the next part, of some hundred bytes
  bool begins = true;        // kFile: the document begins and ends here
  bool ends = true;
};

struct TextReaderOptions {
  std::optional<TextLayout> layout = {};       // absent: kJsonLines of files named .jsonl or .ndjson, kFile of others
  bool cuts = false;                           // a long document of kFile may come in parts
  int64_t piece_bytes = int64_t{1} << 20;      // about
  int64_t max_piece_bytes = int64_t{1} << 30;  // a longer document, or line, is refused
};

class TextReader {
 public:
  // `paths` are files, read in this order.
  TextReader(std::vector<std::string> paths, TextReaderOptions options);

  // Bytes of all files. NotFound, ...: those of InputFile::Open; InvalidArgument: a file is of a format that is no
  // text, which the error names with the remedy.
  absl::StatusOr<int64_t> CheckFiles() const;

  // The next piece; absent: there are no more. Errors: those of InputFile; OutOfRange: a document is too long.
  absl::StatusOr<std::optional<TextPiece>> Next();

 private:
  absl::Status OpenNext();
  // Reads on until the buffer has `bytes`, or the file ends.
  absl::Status Fill(size_t bytes);
  bool at_end() const { return file_.has_value() && read_ == file_->bytes(); }
  // Bytes at the front of the buffer that can become a piece; 0: more is needed. Sets what follows them.
  size_t Cut(std::string& follows) const;
  TextPiece Take(size_t bytes);

  std::vector<std::string> paths_;
  TextReaderOptions options_;
  size_t next_file_ = 0;
  std::optional<InputFile> file_;
  TextLayout layout_ = TextLayout::kFile;
  std::string buffer_;  // read and not taken
  int64_t read_ = 0;    // bytes of the file
  int64_t taken_ = 0;   // bytes of the file
  int64_t line_ = 1;
};

}  // namespace geopipe
