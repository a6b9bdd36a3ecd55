// UTF-8: what proto3 strings and our files must be, and what other programs print need not be.
#pragma once

#include <string>
#include <string_view>

namespace geopipe {

// RFC 3629: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool IsUtf8(std::string_view text);

// `text` with every byte that is not part of valid UTF-8 replaced by '?'.
std::string ToUtf8(std::string_view text);

// ToUtf8 for a terminal: control characters other than line feeds and tabs are replaced by '?' as well.
std::string Printable(std::string_view text);

// Quotes the beginning of a word that anyone may have given, for an error: Printable, on one line, "..." for what is
// cut.
std::string Excerpt(std::string_view text);

}  // namespace geopipe
