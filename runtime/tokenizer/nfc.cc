#include "runtime/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iterator>

#include "optimizer/base/check.h"

namespace geopipe {
namespace {

constexpr utf8proc_int32_t kFirstThatComposes = 0x300;  // UAX #15: all below are NFC_Quick_Check=Yes and starters

// First and last of the characters that stay as they are, whatever stands beside them: those since Unicode 9 that NFC
// moves or composes in newer versions (DerivedAge.txt, DerivedNormalizationProps.txt), and U+11A7, which composes with
// nothing, and which utf8proc 2.8 drops behind a syllable of Hangul.
struct Range {
  utf8proc_int32_t first;
  utf8proc_int32_t last;
};
constexpr Range kApart[] = {
    {0x7fd, 0x7fd},     {0x897, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x11a7, 0x11a7},   {0x1715, 0x1715},   {0x1abf, 0x1add},
    {0x1ae0, 0x1aeb},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27}, {0x10d69, 0x10d6d},
    {0x10eab, 0x10eac}, {0x10efa, 0x10efb}, {0x10efd, 0x10eff}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x113ce, 0x113d0}, {0x1145e, 0x1145e}, {0x11839, 0x1183a},
    {0x11930, 0x11930}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
    {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45}, {0x11d97, 0x11d97},
    {0x11f41, 0x11f42}, {0x1612f, 0x1612f}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef}, {0x1e5ee, 0x1e5ef}, {0x1e6e3, 0x1e6e3},
    {0x1e6e6, 0x1e6e6}, {0x1e6ee, 0x1e6ef}, {0x1e6f5, 0x1e6f5}};

bool IsApart(utf8proc_int32_t code) {
  const Range* range = std::ranges::lower_bound(kApart, code, {}, &Range::last);
  return range != std::end(kApart) && range->first <= code;
}

const uint8_t* Bytes(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

// The place of the first character from `from` on that is not NFC_Quick_Check=Yes for sure: the first at or above
// U+0300, whose UTF-8 begins with 0xcc or more.
size_t FirstDoubtful(std::string_view text, size_t from) {
  while (from < text.size() && static_cast<uint8_t>(text[from]) < 0xcc) {
    ++from;
  }
  return from;
}

// True when the character stands for itself before and behind any other: it has no decomposition, combines with nothing
// and does not move.
bool IsInert(utf8proc_int32_t code) {
  const utf8proc_property_t& property = *utf8proc_get_property(code);
  constexpr utf8proc_uint16_t kNone = UINT16_MAX;
  constexpr utf8proc_int32_t kFirstJamo = 0x1100;
  constexpr utf8proc_int32_t kLastJamo = 0x11ff;
  constexpr utf8proc_int32_t kFirstSyllable = 0xac00;
  constexpr utf8proc_int32_t kLastSyllable = 0xd7a3;
  const bool is_hangul = (code >= kFirstJamo && code <= kLastJamo) || (code >= kFirstSyllable && code <= kLastSyllable);
  const bool decomposes = property.decomp_seqindex != kNone && property.decomp_type == 0;
  return (property.combining_class == 0 && !decomposes && property.comb_index == kNone && !is_hangul) || IsApart(code);
}

struct Character {
  utf8proc_int32_t code = 0;
  size_t bytes = 0;
};

Character CharacterAt(std::string_view text, size_t at) {
  Character character;
  const utf8proc_ssize_t bytes =
      utf8proc_iterate(Bytes(text) + at, static_cast<utf8proc_ssize_t>(text.size() - at), &character.code);
  GP_CHECK(bytes > 0, "no UTF-8 at {} of {}", at, text.size());
  character.bytes = static_cast<size_t>(bytes);
  return character;
}

// True when no character of the text changes, or makes another change.
bool IsSurelyNfc(std::string_view text) {
  for (size_t i = FirstDoubtful(text, 0); i < text.size(); i = FirstDoubtful(text, i)) {
    const Character character = CharacterAt(text, i);
    if (character.code >= kFirstThatComposes && !IsInert(character.code)) {
      return false;
    }
    i += character.bytes;
  }
  return true;
}

// Appends the NFC of a text without characters that stay apart.
void Compose(std::string_view text, std::string& out) {
  uint8_t* composed = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(Bytes(text), static_cast<utf8proc_ssize_t>(text.size()), &composed,
                                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  GP_CHECK(length >= 0, "NFC of {} bytes: {}", text.size(), utf8proc_errmsg(length));
  out.append(reinterpret_cast<const char*>(composed), static_cast<size_t>(length));
  std::free(composed);
}

}  // namespace

std::string_view ToNfc(std::string_view text, std::string& room) {
  if (IsSurelyNfc(text)) {
    return text;
  }
  room.clear();
  size_t done = 0;
  for (size_t i = FirstDoubtful(text, 0); i < text.size(); i = FirstDoubtful(text, i)) {
    const Character character = CharacterAt(text, i);
    if (IsApart(character.code)) {
      Compose(text.substr(done, i - done), room);
      room += text.substr(i, character.bytes);
      done = i + character.bytes;
    }
    i += character.bytes;
  }
  Compose(text.substr(done), room);
  return room;
}

}  // namespace geopipe
