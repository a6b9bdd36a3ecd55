#include "runtime/tokenizer/pattern_syntax.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

constexpr std::string_view kBlanks =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// Names of \p{...} that both have: general categories whose members newer versions of Unicode only add to, and scripts.
constexpr std::array<std::string_view, 34> kCategories{
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N", "Nd", "Nl", "No", "P",  "Pc", "Pd",
    "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So", "Z", "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
constexpr std::array<std::string_view, 16> kScripts{
    "Arabic", "Armenian", "Bengali",  "Cyrillic", "Devanagari", "Georgian", "Greek", "Han",
    "Hangul", "Hebrew",   "Hiragana", "Katakana", "Khmer",      "Latin",    "Tamil", "Thai"};

absl::Status Refused(std::string_view what) {
  return absl::InvalidArgumentError(fmt::format(
      "'{}' is not supported there; use a tokenizer whose pattern does without it", Printable(std::string(what))));
}

// The length in bytes of the UTF-8 character that begins with this byte.
size_t LengthOf(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// REQUIRES: one character of valid UTF-8.
uint32_t CodePoint(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(character[i])); };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
}

std::string Literal(uint32_t code) { return fmt::format("\\x{{{:x}}}", code); }

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      GP_RETURN_IF_ERROR(Next());
    }
    if (!groups_.empty()) {
      return absl::InvalidArgumentError("a group has no ')'; is the file whole?");
    }
    return std::move(out_);
  }

 private:
  struct Group {
    bool ignores_case = false;
  };

  bool ignores_case() const { return !groups_.empty() && groups_.back().ignores_case; }

  bool Take(std::string_view text) {
    if (!rest_.starts_with(text)) {
      return false;
    }
    rest_.remove_prefix(text.size());
    return true;
  }

  std::string_view TakeCharacter() {
    const std::string_view character = rest_.substr(0, LengthOf(rest_.front()));
    rest_.remove_prefix(character.size());
    return character;
  }

  absl::Status Next() {
    const char c = rest_.front();
    if (c == '(') {
      return Open();
    }
    if (c == ')' && groups_.empty()) {
      return absl::InvalidArgumentError("a ')' closes no group; is the file whole?");
    }
    if (c == ')' || c == '|') {
      rest_.remove_prefix(1);
      out_ += c;
      if (c == ')') {
        groups_.pop_back();
        return Quantifier();
      }
      caseless_run_.clear();
      return absl::OkStatus();
    }
    if (std::string_view("^$*+?{}]").find(c) != std::string_view::npos) {
      return Refused(rest_.substr(0, 1));
    }
    if (c == '[') {
      GP_RETURN_IF_ERROR(Class());
    } else if (Take(".")) {
      out_ += "[^\\n]";
    } else if (c == '\\') {
      GP_RETURN_IF_ERROR(Escape());
    } else {
      GP_RETURN_IF_ERROR(Character(CodePoint(TakeCharacter())));
    }
    return Quantifier();
  }

  absl::Status Open() {
    caseless_run_.clear();
    Group group{.ignores_case = ignores_case()};
    if (Take("(?:")) {
      out_ += "(?:";
    } else if (Take("(?i:")) {
      out_ += "(?i:";
      group.ignores_case = true;
    } else if (Take("(?=")) {
      out_ += "(?=";
    } else if (Take("(?!")) {
      out_ += "(?!";
    } else if (rest_.starts_with("(?") || rest_.starts_with("(*")) {
      return Refused(rest_.substr(0, 4));
    } else {
      rest_.remove_prefix(1);
      out_ += "(?:";
    }
    groups_.push_back(group);
    return absl::OkStatus();
  }

  // Oniguruma also takes one letter for two (ß for ss) where case is ignored; PCRE2 does not.
  absl::Status Character(uint32_t code) {
    if (ignores_case()) {
      if (code >= 0x80) {
        return Refused(fmt::format("(?i:…\\u{:04x}", code));
      }
      caseless_run_ += static_cast<char>(code >= 'A' && code <= 'Z' ? code - 'A' + 'a' : code);
      for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl"}) {
        if (caseless_run_.ends_with(pair)) {
          return Refused(fmt::format("(?i:…{}", pair));
        }
      }
    }
    out_ += Literal(code);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (Take("\\s")) {
      out_ += fmt::format("[{}]", kBlanks);
      return absl::OkStatus();
    }
    if (Take("\\S")) {
      out_ += fmt::format("[^{}]", kBlanks);
      return absl::OkStatus();
    }
    GP_ASSIGN_OR_RETURN(const std::optional<std::string> property, Property());
    if (property.has_value()) {
      out_ += *property;
      return absl::OkStatus();
    }
    GP_ASSIGN_OR_RETURN(const uint32_t code, EscapedCharacter());
    return Character(code);
  }

  // \p{...}, \P{...}, \d; absent: something else.
  absl::StatusOr<std::optional<std::string>> Property() {
    if (Take("\\d")) {
      return std::optional<std::string>(R"(\p{Nd})");
    }
    if (!rest_.starts_with("\\p") && !rest_.starts_with("\\P")) {
      return std::optional<std::string>();
    }
    const size_t end = rest_.find('}');
    const std::string_view whole = rest_.substr(0, end == std::string_view::npos ? end : end + 1);
    if (end == std::string_view::npos || rest_.substr(2, 1) != "{" || ignores_case()) {
      return Refused(whole);
    }
    const bool is_inverted = rest_[3] == '^';
    const std::string_view name = rest_.substr(is_inverted ? 4 : 3, end - (is_inverted ? 4 : 3));
    const bool is_script = std::ranges::count(kScripts, name) > 0;
    if (!is_script && std::ranges::count(kCategories, name) == 0) {
      return Refused(whole);
    }
    const char letter = (rest_[1] == 'P') != is_inverted ? 'P' : 'p';
    rest_.remove_prefix(end + 1);
    return std::optional(fmt::format("\\{}{{{}{}}}", letter, is_script ? "sc:" : "", name));
  }

  absl::StatusOr<uint32_t> EscapedCharacter() {
    const std::string_view whole = rest_;
    rest_.remove_prefix(1);
    if (rest_.empty()) {
      return Refused("\\");
    }
    const std::string_view character = TakeCharacter();
    const char c = character.front();
    constexpr std::string_view kLetters = "tnvfr";
    constexpr std::string_view kCodes = "\t\n\v\f\r";
    if (const size_t at = kLetters.find(c); at != std::string_view::npos) {
      return static_cast<uint32_t>(kCodes[at]);
    }
    if (c == 'u' || c == 'x') {
      const bool has_brace = c == 'x' && Take("{");
      const size_t digits = has_brace ? std::min(rest_.find('}'), rest_.size()) : c == 'u' ? 4 : 2;
      uint32_t code = 0;
      size_t read = 0;
      for (; read < std::min(digits, rest_.size()) && read < 8; ++read) {
        const char digit = rest_[read];
        const size_t value =
            std::string_view("0123456789abcdef").find(digit >= 'A' && digit <= 'F' ? digit + 32 : digit);
        if (value == std::string_view::npos) {
          break;
        }
        code = 16 * code + static_cast<uint32_t>(value);
      }
      const bool is_character =
          code <= 0x10ffff && (code < 0xd800 || code > 0xdfff) && (c != 'x' || has_brace || code < 0x80);
      rest_.remove_prefix(std::min(read, rest_.size()));
      if (read == 0 || read != digits || !is_character || (has_brace && !Take("}"))) {
        return Refused(whole.substr(0, 8));
      }
      return code;
    }
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (is_word || static_cast<uint8_t>(c) >= 0x80) {
      return Refused(whole.substr(0, 1 + character.size()));
    }
    return static_cast<uint32_t>(static_cast<uint8_t>(c));
  }

  absl::Status Class() {
    caseless_run_.clear();
    rest_.remove_prefix(1);
    out_ += Take("^") ? "[^" : "[";
    if (rest_.starts_with("]")) {
      return Refused("[]");
    }
    while (!Take("]")) {
      if (rest_.empty()) {
        return absl::InvalidArgumentError("a '[' has no ']'; is the file whole?");
      }
      if (rest_.front() == '[' || rest_.starts_with("&&") || rest_.starts_with("\\S")) {
        return Refused(fmt::format("[…{}", rest_.substr(0, 2)));
      }
      GP_RETURN_IF_ERROR(Member());
    }
    out_ += ']';
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> ClassCharacter() {
    uint32_t code = 0;
    if (rest_.starts_with("\\")) {
      GP_ASSIGN_OR_RETURN(code, EscapedCharacter());
    } else {
      code = CodePoint(TakeCharacter());
    }
    return ignores_case() && code >= 0x80 ? Refused(fmt::format("(?i:…[…\\u{:04x}", code))
                                          : absl::StatusOr<uint32_t>(code);
  }

  // A member of a class: a character, a range of them, or a class of its own.
  absl::Status Member() {
    if (Take("\\s")) {
      out_ += kBlanks;
      return absl::OkStatus();
    }
    GP_ASSIGN_OR_RETURN(const std::optional<std::string> property, Property());
    if (property.has_value()) {
      out_ += *property;
      return absl::OkStatus();
    }
    const bool is_dash = rest_.front() == '-';
    const bool may_be_dash = out_.ends_with('[') || out_.ends_with("[^") || rest_.starts_with("-]");
    if (is_dash && !may_be_dash) {
      return Refused(fmt::format("[…{}", rest_.substr(0, 2)));
    }
    GP_ASSIGN_OR_RETURN(const uint32_t first, ClassCharacter());
    out_ += Literal(first);
    if (!rest_.starts_with("-") || rest_.starts_with("-]")) {
      return absl::OkStatus();
    }
    rest_.remove_prefix(1);
    for (const std::string_view no_end : {"[", "\\s", "\\S", "\\p", "\\P", "\\d"}) {
      if (rest_.starts_with(no_end)) {
        return Refused(fmt::format("[…-{}", rest_.substr(0, 2)));
      }
    }
    if (rest_.empty()) {
      return absl::InvalidArgumentError("a '[' has no ']'; is the file whole?");
    }
    GP_ASSIGN_OR_RETURN(const uint32_t last, ClassCharacter());
    if (last < first || ignores_case()) {
      return Refused(fmt::format("[…\\u{:04x}-\\u{:04x}", first, last));
    }
    out_ += fmt::format("-{}", Literal(last));
    return absl::OkStatus();
  }

  // Copies the quantifier of what came before, if it has one.
  absl::Status Quantifier() {
    if (rest_.empty() || std::string_view("?*+{").find(rest_.front()) == std::string_view::npos) {
      return absl::OkStatus();
    }
    caseless_run_.clear();
    size_t length = 1;
    if (rest_.front() == '{') {
      length = rest_.find('}') + 1;  // 0: there is none
      const std::string_view counts = length == 0 ? rest_.substr(0, 1) : rest_.substr(0, length);
      const std::string_view inside = counts.substr(1, counts.size() < 2 ? 0 : counts.size() - 2);
      const bool is_count = !inside.empty() && inside.front() != ',' &&
                            inside.find_first_not_of("0123456789,") == std::string_view::npos &&
                            std::ranges::count(inside, ',') <= 1 && inside.size() <= 9;
      // The two languages read what follows the counts differently.
      if (!is_count ||
          (rest_.size() > length && std::string_view("?*+{").find(rest_[length]) != std::string_view::npos)) {
        return Refused(rest_.substr(0, std::min(rest_.size(), counts.size() + 1)));
      }
    } else if (rest_.size() > 1 && (rest_[1] == '?' || rest_[1] == '+')) {
      length = 2;
    }
    out_ += rest_.substr(0, length);
    rest_.remove_prefix(length);
    if (!rest_.empty() && std::string_view("?*+{").find(rest_.front()) != std::string_view::npos) {
      return Refused(rest_.substr(0, 1));
    }
    return absl::OkStatus();
  }

  std::string_view rest_;
  std::string out_;
  std::vector<Group> groups_;
  std::string caseless_run_;  // letters without case that follow each other
};

}  // namespace

absl::StatusOr<std::string> TranslatePattern(std::string_view pattern) {
  if (!IsUtf8(pattern)) {
    return absl::InvalidArgumentError("is not UTF-8");
  }
  return Translator(pattern).Run();
}

}  // namespace geopipe
