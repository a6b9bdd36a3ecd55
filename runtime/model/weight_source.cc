#include "runtime/model/weight_source.h"

#include <algorithm>
#include <string>

#include "optimizer/base/status_macros.h"

namespace geopipe {
namespace {

bool IsWhole(const TensorPiece& piece) { return piece.count == piece.tensor.count(); }

void Extract(const TensorPiece& piece, std::span<const float> whole, std::span<float> values) {
  piece.ForEachRun([&](int64_t in_tensor, int64_t in_piece, int64_t elements) {
    std::ranges::copy(whole.subspan(in_tensor, elements), values.begin() + in_piece);
  });
}

}  // namespace

TensorPiece WholeTensor(std::string_view name, const std::vector<int64_t>& shape) {
  TensorPiece piece{.tensor = {.name = std::string(name), .shape = shape}};
  piece.count = piece.tensor.count();
  return piece;
}

absl::Status WeightSource::ReadPiece(const TensorPiece& piece, std::span<float> values) {
  if (IsWhole(piece)) {
    return Read(piece.tensor.name, piece.tensor.shape, values);
  }
  std::vector<float> whole(static_cast<size_t>(piece.tensor.count()));
  GP_RETURN_IF_ERROR(Read(piece.tensor.name, piece.tensor.shape, whole));
  Extract(piece, whole, values);
  return absl::OkStatus();
}

absl::StatusOr<bool> WeightSource::ReadMomentsPiece(const TensorPiece& piece, std::span<float> first,
                                                    std::span<float> second) {
  if (IsWhole(piece)) {
    return ReadMoments(piece.tensor.name, piece.tensor.shape, first, second);
  }
  std::vector<float> whole_first(static_cast<size_t>(piece.tensor.count()));
  std::vector<float> whole_second(whole_first.size());
  GP_ASSIGN_OR_RETURN(const bool found, ReadMoments(piece.tensor.name, piece.tensor.shape, whole_first, whole_second));
  if (found) {
    Extract(piece, whole_first, first);
    Extract(piece, whole_second, second);
  }
  return found;
}

}  // namespace geopipe
