#include "runtime/tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace geopipe {
namespace {

constexpr uint32_t kFirstOther = 0x100;
constexpr int kBytes = 256;

constexpr bool IsItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

struct Alphabet {
  std::array<uint32_t, kBytes> letter{};                     // of each byte
  std::array<int16_t, size_t{kFirstOther} + kBytes> byte{};  // of each letter; -1: none
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  alphabet.byte.fill(-1);
  uint32_t other = kFirstOther;
  for (int byte = 0; byte < kBytes; ++byte) {
    const uint32_t letter = IsItself(byte) ? static_cast<uint32_t>(byte) : other++;
    alphabet.letter[static_cast<size_t>(byte)] = letter;
    alphabet.byte[letter] = static_cast<int16_t>(byte);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

// All letters are below U+0800: one or two bytes of UTF-8.
std::optional<std::string> BytesOfToken(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size(); ++i) {
    auto letter = static_cast<uint32_t>(static_cast<uint8_t>(token[i]));
    if (letter >= 0x80) {
      const bool is_pair = (letter & 0xe0) == 0xc0 && i + 1 < token.size();
      if (!is_pair) {
        return std::nullopt;
      }
      letter = ((letter & 0x1f) << 6) | (static_cast<uint8_t>(token[++i]) & 0x3f);
    }
    if (letter >= kAlphabet.byte.size() || kAlphabet.byte[letter] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kAlphabet.byte[letter]);
  }
  return bytes;
}

std::string TokenOfBytes(std::string_view bytes) {
  std::string token;
  for (const char c : bytes) {
    const uint32_t letter = kAlphabet.letter[static_cast<uint8_t>(c)];
    if (letter < 0x80) {
      token += static_cast<char>(letter);
    } else {
      token += static_cast<char>(0xc0 | (letter >> 6));
      token += static_cast<char>(0x80 | (letter & 0x3f));
    }
  }
  return token;
}

}  // namespace geopipe
