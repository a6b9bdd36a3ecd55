// Token ids of pieces of text files, as the bytes of a token file.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/files/text_reader.h"
#include "runtime/tokenizer/tokenizer.h"

namespace geopipe {

struct EncodingOptions {
  std::vector<Mark> begin = {};  // before each document
  std::vector<Mark> end = {};    // and behind it
  std::string key = "text";      // of the document in a JSON line
  bool repairs_utf8 = false;     // invalid UTF-8 becomes U+FFFD; else it is an error
  int32_t token_bytes = 2;       // 2 or 4
};

struct TextCounts {
  int64_t documents = 0;
  int64_t empty_documents = 0;  // which leave nothing
  int64_t text_bytes = 0;       // of documents
  int64_t tokens = 0;           // marks among them

  friend bool operator==(const TextCounts&, const TextCounts&) = default;
};

struct EncodedPiece {
  absl::Status status;
  std::string tokens;  // little-endian
  TextCounts counts;
  bool closed = true;  // false: encode it as one with the next piece
};

// One thread's.
class PieceEncoder {
 public:
  // Both outlive it.
  PieceEncoder(const Tokenizer& tokenizer, const EncodingOptions& options);

  // Errors, InvalidArgument, name file, place and remedy: invalid UTF-8, a line that is no JSON object with a text at
  // the key. Those of TextEncoder, with the place.
  EncodedPiece Encode(const TextPiece& piece);

 private:
  absl::Status EncodeFile(const TextPiece& piece, EncodedPiece& encoded);
  absl::Status EncodeLines(const TextPiece& piece, EncodedPiece& encoded);
  absl::Status EncodeDocument(std::string_view text, const std::string& place, EncodedPiece& encoded);
  // Valid UTF-8 of the bytes, which lie there in the file.
  absl::StatusOr<std::string_view> Valid(std::string_view bytes, const TextPiece& piece, int64_t offset,
                                         std::string& room) const;
  void Append(const std::vector<Mark>& marks);

  const EncodingOptions& options_;
  const std::unique_ptr<TextEncoder> encoder_;
  std::vector<uint32_t> ids_;
  std::string repaired_;
  std::string repaired_follows_;
  std::string document_;  // of a JSON line
};

}  // namespace geopipe
