// A SentencePiece model (tokenizer.model of Llama 2 and Mistral, *.model of spm_train), by its own library.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "runtime/tokenizer/tokenizer.h"

namespace geopipe {

// Errors: those of ReadFile; InvalidArgument: it is no such model.
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenSentencePiece(const std::string& path);

}  // namespace geopipe
