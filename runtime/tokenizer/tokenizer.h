// Text to token ids, as the program does that a model was published with.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

// One thread's working memory, which outlives no tokenizer.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Appends the ids of a document's text, which is UTF-8. A long document may come in pieces: `follows` is then the
  // beginning of the next one, and `closed` becomes false where a token may reach beyond this piece; its ids then count
  // for nothing, and the two pieces have to be encoded as one. A piece that nothing follows is always closed.
  // REQUIRES: `follows` is empty unless the tokenizer can_cut, and the piece then ends behind a line feed.
  // FailedPrecondition: the text is more than the tokenizer's libraries take.
  virtual absl::Status Encode(std::string_view text, std::string_view follows, std::vector<uint32_t>& ids,
                              bool& closed) = 0;

  absl::Status Encode(std::string_view text, std::vector<uint32_t>& ids) {
    bool closed = true;
    return Encode(text, {}, ids, closed);
  }
};

// A token that stands before or behind the text of a document.
struct Mark {
  std::string token;
  uint32_t id = 0;

  friend bool operator==(const Mark&, const Mark&) = default;
};

struct DocumentMarks {
  std::vector<Mark> begin;
  std::vector<Mark> end;
};

// Immutable; any thread may read.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::unique_ptr<TextEncoder> NewEncoder() const = 0;
  // All ids are below this.
  virtual int64_t vocabulary() const = 0;
  // Id of a token by its text; of several of the same text, the one that texts give.
  virtual std::optional<uint32_t> IdOf(std::string_view token) const = 0;
  // Marks that the tokenizer's own file, or one beside it, puts around a document. An absent end: it names none.
  virtual const DocumentMarks& own_marks() const = 0;
  // True when a long document may come in pieces.
  virtual bool can_cut() const = 0;
  // Longest document, in bytes, that is encoded as one piece.
  virtual int64_t max_piece_bytes() const = 0;
};

}  // namespace geopipe
