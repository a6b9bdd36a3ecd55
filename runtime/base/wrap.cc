#include "runtime/base/wrap.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

namespace geopipe {
namespace {

constexpr int32_t kLongWord = 24;      // columns
constexpr int32_t kLongestLabel = 24;  // with the blanks behind it

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

struct Character {
  char32_t code = 0;
  size_t bytes = 1;
};

// The first character of `text`, which is not empty. A byte that begins none counts as one.
Character FirstOf(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text.front());
  const size_t bytes = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
  if (bytes == 1 || text.size() < bytes) {
    return {byte, 1};
  }
  char32_t code = byte & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  }
  return {code, bytes};
}

// Unicode's blocks of wide characters (UAX 11) and of those that take no room, as far as names and paths may have them.
int32_t WidthOf(char32_t code) {
  using Range = std::pair<char32_t, char32_t>;
  static constexpr std::array<Range, 4> kNone{{{0x0300, 0x036F}, {0x200B, 0x200F}, {0x20D0, 0x20FF}, {0xFE00, 0xFE0F}}};
  static constexpr std::array<Range, 9> kWide{{{0x1100, 0x115F},
                                               {0x2E80, 0xA4CF},
                                               {0xAC00, 0xD7A3},
                                               {0xF900, 0xFAFF},
                                               {0xFE30, 0xFE6F},
                                               {0xFF00, 0xFF60},
                                               {0xFFE0, 0xFFE6},
                                               {0x1F300, 0x1FAFF},
                                               {0x20000, 0x3FFFD}}};
  const auto holds = [code](const Range& range) { return range.first <= code && code <= range.second; };
  return std::ranges::any_of(kNone, holds) ? 0 : std::ranges::any_of(kWide, holds) ? 2 : 1;
}

bool IsUnit(std::string_view word) {
  while (!word.empty() &&
         (word.back() == ',' || word.back() == '.' || word.back() == ';' || word.back() == ':' || word.back() == ')')) {
    word.remove_suffix(1);
  }
  static constexpr std::array<std::string_view, 27> kUnits{
      "%",  "ns", "us", "µs", "ms",  "s",    "min",  "h",    "days", "B",       "KiB",     "MiB",      "GiB", "TiB",
      "kB", "MB", "GB", "TB", "bps", "kbps", "Mbps", "Gbps", "Tbps", "GFLOP/s", "TFLOP/s", "tokens/s", "×"};
  return std::ranges::find(kUnits, word) != kUnits.end();
}

// True when nothing may break between two words: a number and its unit, a sign and its number.
bool Belongs(std::string_view word, std::string_view next) {
  return word == "≤" || word == "±" || word == "×" || next == "×" || (IsDigit(word.back()) && IsUnit(next));
}

// Blanks, then words that must stay on one line.
struct Piece {
  size_t blanks = 0;
  std::string_view text;
};

std::vector<Piece> PiecesOf(std::string_view text) {
  std::vector<Piece> pieces;
  std::string_view last;  // word
  size_t at = 0;
  while (at < text.size()) {
    const size_t begin = std::min(text.find_first_not_of(' ', at), text.size());
    const size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (!word.empty() && !last.empty() && begin - at == 1 && Belongs(last, word)) {
      const auto first = static_cast<size_t>(pieces.back().text.data() - text.data());
      pieces.back().text = text.substr(first, end - first);
    } else if (!word.empty()) {
      pieces.push_back({begin - at, word});
    }
    last = word;
    at = end;
  }
  return pieces;
}

// Counts the bytes of a word that fit into `columns`, up to its last comma or slash if it has one there; at least one
// character.
size_t BytesThatFit(std::string_view word, int32_t columns) {
  size_t fit = 0;
  size_t good = 0;
  for (int32_t width = 0; fit < word.size();) {
    const Character character = FirstOf(word.substr(fit));
    width += WidthOf(character.code);
    if (width > columns && fit > 0) {
      break;
    }
    fit += character.bytes;
    good = character.code == ',' || character.code == '/' ? fit : good;
  }
  return good > 0 && fit < word.size() ? good : fit;
}

// Column at which a line's text begins, behind its label or its own indentation.
int32_t HangingIndent(std::string_view line) {
  const size_t begin = std::min(line.find_first_not_of(' '), line.size());
  const size_t blanks = line.find("  ", begin);
  if (blanks != std::string_view::npos) {
    const size_t text = line.find_first_not_of(' ', blanks);
    const int32_t label = text == std::string_view::npos ? kAnyColumns : DisplayWidth(line.substr(0, text));
    if (label <= kLongestLabel) {
      return label;
    }
  }
  return static_cast<int32_t>(begin) + 2;
}

}  // namespace

int32_t DisplayWidth(std::string_view text) {
  int32_t width = 0;
  while (!text.empty()) {
    const Character character = FirstOf(text);
    width += WidthOf(character.code);
    text.remove_prefix(character.bytes);
  }
  return width;
}

int32_t WidestPiece(std::string_view text) {
  int32_t widest = 0;
  for (const Piece& piece : PiecesOf(text)) {
    int32_t width = DisplayWidth(piece.text);
    if (width > kLongWord && piece.text.find_first_of(",/") != std::string_view::npos) {
      width = kLongWord;
    }
    widest = std::max(widest, width);
  }
  return widest;
}

std::vector<std::string> Wrap(std::string_view text, int32_t columns, int32_t indent) {
  if (DisplayWidth(text) <= columns) {
    return {std::string(text)};
  }
  std::vector<std::string> lines;
  std::string line;
  bool empty = true;
  for (const auto& [blanks, word] : PiecesOf(text)) {
    std::string_view rest = word;
    const int32_t width = DisplayWidth(line) + static_cast<int32_t>(blanks);
    if (!empty && (width >= columns || DisplayWidth(rest) > columns - width)) {
      lines.push_back(std::exchange(line, std::string(static_cast<size_t>(indent), ' ')));
    } else {
      line.append(blanks, ' ');
    }
    for (int32_t room = std::max(1, columns - DisplayWidth(line)); DisplayWidth(rest) > room; room = columns - indent) {
      const size_t bytes = BytesThatFit(rest, room);
      lines.push_back(line.append(rest.substr(0, bytes)));
      line.assign(static_cast<size_t>(indent), ' ');
      rest.remove_prefix(bytes);
    }
    line += rest;
    empty = false;
  }
  lines.push_back(std::move(line));
  return lines;
}

std::string WrapLines(std::string_view text, int32_t columns) {
  std::string wrapped;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (DisplayWidth(line) <= columns) {
      wrapped += line;
    } else {
      const int32_t indent = HangingIndent(line);
      const std::vector<std::string> lines = Wrap(line, columns, 2 * indent > columns ? 2 : indent);
      for (size_t i = 0; i < lines.size(); ++i) {
        wrapped += (i == 0 ? "" : "\n") + lines[i];
      }
    }
    if (end < text.size()) {
      wrapped += '\n';
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return wrapped;
}

}  // namespace geopipe
