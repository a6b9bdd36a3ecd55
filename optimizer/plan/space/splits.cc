#include "optimizer/plan/space/splits.h"

#include <algorithm>

namespace geopipe {
namespace {

using TakeSplit = std::function<void(const std::vector<int64_t>&)>;

void Extend(int64_t sum, std::span<const int64_t> most, std::vector<int64_t>& split, const TakeSplit& take) {
  const auto after = std::ssize(most) - std::ssize(split) - 1;
  if (after < 0) {
    take(split);
    return;
  }
  int64_t room = 0;
  for (size_t i = split.size() + 1; i < most.size(); ++i) {
    room += most[i];
  }
  for (int64_t here = std::max<int64_t>(1, sum - room); here <= std::min(most[split.size()], sum - after); ++here) {
    split.push_back(here);
    Extend(sum - here, most, split, take);
    split.pop_back();
  }
}

}  // namespace

void ForEachSplit(int64_t sum, std::span<const int64_t> most, const TakeSplit& take) {
  std::vector<int64_t> split;
  Extend(sum, most, split, take);
}

int64_t SplitCount(int64_t sum, int64_t count, int64_t most) {
  // The count places `count` - 1 bars between `sum` ones, or the gaps without a bar: the fewer of both, so that it only
  // grows.
  int64_t splits = 1;
  for (int64_t i = 1; i <= std::min(count - 1, sum - count) && splits <= most; ++i) {
    splits = splits * (sum - i) / i;
  }
  return splits;
}

}  // namespace geopipe
