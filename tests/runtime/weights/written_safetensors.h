// Writes .safetensors files for tests.
#pragma once

#include <string>
#include <vector>

#include "runtime/weights/safetensors_header.h"

namespace geopipe {

// `values` are those of `tensors`, in the same order. REQUIREs that the file can be written.
void WriteSafetensors(const std::string& path, const std::vector<DeclaredTensor>& tensors,
                      const std::vector<std::vector<float>>& values);

}  // namespace geopipe
