// Tokenizes text files on several threads. The tokens do not depend on their number.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "runtime/tokenizer/files/piece_encoder.h"
#include "runtime/tokenizer/files/text_reader.h"
#include "runtime/tokenizer/tokenizer.h"

namespace geopipe {

struct TokenizeHooks {
  // Takes the next bytes of the token file. An error ends the work with that error.
  std::function<absl::Status(std::span<const std::byte> bytes)> write;
  // Hears how many bytes of the files are done. An error ends the work with that error.
  std::function<absl::Status(int64_t bytes_done)> progress = [](int64_t) { return absl::OkStatus(); };
};

// Reads with a thread of its own and encodes with `threads` others; hooks are called by the calling thread. Some MiB
// for each thread are in memory, and the longest document where it comes as one piece. Of several errors, that of the
// earliest piece is returned. REQUIRES: threads >= 1; the options of `reader` fit the tokenizer.
absl::StatusOr<TextCounts> TokenizeFiles(TextReader& reader, const Tokenizer& tokenizer, const EncodingOptions& options,
                                         int32_t threads, const TokenizeHooks& hooks);

}  // namespace geopipe
