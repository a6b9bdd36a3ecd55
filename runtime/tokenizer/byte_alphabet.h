// The alphabet in which byte-level vocabularies are written: each byte as one visible character of its own, as in the
// published code of GPT-2 (encoder.py, bytes_to_unicode): printable bytes of Latin-1 stand for themselves, the others
// for U+0100 and up, in their order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace geopipe {

// Bytes that a token of the alphabet stands for; none: it has other characters.
std::optional<std::string> BytesOfToken(std::string_view token);

// The reverse.
std::string TokenOfBytes(std::string_view bytes);

}  // namespace geopipe
