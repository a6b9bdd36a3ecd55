// Tokens in a flat little-endian file of uint16 or uint32, memory-mapped.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "runtime/data/corpus.h"

namespace geopipe {

// The fingerprint's checksum covers the file's bytes. Errors name the path and the remedy: those of MappedFile::Open;
// InvalidArgument for an empty file, a size that is not a whole number of tokens, a token outside the vocabulary (with
// its position).
absl::StatusOr<std::unique_ptr<Corpus>> OpenTokenFile(const std::string& path, TokenDtype dtype, int64_t vocab_size);

}  // namespace geopipe
