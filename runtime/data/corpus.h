// The training data as one sequence of tokens.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "optimizer/model/job_spec.h"
#include "runtime/data/data_files.h"

namespace geopipe {

// Fingerprint that the first and the last stage compare before a job starts: equal for the same files read the same
// way. Only parts of large data are looked at; DataCheck reads the rest.
struct DataFingerprint {
  int64_t bytes = 0;      // of all files together
  uint32_t checksum = 0;  // CRC-32C of the SampledBlocks; see the corpus for what else it covers

  friend bool operator==(const DataFingerprint&, const DataFingerprint&) = default;
};

// Immutable after opening; any thread may read.
class Corpus {
 public:
  virtual ~Corpus() = default;

  virtual int64_t tokens() const = 0;
  // Tokens [first, first + out.size()), all of the vocabulary. Errors: those of DataFiles::Read and CheckTokens.
  // REQUIRES: they exist.
  virtual absl::Status Copy(int64_t first, std::span<int32_t> out) const = 0;
  // InvalidArgument: a token in the bytes, which are those of the files from `offset` on, is outside the vocabulary;
  // names file, token and position. REQUIRES: the bytes begin and end with a token.
  virtual absl::Status CheckTokens(int64_t offset, std::span<const std::byte> bytes) const = 0;
  virtual const DataFiles& files() const = 0;
  // Tokens of each file, in their order: what data.weights mix.
  virtual std::vector<int64_t> file_tokens() const = 0;
  virtual const DataFingerprint& fingerprint() const = 0;
};

// Opens the data of a job, and checks the SampledBlocks of tokens against vocabulary and dtype: a few hundred reads,
// however large the data is. A file of another known format is refused by its name (runtime/base/file_format.h). Errors
// are those of OpenTokenFile and OpenText.
absl::StatusOr<std::unique_ptr<Corpus>> OpenCorpus(const DataSpec& data, int64_t vocab_size);

// Looks at bytes of the data that begin at `offset`; an error ends the reading.
using BlockVisitor = std::function<absl::Status(int64_t offset, std::span<const std::byte> bytes)>;

// Continues `crc` over blocks of the files, which begin at `base`; `visit` (may be empty) sees each piece by piece, by
// its place in the files. Errors: those of DataFiles::Read and of `visit`.
absl::StatusOr<uint32_t> BlocksChecksum(const DataFiles& files, int64_t base, std::span<const ByteRange> blocks,
                                        const BlockVisitor& visit, uint32_t crc = 0);

}  // namespace geopipe
