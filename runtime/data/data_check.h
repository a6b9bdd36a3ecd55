// Reads all of the data, piece by piece, where opening could only sample it: computes checksums by which two copies are
// compared, and checks the vocabulary. Pure: the caller decides when.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/data/corpus.h"

namespace geopipe {

// Chunks of the data are of equal size, the last one shorter: at least 16 MiB each, and few enough for a short message.
// Their size depends on that of the data alone, so that the lists of two copies can be compared entry by entry.
inline constexpr int64_t kMaxDataChunks = 4096;
int64_t DataChunkBytes(int64_t data_bytes);

class DataCheck {
 public:
  // `corpus` outlives the check.
  explicit DataCheck(const Corpus& corpus);

  // Reads the next piece, 1 MiB at most. Errors: those of DataFiles::Read and Corpus::CheckTokens; the check is then
  // over. REQUIRES: !done().
  absl::Status Next();

  bool done() const { return position_ == corpus_.files().bytes(); }
  int64_t chunk_bytes() const { return chunk_bytes_; }
  // CRC-32C of the chunks that were read to their ends.
  const std::vector<uint32_t>& checksums() const { return checksums_; }

 private:
  const Corpus& corpus_;
  const int64_t chunk_bytes_;
  std::vector<std::byte> buffer_;
  int64_t position_ = 0;
  uint32_t crc_ = 0;  // of the chunk under way
  std::vector<uint32_t> checksums_;
};

}  // namespace geopipe
