#include "runtime/base/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace geopipe {
namespace {

constexpr size_t kMaxWord = 64;  // longer words are not compared

// Levenshtein's distance, one row at a time.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, substituted});
    }
  }
  return row.back();
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
