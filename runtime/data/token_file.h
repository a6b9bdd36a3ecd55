// Tokens in flat little-endian files of uint16 or uint32, of any size: opening reads a few blocks of them, and samples
// are read when they are needed. Several files are read as if they were joined, in the order of their paths.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "runtime/data/corpus.h"

namespace geopipe {

// The fingerprint's checksum covers the sizes of several files (8 bytes each, little-endian) before the blocks of each.
// Errors name the path and the remedy: those of InputFile; InvalidArgument for a file of another known format, an empty
// file, a size that is not a whole number of tokens, and, in the blocks that are read, a token outside the vocabulary
// (with its position in the file) or words that another dtype would explain (TokenStatistics). REQUIRES: at least one.
absl::StatusOr<std::unique_ptr<Corpus>> OpenTokenFiles(const std::vector<std::string>& paths, TokenDtype dtype,
                                                       int64_t vocab_size);

}  // namespace geopipe
