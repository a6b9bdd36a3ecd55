#include "runtime/checkpoint/exchange/file_arrival.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/base/crc32c.h"

namespace geopipe {
namespace {

constexpr int64_t kTensorElementBytes = sizeof(float);

absl::Status Wrong(const std::string& text) { return absl::DataLossError(text); }

}  // namespace

absl::Status FileArrival::Here(absl::Status status) {
  failed_here_ = failed_here_ || !status.ok();
  return status;
}

// --- Files of tensors ---------------------------------------------------------------------------------------------

void ArrivingFile::Restart() {
  file_.reset();
  received_ = 0;
  part_ = 0;
  BeginPart();
}

absl::Status ArrivingFile::Expect(int64_t bytes) {
  if (bytes != entry_.bytes) {
    return Wrong(fmt::format("it has {} bytes there, the manifest says {}", bytes, entry_.bytes));
  }
  if (file_.has_value()) {
    return absl::OkStatus();  // it resumes
  }
  absl::StatusOr<NewFile> file = NewFile::Create(fmt::format("{}/{}", folder_, entry_.name));
  GP_RETURN_IF_ERROR(Here(file.status()));
  file_.emplace(*std::move(file));
  return Here(file_->Reserve(entry_.bytes));
}

void ArrivingFile::BeginPart() {
  crc_ = 0;
  part_left_ = 0;
  if (part_ == 0) {
    part_left_ = entry_.header_bytes;
  } else if (part_ <= entry_.tensors.size()) {
    part_left_ = kTensorElementBytes * entry_.tensors[part_ - 1].range.elements;
  }
}

absl::Status ArrivingFile::CheckPart() const {
  const TensorEntry* tensor = part_ == 0 ? nullptr : &entry_.tensors[part_ - 1];
  const uint32_t expected = tensor == nullptr ? entry_.header_crc32c : tensor->crc32c;
  if (crc_ == expected) {
    return absl::OkStatus();
  }
  return Wrong(fmt::format("{} is damaged there: its checksum is {:08x}, the manifest says {:08x}",
                           tensor == nullptr ? "the header" : fmt::format("tensor {}", tensor->range.name), crc_,
                           expected));
}

absl::Status ArrivingFile::Write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    GP_CHECK(part_left_ > 0, "more of {} than was expected", entry_.name);
    const size_t count = std::min(bytes.size(), static_cast<size_t>(part_left_));
    crc_ = Crc32c(bytes.first(count), crc_);
    part_left_ -= static_cast<int64_t>(count);
    if (part_left_ == 0) {
      GP_RETURN_IF_ERROR(CheckPart());
      ++part_;
      BeginPart();
    }
    GP_RETURN_IF_ERROR(Here(file_->Write(bytes.first(count))));
    received_ += static_cast<int64_t>(count);
    bytes = bytes.subspan(count);
  }
  return absl::OkStatus();
}

absl::Status ArrivingFile::Finish() {
  GP_CHECK(received_ == entry_.bytes, "{} has come up to byte {}", entry_.name, received_);
  return Here(file_->Commit());
}

// --- Manifests ----------------------------------------------------------------------------------------------------

ArrivingManifest::ArrivingManifest(std::string folder, const CheckpointIdentity& wanted)
    : folder_(std::move(folder)), wanted_(wanted), name_(kManifestName) {}

void ArrivingManifest::Restart() {
  text_.clear();
  received_ = 0;
}

absl::Status ArrivingManifest::Expect(int64_t bytes) {
  return bytes <= static_cast<int64_t>(CheckpointLimits::kMaxManifestBytes)
             ? absl::OkStatus()
             : Wrong(fmt::format("it has {} bytes there, a manifest at most {}", bytes,
                                 CheckpointLimits::kMaxManifestBytes));
}

absl::Status ArrivingManifest::Write(std::span<const std::byte> bytes) {
  text_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  received_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status ArrivingManifest::CheckIdentity() const {
  const absl::StatusOr<CheckpointManifest> manifest = ParseCheckpointManifest(text_, name_);
  if (!manifest.ok()) {
    return Wrong(std::string(manifest.status().message()));
  }
  const CheckpointIdentity found{.iteration = manifest->next_iteration,
                                 .incarnation = static_cast<uint64_t>(manifest->incarnation),
                                 .epoch = static_cast<uint64_t>(manifest->epoch),
                                 .sequence_length = wanted_.sequence_length};
  return found == wanted_ ? absl::OkStatus()
                          : Wrong(fmt::format("it is of iteration {}, run {}, epoch {} there", found.iteration,
                                              found.incarnation, found.epoch));
}

absl::Status ArrivingManifest::Finish() {
  GP_RETURN_IF_ERROR(CheckIdentity());
  absl::StatusOr<NewFile> file = NewFile::Create(fmt::format("{}/{}", folder_, name_));
  GP_RETURN_IF_ERROR(Here(file.status()));
  GP_RETURN_IF_ERROR(Here(file->Write(std::as_bytes(std::span(text_)))));
  return Here(file->Commit());
}

}  // namespace geopipe
