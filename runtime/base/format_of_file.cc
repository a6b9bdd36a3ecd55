#include "runtime/base/format_of_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <vector>

#include "optimizer/base/status_macros.h"

namespace geopipe {

absl::StatusOr<const FileFormat*> FormatOfFile(const InputFile& file) {
  std::array<std::byte, kFormatHeadBytes> head{};
  std::array<std::byte, kFormatTailBytes> tail{};
  const auto head_bytes = std::span(head).first(std::min(kFormatHeadBytes, file.bytes()));
  const auto tail_bytes = std::span(tail).first(std::min(kFormatTailBytes, file.bytes()));
  GP_RETURN_IF_ERROR(file.Read(0, head_bytes));
  GP_RETURN_IF_ERROR(file.Read(file.bytes() - std::ssize(tail_bytes), tail_bytes));
  return RecogniseFormat({.head = head_bytes, .tail = tail_bytes, .file_bytes = file.bytes()});
}

const FolderFormat* FormatOfFolder(const std::string& path) {
  constexpr size_t kMaxNames = 4096;
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator next(path, error), end; !error && next != end && names.size() < kMaxNames;
       next.increment(error)) {
    names.push_back(next->path().filename().string());
  }
  return RecogniseFolder(names);
}

absl::Status CheckFlatTokens(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    const FolderFormat* format = FormatOfFolder(path);
    return absl::FailedPreconditionError(
        format == nullptr ? fmt::format("{}: data.path names a folder; name one flat file of tokens", path)
                          : fmt::format("{}: data.path names a folder with {} ({}); {}", path, format->name,
                                        format->sign, format->remedy));
  }
  GP_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  GP_ASSIGN_OR_RETURN(const FileFormat* format, FormatOfFile(file));
  return format == nullptr
             ? absl::OkStatus()
             : absl::InvalidArgumentError(fmt::format("{}: is {}, not a flat file of tokens; {}", path, format->name,
                                                      RemedyFor(*format, WantedFile::kTokens)));
}

std::string DescribeOtherWeights(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) {
    const absl::StatusOr<InputFile> file = InputFile::Open(path);
    const absl::StatusOr<const FileFormat*> format = file.ok() ? FormatOfFile(*file) : file.status();
    return fmt::format("is {}; name a folder with config.json and weights in safetensors, or one of a checkpoint",
                       format.ok() && *format != nullptr ? (*format)->name : "a file");
  }
  const FolderFormat* folder = FormatOfFolder(path);
  return folder == nullptr ? "" : fmt::format("holds {} ({}); {}", folder->name, folder->sign, folder->remedy);
}

}  // namespace geopipe
