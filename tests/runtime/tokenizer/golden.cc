#include "tests/runtime/tokenizer/golden.h"

#include <catch2/catch.hpp>

#include "runtime/base/files.h"

namespace geopipe {

std::string TokenizerGolden(const std::string& name) {
  return std::string(GEOPIPE_SOURCE_DIR) + "/tests/golden/tokenizer/" + name;
}

nlohmann::json TokenizerGoldenJson(const std::string& name) {
  const absl::StatusOr<std::string> text = ReadFile(TokenizerGolden(name), size_t{1} << 24);
  REQUIRE(text.ok());
  return nlohmann::json::parse(*text);
}

}  // namespace geopipe
