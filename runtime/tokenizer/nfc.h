// Normalization Form C of Unicode (UAX #15), by utf8proc, with the characters that Unicode 9 has: so do Hugging Face's
// tokenizers (their unicode-normalization-alignments 0.1.12). Newer marks stay where they are and compose with nothing.
#pragma once

#include <string>
#include <string_view>

namespace geopipe {

// `text` in NFC; what is in it already is returned as it is, else what `room` holds then. REQUIRES: valid UTF-8.
std::string_view ToNfc(std::string_view text, std::string& room);

}  // namespace geopipe
