// Gradient-norm terms as the payload of one message: int32 words, little-endian.
//
//   count, then per term: length of the name in bytes, the name padded to whole words, the sum of squares (fp64)
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "runtime/model/stage_engine.h"
#include "runtime/tensor/allocator.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

int64_t NormMessageBytes(const std::vector<NormTerm>& terms);

// A tensor of dtype int32 and category transport. Errors are the allocator's.
absl::StatusOr<Tensor> EncodeNormTerms(const std::vector<NormTerm>& terms, Allocator& allocator);

// Decodes a message of norm terms; DataLoss when it is not one.
absl::StatusOr<std::vector<NormTerm>> DecodeNormTerms(const Tensor& message);

// The global norm: square root of the sum over all stages' terms, added in fp64 in byte order of their HF names, so
// that every stage, under every split of the layers, gets the same bits. 0 without terms.
double GlobalNorm(std::vector<NormTerm> terms);

}  // namespace geopipe
