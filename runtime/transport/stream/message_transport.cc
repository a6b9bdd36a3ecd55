#include "runtime/transport/stream/message_transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "optimizer/base/check.h"

namespace geopipe {

std::string_view MessageKindName(MessageKind kind) {
  static constexpr std::array<std::string_view, 7> kNames{
      "activation", "gradient", "norm terms", "tied gradient", "arrival", "collective", "collective abort"};
  return kNames[static_cast<size_t>(kind)];
}

PayloadLayout PayloadLayout::Of(DType dtype, const std::vector<int64_t>& shape) {
  GP_CHECK(shape.size() <= kMaxDimensions, "{} dimensions", shape.size());
  PayloadLayout layout{.dtype = dtype, .dimension_count = static_cast<uint8_t>(shape.size())};
  std::ranges::copy(shape, layout.dimensions.begin());
  return layout;
}

int64_t PayloadLayout::bytes(int64_t limit_bytes) const {
  int64_t bytes = ByteSize(dtype);
  for (size_t d = 0; d < dimension_count; ++d) {
    if (dimensions[d] <= 0 || dimensions[d] > limit_bytes / bytes) {
      return -1;
    }
    bytes *= dimensions[d];
  }
  return bytes;
}

std::string ToString(const PayloadLayout& layout) {
  return fmt::format("{} [{}]", DTypeName(layout.dtype), fmt::join(layout.shape(), ", "));
}

}  // namespace geopipe
