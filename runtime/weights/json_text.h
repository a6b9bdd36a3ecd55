// JSON in files that anyone may have written.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace geopipe {

// Parses JSON and leaves out what is nested deeper than eight levels: no file of ours has it, and the library's
// destructor and dump recurse. Discarded (is_discarded) when `text` is no JSON.
nlohmann::json ParseJson(std::string_view text);

}  // namespace geopipe
