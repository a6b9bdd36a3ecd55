#include "runtime/tokenizer/open_tokenizer.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "optimizer/base/status_macros.h"
#include "runtime/base/input_file.h"
#include "runtime/base/utf8.h"
#include "runtime/tokenizer/hf_tokenizer.h"
#include "runtime/tokenizer/sentencepiece_tokenizer.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

// A tokenizer.json begins with a brace, which no SentencePiece model does: its first byte is the tag of a field.
absl::StatusOr<bool> IsJson(const std::string& path) {
  GP_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  std::array<char, 64> head{};
  const auto count = static_cast<size_t>(std::min<int64_t>(file.bytes(), head.size()));
  GP_RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(head).first(count))));
  const std::string_view text(head.data(), count);
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

}  // namespace

absl::StatusOr<OpenedTokenizer> OpenTokenizer(const std::string& path, bool ignore_special) {
  OpenedTokenizer opened{.tokenizer = nullptr, .path = path};
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
      opened.path = (fs::path(path) / name).string();
      if (fs::exists(opened.path, error)) {
        break;
      }
      opened.path.clear();
    }
    if (opened.path.empty()) {
      return absl::NotFoundError(
          fmt::format("{}: has neither tokenizer.json nor tokenizer.model; name the tokenizer's file", path));
    }
  }
  GP_ASSIGN_OR_RETURN(const bool is_json, IsJson(opened.path));
  GP_ASSIGN_OR_RETURN(opened.tokenizer,
                      is_json ? OpenHfTokenizer(opened.path, ignore_special) : OpenSentencePiece(opened.path));
  return opened;
}

absl::StatusOr<std::vector<Mark>> MarkNamed(const Tokenizer& tokenizer, const std::string& word,
                                            const std::vector<Mark>& own) {
  if (word == "auto") {
    return own;
  }
  if (word == "none") {
    return std::vector<Mark>();
  }
  const std::optional<uint32_t> id = tokenizer.IdOf(word);
  if (!id.has_value()) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is no token of the tokenizer; name one, or auto, or none", Excerpt(word)));
  }
  return std::vector<Mark>{{.token = word, .id = *id}};
}

}  // namespace geopipe
