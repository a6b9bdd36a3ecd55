#include "runtime/data/text_corpus.h"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/file_format.h"
#include "runtime/data/data_files.h"

namespace geopipe {
namespace {

namespace fs = std::filesystem;

class TextCorpus final : public Corpus {
 public:
  explicit TextCorpus(DataFiles files) : files_(std::move(files)) {
    begins_.reserve(files_.count());
    for (size_t file = 0; file < files_.count(); ++file) {
      begins_.push_back(tokens_);
      tokens_ += files_.bytes_of(file) + 2;
    }
  }

  absl::Status Sample() {
    uint32_t checksum = 0;
    for (size_t file = 0; file < files_.count(); ++file) {
      const int64_t size = files_.bytes_of(file);
      checksum = Crc32c(std::as_bytes(std::span(&size, 1)), checksum);
    }
    GP_ASSIGN_OR_RETURN(checksum, BlocksChecksum(files_, 0, SampledBlocks(files_.bytes()), {}, checksum));
    fingerprint_ = {.bytes = files_.bytes(), .checksum = checksum};
    return absl::OkStatus();
  }

  int64_t tokens() const override { return tokens_; }

  absl::Status Copy(int64_t first, std::span<int32_t> out) const override {
    GP_CHECK(first >= 0 && first + std::ssize(out) <= tokens_, "window at {} of {}", first, tokens_);
    if (out.empty()) {
      return absl::OkStatus();
    }
    auto file = static_cast<int64_t>(std::ranges::upper_bound(begins_, first) - begins_.begin() - 1);
    int64_t position = first - begins_[file];  // 0: BOS, then the bytes, then EOS
    // Tokens before the position include two of each finished file that are no bytes, and the BOS of this one.
    const int64_t begin = first - 2 * file - std::min<int64_t>(position, 1);
    std::vector<std::byte> bytes(std::min(std::ssize(out), files_.bytes() - begin));
    GP_RETURN_IF_ERROR(files_.Read(begin, bytes));
    auto next = bytes.begin();
    for (int32_t& token : out) {
      const int64_t size = files_.bytes_of(file);
      if (position == 0) {
        token = kByteTokenizerBos;
      } else if (position <= size) {
        token = static_cast<int32_t>(*next++);
      } else {
        token = kByteTokenizerEos;
        ++file;
        position = -1;
      }
      ++position;
    }
    return absl::OkStatus();
  }

  // A job whose vocabulary is too small for bytes is refused.
  absl::Status CheckTokens(int64_t /*offset*/, std::span<const std::byte> /*bytes*/) const override {
    return absl::OkStatus();
  }

  const DataFiles& files() const override { return files_; }

  std::vector<int64_t> file_tokens() const override {
    std::vector<int64_t> tokens;
    for (size_t file = 0; file < files_.count(); ++file) {
      tokens.push_back(files_.bytes_of(file) + 2);
    }
    return tokens;
  }

  const DataFingerprint& fingerprint() const override { return fingerprint_; }

 private:
  const DataFiles files_;
  std::vector<int64_t> begins_;  // index of each file's BOS
  int64_t tokens_ = 0;
  DataFingerprint fingerprint_;
};

// Paths that `pattern` names, in any order. A path without wildcards names itself, whether it exists or not.
absl::StatusOr<std::vector<std::string>> Expand(const std::string& pattern, std::string_view key) {
  std::error_code error;
  if (fs::exists(pattern, error) || pattern.find_first_of("*?[") == std::string::npos) {
    if (fs::is_directory(pattern, error)) {
      return absl::FailedPreconditionError(
          fmt::format("{}: {} names a folder; name its files, as in {}/*", pattern, key, pattern));
    }
    return std::vector<std::string>{pattern};
  }
  glob_t matches{};
  const int result = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &matches);
  std::vector<std::string> paths;
  for (const char* path : std::span(matches.gl_pathv, matches.gl_pathc)) {
    if (!fs::is_directory(path, error)) {
      paths.emplace_back(path);
    }
  }
  globfree(&matches);
  if (result != 0 || paths.empty()) {
    return absl::NotFoundError(
        fmt::format("{}: {} matches no file on this node; check the pattern, and that the data is here", pattern, key));
  }
  return paths;
}

// The kinds of text are text; of unknown bytes a twentieth are control characters where they are none.
absl::Status CheckIsText(const DataFiles& files, size_t index, int64_t begin) {
  const std::string& path = files.path_of(index);
  std::vector<std::byte> head(static_cast<size_t>(std::min(kFormatHeadBytes, files.bytes_of(index))));
  GP_RETURN_IF_ERROR(files.Read(begin, head));
  std::vector<std::byte> tail(std::min<size_t>(head.size(), kFormatTailBytes));
  GP_RETURN_IF_ERROR(files.Read(begin + files.bytes_of(index) - std::ssize(tail), tail));
  const FileFormat* format = RecogniseFormat({.head = head, .tail = tail, .file_bytes = files.bytes_of(index)});
  if (format != nullptr && format->kind != FormatKind::kText) {
    return absl::InvalidArgumentError(
        fmt::format("{}: is {}, not text; {}", path, format->name, RemedyFor(*format, WantedFile::kText)));
  }
  constexpr int64_t kMinBytes = 64;
  const int64_t control = CountControlBytes(head);
  if (std::ssize(head) < kMinBytes || 20 * control < std::ssize(head)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("{}: is not text: {} of its first {} bytes are control characters; name files of text, or use "
                  "data.format: tokens "
                  "if it holds token ids",
                  path, control, head.size()));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> MatchFiles(const std::vector<std::string>& patterns, std::string_view key) {
  std::set<std::string> resolved;  // std::string compares bytes as unsigned, independent of the locale
  for (const std::string& pattern : patterns) {
    GP_ASSIGN_OR_RETURN(const std::vector<std::string> paths, Expand(pattern, key));
    for (const std::string& path : paths) {
      std::error_code error;
      const fs::path canonical = fs::canonical(path, error);
      // A path that does not resolve is kept as it is, and opening it says why.
      resolved.insert(error ? path : canonical.string());
    }
  }
  return std::vector<std::string>(resolved.begin(), resolved.end());
}

absl::StatusOr<std::vector<std::string>> TextFiles(const std::vector<std::string>& patterns) {
  GP_ASSIGN_OR_RETURN(std::vector<std::string> resolved, MatchFiles(patterns, "data.path"));
  if (resolved.size() > kMaxTextFiles) {
    return absl::FailedPreconditionError(
        fmt::format("data.path: {} files, at most {} can be open at once; join them into fewer files, or tokenize them "
                    "into data.format: tokens",
                    resolved.size(), kMaxTextFiles));
  }
  return resolved;
}

absl::StatusOr<std::unique_ptr<Corpus>> OpenText(const std::vector<std::string>& patterns) {
  GP_ASSIGN_OR_RETURN(const std::vector<std::string> paths, TextFiles(patterns));
  GP_ASSIGN_OR_RETURN(DataFiles files, DataFiles::Open(paths));
  if (files.bytes() == 0) {
    return absl::InvalidArgumentError(
        fmt::format("{}: data.path holds no text ({} files, all empty); name files with text",
                    patterns.empty() ? "(nothing)" : patterns.front(), files.count()));
  }
  int64_t begin = 0;
  for (size_t file = 0; file < files.count(); ++file) {
    GP_RETURN_IF_ERROR(CheckIsText(files, file, begin));
    begin += files.bytes_of(file);
  }
  auto corpus = std::make_unique<TextCorpus>(std::move(files));
  GP_RETURN_IF_ERROR(corpus->Sample());
  return corpus;
}

}  // namespace geopipe
