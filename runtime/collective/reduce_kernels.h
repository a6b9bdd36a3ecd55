// Reductions of the same elements of several ranks, in the order of the ranks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace geopipe::collective {

enum class ReducedType : uint8_t { kFp32, kBf16, kFp64, kInt32 };

// True when this processor has the instructions that the kernels are compiled for (x86-64: AVX2).
bool ReduceKernelsRun();

// Sets out[i] = ((sources[0][i] + sources[1][i]) + sources[2][i]) + ... of `count` elements; bf16 in fp32, rounded
// once, to nearest even. `out` may be one of the sources. REQUIRES: ranks >= 1; any alignment.
void Sum(ReducedType type, const std::byte* const* sources, int32_t ranks, std::byte* out, int64_t count);
// Sets out[i] to the greatest element, NaN where any is, in the same way.
void Max(ReducedType type, const std::byte* const* sources, int32_t ranks, std::byte* out, int64_t count);

// Copies like memcpy, but past the caches, for results that are larger than those. REQUIRES: from and to do not
// overlap.
void CopyPastCaches(const std::byte* from, std::byte* to, int64_t bytes);

}  // namespace geopipe::collective
