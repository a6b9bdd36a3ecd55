// The version of these programs.
#pragma once

#include <string_view>

namespace geopipe {

// The project's version as CMake states it: "0.1.0". All programs of a federation must have the same one.
std::string_view Version();

}  // namespace geopipe
