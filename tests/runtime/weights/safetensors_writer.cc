#include "tests/runtime/weights/safetensors_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/weights/float_formats.h"

namespace geopipe {
namespace {

// Elements converted at a time.
constexpr size_t kPieceElements = size_t{1} << 16;

int64_t Elements(const TensorInfo& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
}

// The length and the header, padded by blanks to a multiple of 8 so that the data is aligned.
std::string Header(DType dtype, const std::vector<TensorInfo>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  int64_t offset = 0;
  for (const TensorInfo& tensor : tensors) {
    const int64_t end = offset + Elements(tensor) * ByteSize(dtype);
    header[tensor.name] = {
        {"dtype", dtype == DType::kFp32 ? "F32" : "BF16"}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  std::string result(sizeof(length), '\0');
  std::memcpy(result.data(), &length, sizeof(length));
  return result + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string path, UniqueFd fd, DType dtype, std::vector<TensorInfo> tensors)
    : path_(std::move(path)),
      partial_path_(path_ + ".partial"),
      fd_(std::move(fd)),
      dtype_(dtype),
      tensors_(std::move(tensors)) {}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(const std::string& path, DType dtype,
                                                                             std::vector<TensorInfo> tensors) {
  GP_CHECK(dtype == DType::kFp32 || dtype == DType::kBf16, "weights written as {}", DTypeName(dtype));
  const std::string partial_path = path + ".partial";
  UniqueFd fd(open(partial_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return absl::UnavailableError(fmt::format("{}: cannot be created: {}", partial_path, std::strerror(errno)));
  }
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(path, std::move(fd), dtype, std::move(tensors)));
  const std::string header = Header(dtype, writer->tensors_);
  GP_RETURN_IF_ERROR(writer->WriteAll(std::as_bytes(std::span(header))));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_.valid()) {
    unlink(partial_path_.c_str());
  }
}

absl::Status SafetensorsWriter::Append(std::span<const float> values) {
  GP_CHECK(appended_ < tensors_.size(), "more tensors than the {} declared", tensors_.size());
  GP_CHECK(static_cast<int64_t>(values.size()) == Elements(tensors_[appended_]), "tensor {} got {} values",
           tensors_[appended_].name, values.size());
  ++appended_;
  if (dtype_ == DType::kFp32) {
    return WriteAll(std::as_bytes(values));
  }
  std::vector<std::byte> piece;
  while (!values.empty()) {
    const size_t count = std::min(kPieceElements, values.size());
    piece.resize(count * ByteSize(dtype_));
    EncodeFloats(dtype_, values.first(count), piece);
    GP_RETURN_IF_ERROR(WriteAll(piece));
    values = values.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  GP_CHECK(appended_ == tensors_.size(), "{} of {} tensors were appended", appended_, tensors_.size());
  if (fsync(fd_.get()) != 0) {
    return IoError("cannot be synced", errno);
  }
  if (rename(partial_path_.c_str(), path_.c_str()) != 0) {
    return IoError("cannot be renamed into place", errno);
  }
  fd_.Reset();
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::WriteAll(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_.get(), bytes.data(), bytes.size());
    if (written < 0 && errno != EINTR) {
      return IoError("cannot be written", errno);
    }
    bytes = bytes.subspan(written < 0 ? 0 : static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::IoError(std::string_view what, int error) const {
  return absl::UnavailableError(fmt::format("{}: {}: {}", partial_path_, what, std::strerror(error)));
}

}  // namespace geopipe
