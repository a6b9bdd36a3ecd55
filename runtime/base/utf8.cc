#include "runtime/base/utf8.h"

#include <algorithm>
#include <cstddef>

namespace geopipe {
namespace {

// Bytes of the valid sequence at the front of `text`, or 0. REQUIRES: text is not empty.
size_t SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
  }
  const unsigned char second = byte(1);
  const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
  const bool beyond = (lead == 0xed && second > 0x9f) || (lead == 0xf4 && second > 0x8f);
  return overlong || beyond ? 0 : length;
}

}  // namespace

bool IsUtf8(std::string_view text) { return ToUtf8(text) == text; }

std::string ToUtf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t length = SequenceLength(text);
    if (length == 0) {
      valid += '?';
      text.remove_prefix(1);
    } else {
      valid += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return valid;
}

std::string Printable(std::string_view text) {
  std::string printable = ToUtf8(text);
  const auto obeyed = [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
  };
  std::ranges::replace_if(printable, obeyed, '?');
  return printable;
}

std::string Excerpt(std::string_view text) {
  constexpr size_t kShown = 80;
  size_t end = std::min(text.size(), kShown);
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
    --end;  // not within a character
  }
  std::string shown = Printable(text.substr(0, end));
  std::ranges::replace(shown, '\n', ' ');
  return end < text.size() ? shown + "..." : shown;
}

}  // namespace geopipe
