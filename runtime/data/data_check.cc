#include "runtime/data/data_check.h"

#include <algorithm>
#include <span>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"

namespace geopipe {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr int64_t kMinChunkBytes = int64_t{16} << 20;

}  // namespace

// Whole pieces.
int64_t DataChunkBytes(int64_t data_bytes) {
  const int64_t pieces = (data_bytes - 1) / kPieceBytes + 1;
  return std::max(kMinChunkBytes, ((pieces - 1) / kMaxDataChunks + 1) * kPieceBytes);
}

DataCheck::DataCheck(const Corpus& corpus)
    : corpus_(corpus),
      chunk_bytes_(DataChunkBytes(corpus.files().bytes())),
      buffer_(std::min(kPieceBytes, corpus.files().bytes())) {}

absl::Status DataCheck::Next() {
  GP_CHECK(!done());
  const int64_t bytes = corpus_.files().bytes();
  const std::span<std::byte> piece = std::span(buffer_).first(std::min(kPieceBytes, bytes - position_));
  GP_RETURN_IF_ERROR(corpus_.files().Read(position_, piece));
  GP_RETURN_IF_ERROR(corpus_.CheckTokens(position_, piece));
  crc_ = Crc32c(piece, crc_);
  position_ += std::ssize(piece);
  if (position_ % chunk_bytes_ == 0 || done()) {
    checksums_.push_back(crc_);
    crc_ = 0;
  }
  return absl::OkStatus();
}

}  // namespace geopipe
