#include "runtime/weights/safetensors_header.h"

#include <bit>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

namespace geopipe {

int64_t DeclaredTensor::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string SafetensorsHeader(std::span<const DeclaredTensor> tensors) {
  static_assert(std::endian::native == std::endian::little, "the length is little-endian");
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t begin = 0;
  for (const DeclaredTensor& tensor : tensors) {
    const int64_t end = begin + tensor.bytes();
    header[tensor.name] = {
        {"dtype", RowOf(tensor.format).safetensors}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
    begin = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string result(sizeof(length), '\0');
  std::memcpy(result.data(), &length, sizeof(length));
  return result + text;
}

}  // namespace geopipe
