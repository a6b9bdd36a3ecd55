// Writer of one .safetensors file, tensor by tensor, so that a model need not be in memory twice.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/unique_fd.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;

  friend bool operator==(const TensorInfo&, const TensorInfo&) = default;
};

class SafetensorsWriter {
 public:
  // Begins `path`.partial with the header for `tensors`, all of `dtype` (fp32 or bf16). Unavailable names path and
  // cause (no such folder, no space).
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path, DType dtype,
                                                                   std::vector<TensorInfo> tensors);
  // Without Finish nothing is left behind.
  ~SafetensorsWriter();

  // The next tensor in the order given to Create. REQUIRES: there is one, of as many elements.
  absl::Status Append(std::span<const float> values);

  // Syncs the file and gives it its name: it exists whole or not at all. REQUIRES: every tensor was appended.
  absl::Status Finish();

 private:
  SafetensorsWriter(std::string path, UniqueFd fd, DType dtype, std::vector<TensorInfo> tensors);

  absl::Status WriteAll(std::span<const std::byte> bytes);
  absl::Status IoError(std::string_view what, int error) const;

  const std::string path_;
  const std::string partial_path_;
  UniqueFd fd_;
  const DType dtype_;
  const std::vector<TensorInfo> tensors_;
  size_t appended_ = 0;
};

}  // namespace geopipe
