#include "runtime/tokenizer/hf_tokenizer.h"

#include <absl/functional/function_ref.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/files.h"
#include "runtime/base/utf8.h"
#include "runtime/tokenizer/byte_alphabet.h"
#include "runtime/tokenizer/hf_tokenizer_file.h"
#include "runtime/tokenizer/nfc.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr size_t kMaxConfigBytes = size_t{16} << 20;
constexpr int64_t kMaxPieceBytes = int64_t{1} << 30;

class HfTokenizer final : public Tokenizer {
 public:
  HfTokenizer(HfTokenizerSteps steps, bool ignore_special) : steps_(std::move(steps)) {
    std::vector<AddedToken> raw;
    std::vector<AddedToken> normalized;
    for (const AddedToken& token : steps_.added) {
      AddedToken sought = token;
      if (std::string room; token.normalized && steps_.is_nfc) {
        sought.content = std::string(ToNfc(token.content, room));
      }
      (token.normalized ? normalized : raw).push_back(std::move(sought));
      can_cut_ = can_cut_ && !token.strips_left && !token.strips_right && token.content.find('\n') == std::string::npos;
    }
    can_cut_ = can_cut_ && !steps_.adds_space && (!steps_.splits.empty() || steps_.words.has_value());
    raw_ = AddedTokens(std::move(raw), ignore_special);
    normalized_ = AddedTokens(std::move(normalized), ignore_special);
  }

  std::unique_ptr<TextEncoder> NewEncoder() const override;

  int64_t vocabulary() const override { return steps_.vocabulary; }

  std::optional<uint32_t> IdOf(std::string_view token) const override {
    const auto added = std::ranges::find(steps_.added, token, &AddedToken::content);
    if (added != steps_.added.end()) {
      return added->id;
    }
    const std::optional<std::string> bytes = BytesOfToken(token);
    return bytes.has_value() ? steps_.bpe->IdOf(*bytes) : std::nullopt;
  }

  const DocumentMarks& own_marks() const override { return steps_.marks; }
  bool can_cut() const override { return can_cut_; }
  int64_t max_piece_bytes() const override { return kMaxPieceBytes; }

  void EndWith(Mark mark) { steps_.marks.end = {std::move(mark)}; }

 private:
  friend class HfEncoder;

  HfTokenizerSteps steps_;
  AddedTokens raw_;
  AddedTokens normalized_;
  bool can_cut_ = true;
};

class HfEncoder final : public TextEncoder {
 public:
  explicit HfEncoder(const HfTokenizer& tokenizer)
      : tokenizer_(tokenizer),
        steps_(tokenizer.steps_),
        bpe_(*tokenizer.steps_.bpe),
        rooms_(tokenizer.steps_.splits.size() + 1) {}

  absl::Status Encode(std::string_view text, std::string_view follows, std::vector<uint32_t>& ids,
                      bool& closed) override {
    ids_ = &ids;
    closed_ = true;
    std::string_view whole = text;
    if (!follows.empty()) {
      joined_.assign(text);
      joined_ += follows;
      whole = joined_;
    }
    const absl::Status status = Tokens(tokenizer_.raw_, whole, text.size(), &HfEncoder::Normalize);
    closed = closed_;
    return status;
  }

 private:
  // Encodes the first `limit` bytes of a text, with a look at the rest.
  using Step = absl::Status (HfEncoder::*)(std::string_view text, size_t limit);

  // Finds added tokens, and takes the next step for what lies between them. No token lies across the limit of a piece
  // that something follows: it would have a line feed or take blanks, and then the tokenizer does not cut.
  absl::Status Tokens(const AddedTokens& tokens, std::string_view text, size_t limit, Step next) {
    return tokens.Split(text, [&](size_t begin, size_t end, std::optional<uint32_t> id) -> absl::Status {
      if (id.has_value()) {
        if (begin < limit || limit == text.size()) {
          ids_->push_back(*id);
        }
        return absl::OkStatus();
      }
      return begin < limit ? (this->*next)(text.substr(begin, end - begin), std::min(end, limit) - begin)
                           : absl::OkStatus();
    });
  }

