// Byte-level BPE of a tokenizer.json: ids equal to those of Hugging Face's tokenizers.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "runtime/tokenizer/tokenizer.h"

namespace geopipe {

// Reads a tokenizer.json. An end of text that the file does not name is taken from tokenizer_config.json or
// special_tokens_map.json beside it. `ignore_special`: special tokens in texts are text. Errors: those of ReadFile and
// ParseHfTokenizer.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenHfTokenizer(const std::string& path, bool ignore_special);

}  // namespace geopipe
