// Ways to divide a number into a list of numbers, none of them 0: layers over stages, pipeline ranks over sites.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace geopipe {

// Calls `take` with every list of as many numbers as `most` has, each from 1 to its own of `most`, that sum to `sum`;
// the first number grows last.
void ForEachSplit(int64_t sum, std::span<const int64_t> most,
                  const std::function<void(const std::vector<int64_t>&)>& take);

// Number of lists of `count` numbers from 1 on that sum to `sum`; above `most` some number above it. REQUIRES: count <=
// sum.
int64_t SplitCount(int64_t sum, int64_t count, int64_t most);

}  // namespace geopipe
