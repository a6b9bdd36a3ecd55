// Hugging Face directories of bf16 weights in several files, for tests, and what lies in such directories.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "optimizer/model/transformer.h"

namespace geopipe {

// A tensor as it lies in a file.
struct TensorContent {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;

  friend bool operator==(const TensorContent&, const TensorContent&) = default;
};

// Writes the tensors of `model` as transformers does: bf16, by name, over three files with an index, and a config.json.
// `values` are rounded to bf16. REQUIREs that the files can be written.
void WriteShardedBf16(const std::string& folder, const ModelSpec& model,
                      const std::function<std::vector<float>(const ParameterTensor& tensor)>& values);

// Tensors of all .safetensors files by name. REQUIREs that each can be read and that no two hold the same tensor.
std::map<std::string, TensorContent> TensorsIn(const std::string& folder);

// Names of tensors that differ in dtype, shape or any byte, or that only one of the two has.
std::vector<std::string> Differing(const std::map<std::string, TensorContent>& a,
                                   const std::map<std::string, TensorContent>& b);

}  // namespace geopipe
