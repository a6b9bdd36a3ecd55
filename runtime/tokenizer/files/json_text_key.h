// Takes one text out of a JSON object.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <string_view>

namespace geopipe {

// Sets `value` to the text at `key` of the object; of a key that is there twice the last counts. Other values are
// passed over, however deep. InvalidArgument: it is no JSON object, has no such key, or no text there; completes
// "file:line: ".
absl::Status TextAtKey(std::string_view json, std::string_view key, std::string& value);

}  // namespace geopipe
