// The beginning of a .safetensors file that is to be written.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/weights/float_formats.h"

namespace geopipe {

// A tensor of that file.
struct DeclaredTensor {
  std::string name{};
  std::vector<int64_t> shape{};
  FloatFormat format = FloatFormat::kFp32;

  int64_t elements() const;
  int64_t bytes() const { return elements() * RowOf(format).bytes; }

  friend bool operator==(const DeclaredTensor&, const DeclaredTensor&) = default;
};

// Eight bytes of length, then JSON padded with blanks to a multiple of eight, so that the tensors' bytes, which follow
// without gaps in this order, are aligned. It says that the tensors are PyTorch's, without which transformers refuses
// the file. REQUIRES: the tensors' bytes together are an int64_t.
std::string SafetensorsHeader(std::span<const DeclaredTensor> tensors);

}  // namespace geopipe
