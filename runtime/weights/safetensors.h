// Reader of one .safetensors file (Hugging Face): 8 bytes little-endian length of the header, the header in JSON
// ({"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {…}}), then the tensors'
// bytes, to which the offsets are relative.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/weights/mapped_file.h"

namespace geopipe {

// A tensor as it lies in the file.
struct StoredTensor {
  std::string dtype;  // as the file names it: "F32", "BF16", "F16", or one that this program cannot convert
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // valid as long as the SafetensorsFile it is from
};

// Memory-mapped and immutable; any thread may read.
class SafetensorsFile {
 public:
  // Checks the whole header against the file, as strictly as the format is defined: InvalidArgument names file, tensor,
  // what was found and the remedy (truncated file, header longer than the file or than kMaxHeaderBytes, malformed
  // header, a tensor given twice, unknown dtype, offsets outside the data or not matching dtype and shape, tensors that
  // overlap, bytes that no tensor covers). Errors of MappedFile::Open.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  static constexpr int64_t kMaxHeaderBytes = 100'000'000;  // as in the reference implementation

  const std::string& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor, std::less<>>& tensors() const { return tensors_; }

  // NotFound: no such tensor. InvalidArgument: another shape (expected and found), or a dtype that is none of F32,
  // BF16, F16.
  absl::Status CheckTensor(std::string_view name, const std::vector<int64_t>& shape) const;

  // Converts a tensor to fp32. Errors: those of CheckTensor. REQUIRES: values.size() is the number of elements of
  // `shape`.
  absl::Status Read(std::string_view name, const std::vector<int64_t>& shape, std::span<float> values) const;

 private:
  explicit SafetensorsFile(MappedFile file) : file_(std::move(file)) {}

  MappedFile file_;
  std::map<std::string, StoredTensor, std::less<>> tensors_;
};

// True when two tensors hold the same numbers, whatever their formats. InvalidArgument: dtypes that cannot be read.
// REQUIRES: they are there.
absl::StatusOr<bool> EqualTensors(const SafetensorsFile& a, std::string_view name_a, const SafetensorsFile& b,
                                  std::string_view name_b);

}  // namespace geopipe
