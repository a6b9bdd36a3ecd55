// Source of the first stage's input tokens and of the last stage's targets.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>

namespace geopipe {

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // Reads the samples [first_sample, first_sample + samples) of an iteration, one after the other. A sample is one
  // window of s + 1 tokens: `inputs` gets the first s of each, `targets` the last s. Both spans hold samples * s
  // tokens. The result depends on the arguments alone, whatever was read before. Called from the executor thread.
  virtual absl::Status Read(int64_t iteration, int64_t first_sample, int64_t samples, std::span<int32_t> inputs,
                            std::span<int32_t> targets) = 0;
};

}  // namespace geopipe
