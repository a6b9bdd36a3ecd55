// Small checkpoints with values that follow from iteration and name, for the tests of this folder.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"
#include "runtime/checkpoint/checkpoint_units.h"
#include "runtime/checkpoint/manifest.h"

namespace geopipe {

// Tag in the names of the files.
inline constexpr std::string_view kTag = "1-3";

ModelSpec SmallModel(int64_t layers, bool tied = false);

// Element i of a tensor in the state before `iteration`: any 32 bits, so NaNs with payloads, infinities and denormals
// are among them.
std::vector<float> StateValues(int64_t iteration, std::string_view tensor, int64_t elements);

// True when the bits are the same: NaN equals NaN.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b);

// All tensors of the files of a unit, weights first.
std::vector<TensorRange> UnitTensors(const ModelSpec& model, const CheckpointUnit& unit);

// Writes both files of a unit into `folder` and appends their entries. `wrote` is called after each file.
absl::Status WriteUnit(
    const std::string& folder, const ModelSpec& model, const CheckpointUnit& unit, int64_t iteration,
    std::vector<FileEntry>& files, const std::function<void()>& wrote = [] {});

// Everything of the manifest but the files.
CheckpointManifest ManifestOf(const ModelSpec& model, int64_t iteration);

// Begins, writes and completes the checkpoint before `iteration`.
absl::Status WriteCheckpoint(
    const std::string& root, const ModelSpec& model, int64_t iteration, const std::function<void()>& wrote = [] {});

// The same, REQUIREd to succeed; returns the folder.
std::string WrittenCheckpoint(const std::string& root, const ModelSpec& model, int64_t iteration);

std::string Content(const std::string& path);
// Replaces one byte where it lies.
void Poke(const std::string& path, size_t byte, char value);
void Overwrite(const std::string& path, std::string_view content);

// The names in a folder, sorted.
std::vector<std::string> Names(const std::string& folder);

// A manifest's text with the checksum that its content has, as one who means harm would write it.
std::string Resealed(const std::string& text);

}  // namespace geopipe
