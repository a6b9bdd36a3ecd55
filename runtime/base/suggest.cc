#include "runtime/base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace geopipe {
namespace {

constexpr size_t kMaxWord = 64;  // longer words are not compared

// Letters inserted, left out, replaced, or swapped with their neighbour (optimal string alignment).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> rows(a.size() + 1, std::vector<size_t>(b.size() + 1));
  std::iota(rows[0].begin(), rows[0].end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    rows[i][0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[i][j] = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows.back().back();
}

}  // namespace

std::string NearestWord(std::string_view word, std::span<const std::string> candidates) {
  if (word.size() > kMaxWord) {
    return "";
  }
  std::string_view nearest;
  size_t least = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kMaxWord) {
      continue;
    }
    const size_t distance = EditDistance(word, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return std::string(nearest);
}

std::string DidYouMean(std::string_view word, std::span<const std::string> candidates, std::string_view decoration) {
  const std::string nearest = NearestWord(word, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean {}{}?", decoration, nearest);
}

}  // namespace geopipe
