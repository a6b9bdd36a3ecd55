#include "runtime/base/config/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "runtime/base/utf8.h"

namespace geopipe {
namespace {

constexpr int kMaxDepth = 64;
constexpr char kEnd = '\0';  // what Peek sees behind the text, which holds no NUL

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

int HexDigit(char c) {
  return IsDigit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

void AppendUtf8(uint32_t code, std::string* text) {
  const auto add = [text](uint32_t byte) { *text += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
    return;
  }
  if (code < 0x800) {
    add(0xc0 | (code >> 6));
  } else if (code < 0x10000) {
    add(0xe0 | (code >> 12));
    add(0x80 | ((code >> 6) & 0x3f));
  } else {
    add(0xf0 | (code >> 18));
    add(0x80 | ((code >> 12) & 0x3f));
    add(0x80 | ((code >> 6) & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

class JsonParser {
 public:
  JsonParser(std::string_view text, const JsonLimits& limits, const YamlDocument* document)
      : text_(text), limits_(limits), document_(document) {}

  absl::StatusOr<YamlNode> Parse() {
    SkipBlanks();
    GP_ASSIGN_OR_RETURN(YamlNode root, Value(0));
    SkipBlanks();
    if (Peek() != kEnd) {
      return Fail(fmt::format("{} follows the end of the value", Found()));
    }
    return root;
  }

 private:
  absl::StatusOr<YamlNode> Value(int depth) {
    if (depth > kMaxDepth) {
      return document_->Error(Mark(), "", fmt::format("nested deeper than {} levels", kMaxDepth));
    }
    if (++values_ > limits_.max_values) {
      return document_->Error(Mark(), "", fmt::format("more than {} values, the limit for a file", limits_.max_values));
    }
    YamlNode node;
    node.mark = Mark();
    const char first = Peek();
    if (first == '{') {
      GP_RETURN_IF_ERROR(Object(depth, &node));
    } else if (first == '[') {
      GP_RETURN_IF_ERROR(Array(depth, &node));
    } else if (first == '"') {
      node.kind = YamlNode::Kind::kScalar;
      node.quoted = true;
      GP_ASSIGN_OR_RETURN(node.scalar, String());
    } else if (first == '-' || IsDigit(first)) {
      node.kind = YamlNode::Kind::kScalar;
      GP_ASSIGN_OR_RETURN(node.scalar, Number());
    } else {
      GP_RETURN_IF_ERROR(Word(&node));
    }
    return node;
  }

  absl::Status Object(int depth, YamlNode* node) {
    node->kind = YamlNode::Kind::kMap;
    std::unordered_map<std::string, int32_t> lines;  // of the keys
    Advance();
    SkipBlanks();
    if (Peek() == '}') {
      Advance();
      return absl::OkStatus();
    }
    while (true) {
      if (Peek() != '"') {
        return Fail(fmt::format("{} stands where a key in double quotes is needed", Found()));
      }
      YamlEntry entry;
      entry.mark = Mark();
      GP_ASSIGN_OR_RETURN(entry.key, String());
      if (const auto [first, is_new] = lines.try_emplace(entry.key, entry.mark.line); !is_new) {
        return document_->Error(entry.mark, Shown(entry.key),
                                fmt::format("given twice, first on line {}; keep one of the two", first->second));
      }
      SkipBlanks();
      if (Peek() != ':') {
        return Fail(fmt::format("{} stands where ':' is needed after a key", Found()));
      }
      Advance();
      SkipBlanks();
      GP_ASSIGN_OR_RETURN(entry.value, Value(depth + 1));
      node->entries.push_back(std::move(entry));
      GP_ASSIGN_OR_RETURN(const bool more, More('}'));
      if (!more) {
        return absl::OkStatus();
      }
    }
  }

  absl::Status Array(int depth, YamlNode* node) {
    node->kind = YamlNode::Kind::kList;
    Advance();
    SkipBlanks();
    if (Peek() == ']') {
      Advance();
      return absl::OkStatus();
    }
    while (true) {
      GP_ASSIGN_OR_RETURN(YamlNode item, Value(depth + 1));
      node->items.push_back(std::move(item));
      GP_ASSIGN_OR_RETURN(const bool more, More(']'));
      if (!more) {
        return absl::OkStatus();
      }
    }
  }

  // Passes a comma, or `closing`, which ends the list.
  absl::StatusOr<bool> More(char closing) {
    SkipBlanks();
    if (Peek() == closing) {
      Advance();
      return false;
    }
    if (Peek() != ',') {
      return Fail(fmt::format("{} stands where ',' or '{}' is needed", Found(), closing));
    }
    Advance();
    SkipBlanks();
    return Peek() == closing ? absl::StatusOr<bool>(Fail(fmt::format("a comma stands before '{}'", closing))) : true;
  }

  absl::StatusOr<std::string> String() {
    const YamlMark begin = Mark();
    std::string value;
    Advance();
    while (Peek() != '"') {
      if (position_ == text_.size()) {
        return document_->Error(begin, "", "not valid JSON: the text that begins here does not end");
      }
      if (static_cast<unsigned char>(Peek()) < 0x20) {
        return Fail("a control character stands in a text; write it as \\n, \\t or \\u00XX");
      }
      if (Peek() == '\\') {
        Advance();
        GP_RETURN_IF_ERROR(Escape(&value));
      } else {
        value += Peek();
        Advance();
      }
    }
    Advance();
    return value;
  }

  absl::Status Escape(std::string* value) {
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    const size_t letter = kLetters.find(Peek());
    if (position_ < text_.size() && letter != std::string_view::npos) {
      *value += kMeanings[letter];
      Advance();
      return absl::OkStatus();
    }
    if (Peek() != 'u') {
      return Fail(fmt::format("{} stands behind a backslash in a text", Found()));
    }
    GP_ASSIGN_OR_RETURN(const uint32_t code, CodeUnit());
    const bool is_high = code >= 0xd800 && code < 0xdc00;
    if (is_high && text_.substr(position_).starts_with("\\u")) {
      Advance();
      GP_ASSIGN_OR_RETURN(const uint32_t low, CodeUnit());
      if (low >= 0xdc00 && low < 0xe000) {
        AppendUtf8(0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00), value);
        return absl::OkStatus();
      }
    }
    if (code >= 0xd800 && code < 0xe000) {
      return Fail("half of a surrogate pair stands alone in a text");
    }
    if (code == 0) {
      return document_->Error(Mark(), "", "a text holds \\u0000, which is not supported");
    }
    AppendUtf8(code, value);
    return absl::OkStatus();
  }

  // Reads the four digits behind the 'u' at which it begins.
  absl::StatusOr<uint32_t> CodeUnit() {
    Advance();
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const int digit = HexDigit(Peek());
      if (digit < 0) {
        return Fail(fmt::format("{} stands where one of the four hexadecimal digits of \\u is needed", Found()));
      }
      code = code * 16 + static_cast<uint32_t>(digit);
      Advance();
    }
    return code;
  }

  absl::StatusOr<std::string> Number() {
    const size_t begin = position_;
    if (Peek() == '-') {
      Advance();
    }
    const bool zero = Peek() == '0';
    GP_RETURN_IF_ERROR(Digits());
    if (zero && position_ - begin > (text_[begin] == '-' ? 2 : 1)) {
      return Fail("a number begins with 0");
    }
    if (Peek() == '.') {
      Advance();
      GP_RETURN_IF_ERROR(Digits());
    }
    if (Peek() == 'e' || Peek() == 'E') {
      Advance();
      if (Peek() == '+' || Peek() == '-') {
        Advance();
      }
      GP_RETURN_IF_ERROR(Digits());
    }
    return std::string(text_.substr(begin, position_ - begin));
  }

  absl::Status Digits() {
    if (!IsDigit(Peek())) {
      return Fail(fmt::format("{} stands where a digit is needed", Found()));
    }
    while (IsDigit(Peek())) {
      Advance();
    }
    return absl::OkStatus();
  }

  absl::Status Word(YamlNode* node) {
    for (const std::string_view word : {"true", "false", "null"}) {
      if (text_.substr(position_).starts_with(word)) {
        position_ += word.size();
        node->kind = word == "null" ? YamlNode::Kind::kNull : YamlNode::Kind::kScalar;
        node->scalar = word == "null" ? "" : word;
        return absl::OkStatus();
      }
    }
    return Fail(fmt::format("{} stands where a value is needed", Found()));
  }

  // Describes what is there: a word as a whole, and what is known to be no JSON by its name.
  std::string Found() const {
    if (position_ == text_.size()) {
      return "the end of the file";
    }
    const std::string_view rest = text_.substr(position_);
    if (rest.starts_with("//") || rest.starts_with("/*") || rest.starts_with("#")) {
      return "a comment, which JSON does not have,";
    }
    for (const std::string_view word : {"NaN", "nan", "-Infinity", "Infinity", "inf"}) {
      if (rest.starts_with(word)) {
        return fmt::format("{}, which JSON does not have,", word);
      }
    }
    for (const std::string_view word : {"None", "True", "False"}) {
      if (rest.starts_with(word)) {
        return fmt::format("Python's {}", word);
      }
    }
    return fmt::format("'{}'", Printable(rest.substr(0, CharacterBytes(rest))));
  }

  static size_t CharacterBytes(std::string_view text) {
    size_t bytes = 1;
    while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) {
      ++bytes;
    }
    return bytes;
  }

  static std::string Shown(const std::string& key) {
    constexpr size_t kShown = 120;
    return Printable(std::string_view(key).substr(0, kShown));
  }

  absl::Status Fail(std::string_view what) const {
    return document_->Error(Mark(), "", fmt::format("not valid JSON: {}", what));
  }

  char Peek() const { return position_ < text_.size() ? text_[position_] : kEnd; }
  void Advance() {
    if (Peek() == '\n') {
      ++line_;
      line_begin_ = position_ + 1;
    }
    position_ += position_ < text_.size() ? 1 : 0;
  }
  void SkipBlanks() {
    while (Peek() == ' ' || Peek() == '\t' || Peek() == '\n' || Peek() == '\r') {
      Advance();
    }
  }
  YamlMark Mark() const { return {line_, static_cast<int32_t>(position_ - line_begin_) + 1}; }

  const std::string_view text_;
  const JsonLimits& limits_;
  const YamlDocument* document_;
  size_t position_ = 0;
  size_t line_begin_ = 0;
  int32_t line_ = 1;
  int64_t values_ = 0;
};

}  // namespace

absl::StatusOr<YamlDocument> ParseJsonDocument(std::string_view text, std::string_view file, const JsonLimits& limits) {
  YamlDocument document{std::string(file), {}};
  if (text.size() > limits.max_bytes) {
    return document.Error({}, "", fmt::format("larger than {} bytes, the limit for a file", limits.max_bytes));
  }
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) {
    return document.Error({1, 1}, "", "not valid JSON: a byte order mark stands before it; save the file without one");
  }
  if (text.substr(std::min(text.find_first_not_of(" \t\r\n"), text.size())).starts_with('<')) {
    return document.Error(
        {1, 1}, "",
        "not valid JSON but a page of HTML or XML; download the file itself, with a login if its model "
        "asks for one");
  }
  if (!IsUtf8(text) || text.find('\0') != std::string_view::npos) {
    return document.Error({}, "", "not valid JSON: not UTF-8 text");
  }
  GP_ASSIGN_OR_RETURN(document.root, JsonParser(text, limits, &document).Parse());
  return document;
}

}  // namespace geopipe
