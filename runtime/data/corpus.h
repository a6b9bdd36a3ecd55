// The training data as one sequence of tokens.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>

#include "optimizer/model/job_spec.h"

namespace geopipe {

// What the first and the last stage compare before a job starts: equal for the same files read the same way.
struct DataFingerprint {
  int64_t bytes = 0;      // of all files together
  uint32_t checksum = 0;  // CRC-32C; see the corpus for what it covers

  friend bool operator==(const DataFingerprint&, const DataFingerprint&) = default;
};

// Immutable after opening; any thread may read.
class Corpus {
 public:
  virtual ~Corpus() = default;

  virtual int64_t tokens() const = 0;
  // Tokens [first, first + out.size()). REQUIRES: they exist.
  virtual void Copy(int64_t first, std::span<int32_t> out) const = 0;
  virtual const DataFingerprint& fingerprint() const = 0;
};

// Opens the data of a job and checks every token against the vocabulary; reads all of it once. Errors are those of
// OpenTokenFile and OpenText.
absl::StatusOr<std::unique_ptr<Corpus>> OpenCorpus(const DataSpec& data, int64_t vocab_size);

}  // namespace geopipe
