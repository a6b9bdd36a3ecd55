#include "runtime/tokenizer/files/piece_encoder.h"

#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/tokenizer/files/json_text_key.h"
#include "runtime/tokenizer/files/utf8_repair.h"

namespace geopipe {
namespace {

static_assert(std::endian::native == std::endian::little,
              "token files are little-endian and written without conversion");

std::string Packed(const std::vector<uint32_t>& ids, int32_t token_bytes) {
  std::string packed(ids.size() * static_cast<size_t>(token_bytes), '\0');
  if (token_bytes == sizeof(uint32_t)) {
    std::memcpy(packed.data(), ids.data(), packed.size());
    return packed;
  }
  char* next = packed.data();
  for (const uint32_t id : ids) {
    const auto narrow = static_cast<uint16_t>(id);
    std::memcpy(next, &narrow, sizeof(narrow));
    next += sizeof(narrow);
  }
  return packed;
}

absl::Status At(const std::string& place, const absl::Status& status) {
  return status.ok() ? status
                     : absl::Status(status.code(), fmt::format("{}: {}", place, std::string(status.message())));
}

}  // namespace

PieceEncoder::PieceEncoder(const Tokenizer& tokenizer, const EncodingOptions& options)
    : options_(options), encoder_(tokenizer.NewEncoder()) {
  GP_CHECK(options.token_bytes == 2 || options.token_bytes == 4);
}

EncodedPiece PieceEncoder::Encode(const TextPiece& piece) {
  EncodedPiece encoded;
  ids_.clear();
  encoded.status = piece.layout == TextLayout::kFile ? EncodeFile(piece, encoded) : EncodeLines(piece, encoded);
  encoded.counts.tokens = static_cast<int64_t>(ids_.size());
  encoded.tokens = Packed(ids_, options_.token_bytes);
  return encoded;
}

void PieceEncoder::Append(const std::vector<Mark>& marks) {
  for (const Mark& mark : marks) {
    ids_.push_back(mark.id);
  }
}

absl::StatusOr<std::string_view> PieceEncoder::Valid(std::string_view bytes, const TextPiece& piece, int64_t offset,
                                                     std::string& room) const {
  if (options_.repairs_utf8) {
    return RepairUtf8(bytes, room);
  }
  const std::optional<InvalidUtf8> invalid = FindInvalidUtf8(bytes);
  if (!invalid.has_value()) {
    return bytes;
  }
  return absl::InvalidArgumentError(fmt::format(
      "{}: byte {} is {:#04x}, which is no UTF-8 there; convert the file (iconv), or replace such bytes with "
      "--invalid-utf8 replace",
      piece.path, offset + static_cast<int64_t>(invalid->at), static_cast<uint8_t>(bytes[invalid->at])));
}

absl::Status PieceEncoder::EncodeFile(const TextPiece& piece, EncodedPiece& encoded) {
  GP_ASSIGN_OR_RETURN(const std::string_view text, Valid(piece.bytes, piece, piece.offset, repaired_));
  if (piece.begins) {
    Append(options_.begin);
  }
  const std::string_view follows = RepairUtf8(piece.follows, repaired_follows_);
  GP_RETURN_IF_ERROR(At(piece.path, encoder_->Encode(text, follows, ids_, encoded.closed)));
  if (piece.ends) {
    Append(options_.end);
  }
  encoded.counts.documents += piece.ends ? 1 : 0;
  encoded.counts.text_bytes += static_cast<int64_t>(text.size());
  return absl::OkStatus();
}

absl::Status PieceEncoder::EncodeLines(const TextPiece& piece, EncodedPiece& encoded) {
  int64_t number = piece.line;
  for (std::string_view rest = piece.bytes; !rest.empty(); ++number) {
    const size_t feed = rest.find('\n');
    const std::string_view whole = rest.substr(0, feed);
    const std::string_view line = whole.ends_with('\r') ? whole.substr(0, whole.size() - 1) : whole;
    const int64_t offset = piece.offset + (line.data() - piece.bytes.data());
    rest.remove_prefix(feed == std::string_view::npos ? rest.size() : feed + 1);
    GP_ASSIGN_OR_RETURN(std::string_view text, Valid(line, piece, offset, repaired_));
    const std::string place = fmt::format("{}:{}", piece.path, number);
    if (piece.layout == TextLayout::kJsonLines) {
      if (text.find_first_not_of(" \t") == std::string_view::npos) {
        continue;
      }
      GP_RETURN_IF_ERROR(At(place, TextAtKey(text, options_.key, document_)));
      text = document_;
    }
    GP_RETURN_IF_ERROR(EncodeDocument(text, place, encoded));
  }
  return absl::OkStatus();
}

absl::Status PieceEncoder::EncodeDocument(std::string_view text, const std::string& place, EncodedPiece& encoded) {
  if (text.empty()) {
    ++encoded.counts.empty_documents;
    return absl::OkStatus();
  }
  ++encoded.counts.documents;
  encoded.counts.text_bytes += static_cast<int64_t>(text.size());
  Append(options_.begin);
  GP_RETURN_IF_ERROR(At(place, encoder_->Encode(text, ids_)));
  Append(options_.end);
  return absl::OkStatus();
}

}  // namespace geopipe
