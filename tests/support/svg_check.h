// Checks that every picture must pass.
#pragma once

#include <cstddef>
#include <string_view>

namespace geopipe::test {

// Number of times that `part` occurs in `text`, without overlaps.
size_t CountOf(std::string_view text, std::string_view part);

// CHECKs that `svg` is a well-formed document (tags nest, attributes are quoted, no bare & or <), that no number in it
// is NaN or infinite, and that all rectangles, lines and texts' anchors lie inside its viewBox.
void CheckSvg(std::string_view svg);

}  // namespace geopipe::test
