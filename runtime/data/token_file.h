// Tokens in a flat little-endian file of uint16 or uint32, of any size: opening reads a few blocks of it, and samples
// are read when they are needed.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "runtime/data/corpus.h"

namespace geopipe {

// Errors name the path and the remedy: those of InputFile; InvalidArgument for a file of another known format, an empty
// file, a size that is not a whole number of tokens, and, in the blocks that are read, a token outside the vocabulary
// (with its position) or words that another dtype would explain (TokenStatistics).
absl::StatusOr<std::unique_ptr<Corpus>> OpenTokenFile(const std::string& path, TokenDtype dtype, int64_t vocab_size);

}  // namespace geopipe
