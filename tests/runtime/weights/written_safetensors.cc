#include "tests/runtime/weights/written_safetensors.h"

#include <catch2/catch.hpp>
#include <fstream>

namespace geopipe {

void WriteSafetensors(const std::string& path, const std::vector<DeclaredTensor>& tensors,
                      const std::vector<std::vector<float>>& values) {
  REQUIRE(tensors.size() == values.size());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << SafetensorsHeader(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::string bytes(static_cast<size_t>(tensors[i].bytes()), '\0');
    EncodeFloats(tensors[i].format, values[i], std::as_writable_bytes(std::span(bytes)));
    file << bytes;
  }
  file.flush();
  REQUIRE(file.good());
}

}  // namespace geopipe
