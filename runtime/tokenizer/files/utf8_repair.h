// Finds what is no UTF-8 in a text, and replaces it as Python's errors="replace" does.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace geopipe {

// Bytes of a text that belong to no character: of a sequence that is cut short all its bytes, else one.
struct InvalidUtf8 {
  size_t at = 0;
  size_t bytes = 0;
};

// The first from `from` on.
std::optional<InvalidUtf8> FindInvalidUtf8(std::string_view text, size_t from = 0);

// `text` with U+FFFD for each; `room` holds it where there is any.
std::string_view RepairUtf8(std::string_view text, std::string& room);

}  // namespace geopipe
