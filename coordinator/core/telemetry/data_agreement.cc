#include "coordinator/core/telemetry/data_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace geopipe {

std::optional<DataDifference> FirstDifference(const v1::DataCheckReport& a, const v1::DataCheckReport& b) {
  const int common = std::min(a.checksums_size(), b.checksums_size());
  if (common == 0) {
    return std::nullopt;
  }
  if (a.data_bytes() != b.data_bytes() || a.chunk_bytes() != b.chunk_bytes()) {
    return DataDifference{0, std::max(a.data_bytes(), b.data_bytes())};
  }
  const auto [found, unused] =
      std::mismatch(a.checksums().begin(), a.checksums().begin() + common, b.checksums().begin());
  const int64_t chunk = std::distance(a.checksums().begin(), found);
  if (chunk == common) {
    return std::nullopt;
  }
  const int64_t begin = chunk * a.chunk_bytes();
  return DataDifference{begin, begin + std::min(a.chunk_bytes(), a.data_bytes() - begin)};
}

std::string DifferenceSentence(std::string_view one, std::string_view other, const DataSpec& data,
                               const DataDifference& difference) {
  const std::string file = data.format == DataFormat::kTokens && data.paths.size() == 1
                               ? data.paths.front()
                               : "the files of data.path, one after the other,";
  return fmt::format(
      "{} and {} read different training data: bytes [{}, {}) of {} are not the same; give both the same files", one,
      other, difference.begin, difference.end, file);
}

}  // namespace geopipe