  // A line feed composes with nothing, so both sides of a limit become NFC by themselves.
  absl::Status Normalize(std::string_view text, size_t limit) {
    if (steps_.is_nfc) {
      const bool is_cut = limit < text.size();
      const std::string_view head = ToNfc(text.substr(0, limit), head_);
      if (is_cut) {
        normalized_.assign(head);
        normalized_ += ToNfc(text.substr(limit), tail_);
      }
      limit = head.size();
      text = is_cut ? std::string_view(normalized_) : head;
    }
    return Tokens(tokenizer_.normalized_, text, limit, &HfEncoder::Cut);
  }

  absl::Status Cut(std::string_view text, size_t limit) { return CutFrom(0, text, limit); }

  absl::Status CutFrom(size_t level, std::string_view text, size_t limit) {
    if (level == steps_.splits.size()) {
      return Words(text, limit);
    }
    const auto next = [&](std::string_view piece) { return CutFrom(level + 1, piece, piece.size()); };
    GP_ASSIGN_OR_RETURN(const bool closed, steps_.splits[level].Split(text, limit, rooms_[level], next));
    closed_ = closed_ && closed;
    return absl::OkStatus();
  }

  absl::Status Words(std::string_view text, size_t limit) {
    if (steps_.adds_space && !text.starts_with(' ')) {  // then limit is the text's size
      spaced_.assign(" ");
      spaced_ += text;
      text = spaced_;
      limit = text.size();
    }
    const auto encode = [&](std::string_view piece) {
      bpe_.Encode(piece, *ids_);
      return absl::OkStatus();
    };
    if (!steps_.words.has_value()) {
      return encode(text);
    }
    GP_ASSIGN_OR_RETURN(const bool closed, steps_.words->Split(text, limit, rooms_.back(), encode));
    closed_ = closed_ && closed;
    return absl::OkStatus();
  }

  const HfTokenizer& tokenizer_;
  const HfTokenizerSteps& steps_;
  BpeEncoder bpe_;
  std::vector<SplitPattern::Room> rooms_;  // of each split, and of the words
  std::string joined_;
  std::string head_;
  std::string tail_;
  std::string normalized_;
  std::string spaced_;
  std::vector<uint32_t>* ids_ = nullptr;
  bool closed_ = true;
};

std::unique_ptr<TextEncoder> HfTokenizer::NewEncoder() const { return std::make_unique<HfEncoder>(*this); }

// The token that a configuration names as `key`: a text, or a map with its content. Empty: none.
std::string TokenOf(const fs::path& file, std::string_view key) {
  const absl::StatusOr<std::string> text = ReadFile(file, kMaxConfigBytes);
  if (!text.ok()) {
    return "";
  }
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains(key)) {
    return "";
  }
  const auto& value = json.at(std::string(key));
  if (value.is_string()) {
    return value.get<std::string>();
  }
  return value.is_object() && value.contains("content") && value["content"].is_string()
             ? value["content"].get<std::string>()
             : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> OpenHfTokenizer(const std::string& path, bool ignore_special) {
  GP_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxFileBytes));
  GP_ASSIGN_OR_RETURN(HfTokenizerSteps steps, ParseHfTokenizer(text, path));
  auto tokenizer = std::make_unique<HfTokenizer>(std::move(steps), ignore_special);
  for (const std::string_view name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    if (!tokenizer->own_marks().end.empty()) {
      break;
    }
    const fs::path beside = fs::path(path).parent_path() / name;
    const std::string token = TokenOf(beside, "eos_token");
    const std::optional<uint32_t> id = tokenizer->IdOf(token);
    if (!token.empty() && !id.has_value()) {
      return absl::InvalidArgumentError(fmt::format("{}: eos_token '{}' is no token of {}; name another with --eos",
                                                    beside.string(), Excerpt(token), path));
    }
    if (id.has_value()) {
      tokenizer->EndWith({.token = token, .id = *id});
    }
  }
  return tokenizer;
}

}  // namespace geopipe
