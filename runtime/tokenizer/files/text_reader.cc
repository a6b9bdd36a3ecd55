#include "runtime/tokenizer/files/text_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "optimizer/base/quantities.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/format_of_file.h"

namespace geopipe {
namespace {

constexpr size_t kFollowsBytes = 512;
constexpr size_t kMaxFollowsBytes = 4096;

bool IsAscii(char c) { return static_cast<uint8_t>(c) < 0x80; }

// The text that follows a place: some hundred bytes that end before a character of ASCII, because such a one
// composes with none before it. Empty: there are no such.
std::string_view FollowsAt(std::string_view text, size_t at) {
  for (size_t end = std::min(at + kFollowsBytes, text.size() - 1); end > at; --end) {
    if (IsAscii(text[end])) {
      return text.substr(at, end - at);
    }
  }
  for (size_t end = at + kFollowsBytes; end < std::min(at + kMaxFollowsBytes, text.size()); ++end) {
    if (IsAscii(text[end])) {
      return text.substr(at, end - at);
    }
  }
  return {};
}

}  // namespace

TextReader::TextReader(std::vector<std::string> paths, TextReaderOptions options)
    : paths_(std::move(paths)), options_(options) {}

absl::StatusOr<int64_t> TextReader::CheckFiles() const {
  int64_t bytes = 0;
  for (const std::string& path : paths_) {
    GP_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
    GP_ASSIGN_OR_RETURN(const FileFormat* const format, FormatOfFile(file));
    if (format != nullptr && format->kind != FormatKind::kText) {
      return absl::InvalidArgumentError(
          fmt::format("{}: is {}, not text; {}", path, format->name, RemedyFor(*format, WantedFile::kText)));
    }
    bytes += file.bytes();
  }
  return bytes;
}

absl::Status TextReader::OpenNext() {
  const std::string& path = paths_[next_file_++];
  GP_ASSIGN_OR_RETURN(file_, InputFile::Open(path));
  const bool is_json = path.ends_with(".jsonl") || path.ends_with(".ndjson");
  layout_ = options_.layout.value_or(is_json ? TextLayout::kJsonLines : TextLayout::kFile);
  buffer_.clear();
  read_ = 0;
  taken_ = 0;
  line_ = 1;
  return absl::OkStatus();
}

absl::Status TextReader::Fill(size_t bytes) {
  while (buffer_.size() < bytes && !at_end()) {
    const size_t have = buffer_.size();
    const int64_t more = std::min(static_cast<int64_t>(bytes - have), file_->bytes() - read_);
    buffer_.resize(have + static_cast<size_t>(more));
    GP_RETURN_IF_ERROR(file_->Read(read_, std::as_writable_bytes(std::span(buffer_).subspan(have))));
    read_ += more;
  }
  return absl::OkStatus();
}

size_t TextReader::Cut(std::string& follows) const {
  if (layout_ != TextLayout::kFile) {
    return buffer_.rfind('\n') + 1;  // 0 where there is none
  }
  for (size_t at = buffer_.rfind('\n'); options_.cuts && at != std::string::npos && at > 0;
       at = buffer_.rfind('\n', at - 1)) {
    const bool ends_blanks = at + 1 < buffer_.size() && static_cast<uint8_t>(buffer_[at + 1]) > ' ';
    if (const std::string_view next = ends_blanks ? FollowsAt(buffer_, at + 1) : ""; !next.empty()) {
      follows = next;
      return at + 1;
    }
  }
  return 0;
}

TextPiece TextReader::Take(size_t bytes) {
  TextPiece piece{.layout = layout_, .path = file_->path(), .offset = taken_, .line = line_};
  piece.begins = taken_ == 0;
  piece.bytes = buffer_.substr(0, bytes);
  buffer_.erase(0, bytes);
  taken_ += static_cast<int64_t>(bytes);
  piece.ends = taken_ == file_->bytes();
  line_ += layout_ == TextLayout::kFile ? 0 : std::ranges::count(piece.bytes, '\n');
  return piece;
}

absl::StatusOr<std::optional<TextPiece>> TextReader::Next() {
  while (!file_.has_value() || taken_ == file_->bytes()) {
    if (next_file_ == paths_.size()) {
      return std::optional<TextPiece>();
    }
    GP_RETURN_IF_ERROR(OpenNext());
  }
  for (auto wanted = static_cast<size_t>(options_.piece_bytes);; wanted *= 2) {
    GP_RETURN_IF_ERROR(Fill(wanted));
    std::string follows;
    const size_t bytes = at_end() && buffer_.size() <= wanted ? buffer_.size() : Cut(follows);
    if (bytes > static_cast<size_t>(options_.max_piece_bytes) ||
        (bytes == 0 && buffer_.size() > static_cast<size_t>(options_.max_piece_bytes))) {
      return absl::OutOfRangeError(fmt::format(
          "{}: the {} at byte {} is longer than {}, the most that this tokenizer takes at once; {}", file_->path(),
          layout_ == TextLayout::kFile ? "document" : "line", taken_, HumanBytes(options_.max_piece_bytes),
          layout_ == TextLayout::kFile ? "divide the file, or use --documents line" : "divide it"));
    }
    if (bytes > 0) {
      TextPiece piece = Take(bytes);
      piece.follows = std::move(follows);
      return std::optional(std::move(piece));
    }
  }
}

}  // namespace geopipe
