// Writes a model as a Hugging Face Llama directory.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// Fills `values` with the tensor of that name and shape, as HfDirectory::Read does.
using ReadTensor =
    std::function<absl::Status(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values)>;

// Writes config.json and model.safetensors (`dtype` fp32 or bf16) into the existing folder `directory`, asking `read`
// for every tensor of `model`, one at a time. A tied model gets no lm_head.weight. Files get their names only when they
// are whole. Errors: those of `read`; Unavailable names the file that cannot be written and why.
absl::Status ExportHf(const std::string& directory, const ModelSpec& model, DType dtype, const ReadTensor& read);

}  // namespace geopipe
