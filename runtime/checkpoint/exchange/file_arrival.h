// Writes a file that another worker sends; it gets its name when its bytes are checked.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "optimizer/model/checkpoint_identity.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/new_file.h"

namespace geopipe {

// One thread. Errors that are not this node's own are DataLoss: the bytes are not the expected ones.
class FileArrival {
 public:
  virtual ~FileArrival() = default;

  virtual const std::string& name() const = 0;
  // Starts over from the first byte, and drops all bytes so far.
  virtual void Restart() = 0;
  // Takes the size of the whole file, as the sender says, at the beginning and wherever it resumes.
  virtual absl::Status Expect(int64_t bytes) = 0;
  virtual absl::Status Write(std::span<const std::byte> bytes) = 0;
  // Ends the file, which has arrived whole, and gives it its name.
  virtual absl::Status Finish() = 0;

  // Bytes received since Restart.
  int64_t received() const { return received_; }
  // True when the last error is that this node cannot write the file; no other sender helps.
  bool failed_here() const { return failed_here_; }

 protected:
  // Marks an error of this node.
  absl::Status Here(absl::Status status);

  int64_t received_ = 0;
  bool failed_here_ = false;
};

// A file of tensors, checked against its entry while it arrives: a part that is wrong ends it at once.
class ArrivingFile final : public FileArrival {
 public:
  // Writes into an existing folder. `entry` outlives this.
  ArrivingFile(std::string folder, const FileEntry& entry) : folder_(std::move(folder)), entry_(entry) {}

  const std::string& name() const override { return entry_.name; }
  void Restart() override;
  absl::Status Expect(int64_t bytes) override;
  absl::Status Write(std::span<const std::byte> bytes) override;
  absl::Status Finish() override;

 private:
  void BeginPart();
  absl::Status CheckPart() const;

  const std::string folder_;
  const FileEntry& entry_;
  std::optional<NewFile> file_;
  size_t part_ = 0;  // 0: the header; else the tensor of this number, from 1
  int64_t part_left_ = 0;
  uint32_t crc_ = 0;  // of the bytes of the part so far
};

// A manifest, which must be that of the wanted checkpoint.
class ArrivingManifest final : public FileArrival {
 public:
  // Writes as above. `wanted`: iteration, incarnation and epoch.
  ArrivingManifest(std::string folder, const CheckpointIdentity& wanted);

  const std::string& name() const override { return name_; }
  void Restart() override;
  absl::Status Expect(int64_t bytes) override;
  absl::Status Write(std::span<const std::byte> bytes) override;
  absl::Status Finish() override;

 private:
  absl::Status CheckIdentity() const;

  const std::string folder_;
  const CheckpointIdentity wanted_;
  const std::string name_;
  std::string text_;
};

}  // namespace geopipe
