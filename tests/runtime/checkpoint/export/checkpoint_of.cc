#include "tests/runtime/checkpoint/export/checkpoint_of.h"

#include <catch2/catch.hpp>

#include "runtime/checkpoint/checkpoint_folders.h"
#include "runtime/checkpoint/checkpoint_units.h"
#include "runtime/checkpoint/tensor_file_writer.h"
#include "tests/runtime/checkpoint/written_checkpoint.h"

namespace geopipe {

std::string CheckpointOf(const std::string& root, const ModelSpec& model, const WeightValues& values) {
  constexpr int64_t kIteration = 7;
  std::string folder = *BeginCheckpoint(root, kIteration);
  CheckpointManifest manifest = ManifestOf(model, kIteration);
  for (const CheckpointUnit& unit : UnitsOf(model)) {
    const std::vector<TensorRange> weights = UnitWeights(model, unit);
    TensorFileWriter weight_writer = *TensorFileWriter::Create(folder, unit.weights_file("1-1"), weights);
    for (const TensorRange& tensor : weights) {
      REQUIRE(weight_writer.Append(tensor.name, tensor.shape, values(tensor.name, tensor.shape)).ok());
    }
    manifest.files.push_back(*weight_writer.Finish());
    const std::vector<TensorRange> moments = UnitMoments(model, unit);
    TensorFileWriter moment_writer = *TensorFileWriter::Create(folder, unit.moments_file("1-1"), moments);
    for (const TensorRange& tensor : moments) {
      const std::vector<float> zeros(static_cast<size_t>(tensor.elements));
      REQUIRE(moment_writer.Append(tensor.name, tensor.shape, zeros).ok());
    }
    manifest.files.push_back(*moment_writer.Finish());
  }
  REQUIRE(WriteCheckpointManifest(folder, manifest).ok());
  return folder;
}

}  // namespace geopipe
