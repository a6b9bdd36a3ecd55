#include "runtime/tokenizer/split_pattern.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/tokenizer/pattern_syntax.h"

namespace geopipe {
namespace {

constexpr size_t kMinStackBytes = size_t{32} << 10;
constexpr size_t kMaxStackBytes = size_t{8} << 20;

std::string MessageOf(int error) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(error, text, sizeof(text)) > 0 ? reinterpret_cast<const char*>(text) : "unknown error";
}

PCRE2_SPTR Units(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

struct SplitPattern::Code {
  explicit Code(pcre2_code* compiled) : pcre(compiled) {}
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(pcre); }

  pcre2_code* pcre;
};

struct SplitPattern::Room::State {
  State() {
    GP_CHECK(match != nullptr && context != nullptr && stack != nullptr, "no memory for matching");
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }

  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kMinStackBytes, kMaxStackBytes, nullptr);
};

SplitPattern::Room::Room() : state_(std::make_unique<State>()) {}
SplitPattern::Room::Room(Room&&) noexcept = default;
SplitPattern::Room& SplitPattern::Room::operator=(Room&&) noexcept = default;
SplitPattern::Room::~Room() = default;

absl::StatusOr<SplitPattern> SplitPattern::Compile(std::string_view pattern, Kind kind) {
  const absl::StatusOr<std::string> translated = TranslatePattern(pattern);
  if (!translated.ok()) {
    return absl::InvalidArgumentError(
        fmt::format("pattern {}: {}", Printable(std::string(pattern)), std::string(translated.status().message())));
  }
  return CompileTranslated(pattern, *translated, kind);
}

absl::StatusOr<SplitPattern> SplitPattern::CompileLiteral(std::string_view text, Kind kind) {
  std::string quoted;  // every byte that means something to PCRE2 is in ASCII
  for (const char c : text) {
    const bool is_plain = static_cast<uint8_t>(c) >= 0x80 || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    quoted += is_plain ? std::string(1, c) : fmt::format("\\x{{{:x}}}", static_cast<uint8_t>(c));
  }
  return IsUtf8(text) ? CompileTranslated(text, quoted, kind)
                      : absl::InvalidArgumentError(fmt::format("text '{}' is not UTF-8", Excerpt(text)));
}

absl::StatusOr<SplitPattern> SplitPattern::CompileTranslated(std::string_view shown, std::string_view translated,
                                                             Kind kind) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* compiled = pcre2_compile(Units(translated), translated.size(),
                                       PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, nullptr);
  const std::string pattern = Printable(std::string(shown));
  if (compiled == nullptr) {
    return absl::InvalidArgumentError(fmt::format("pattern {}: is not understood ({})", pattern, MessageOf(error)));
  }
  SplitPattern split;
  split.code_ = std::make_shared<Code>(compiled);
  split.kind_ = kind;
  uint32_t matches_empty = 0;
  GP_CHECK(pcre2_pattern_info(compiled, PCRE2_INFO_MATCHEMPTY, &matches_empty) == 0);
  if (matches_empty != 0) {
    return absl::InvalidArgumentError(
        fmt::format("pattern {}: matches the empty text, which is not supported; use another tokenizer", pattern));
  }
  // PCRE2 interprets the pattern where the processor has no such compiler.
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
  return split;
}

absl::StatusOr<bool> SplitPattern::Split(std::string_view text, size_t limit, Room& room, Visit visit) const {
  const bool is_cut = limit < text.size();
  // A partial match says that the end of the text was looked at.
  const uint32_t options = PCRE2_NO_UTF_CHECK | (is_cut ? PCRE2_PARTIAL_HARD : 0U);
  size_t position = 0;
  while (position < limit) {
    const int found =
        pcre2_match(code_->pcre, Units(text), text.size(), position, options, room.state_->match, room.state_->context);
    if (found == PCRE2_ERROR_PARTIAL) {
      return false;
    }
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) {
      return absl::ResourceExhaustedError(
          fmt::format("the tokenizer's pattern finds no end in the text that begins with '{}' ({})",
                      Excerpt(text.substr(position, 64)), MessageOf(found)));
    }
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(room.state_->match);
    const size_t begin = found == PCRE2_ERROR_NOMATCH ? text.size() : match[0];
    const size_t end = found == PCRE2_ERROR_NOMATCH ? text.size() : match[1];
    if (begin > limit || (begin < limit && end > limit)) {
      return false;
    }
    if (begin > position && kind_ == Kind::kIsolated) {
      GP_RETURN_IF_ERROR(visit(text.substr(position, begin - position)));
    }
    if (end > begin && begin < limit) {
      GP_RETURN_IF_ERROR(visit(text.substr(begin, end - begin)));
    }
    position = begin < limit ? end : limit;
  }
  return true;
}

}  // namespace geopipe
