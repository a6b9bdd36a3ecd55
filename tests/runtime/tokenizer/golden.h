// The tokenizers, texts and ids of tests/golden/tokenizer.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace geopipe {

// Path of a file there.
std::string TokenizerGolden(const std::string& name);

// The JSON in it.
nlohmann::json TokenizerGoldenJson(const std::string& name);

}  // namespace geopipe
