// JSON in files that anyone may have written.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace geopipe {

// Parses JSON and leaves out values nested deeper than eight levels: none of our files has such values, and the
// library's destructor and dump recurse. Discarded (is_discarded) when `text` is no JSON.
nlohmann::json ParseJson(std::string_view text);

}  // namespace geopipe
