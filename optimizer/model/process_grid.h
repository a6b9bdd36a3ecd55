// The ranks that run a job: one per device, each a place in a grid of pipeline, data and tensor parallelism.
#pragma once

#include <cstdint>
#include <vector>

namespace geopipe {

struct Rank {
  int32_t pipeline = 0;
  int32_t data = 0;
  int32_t tensor = 0;

  friend bool operator==(const Rank&, const Rank&) = default;
};

// Ranks are numbered with tensor fastest, then data, then pipeline: tensor ranks are neighbours in a node.
struct ProcessGrid {
  int32_t pipeline = 1;
  int32_t data = 1;
  int32_t tensor = 1;

  int32_t size() const { return pipeline * data * tensor; }
  // REQUIRES: `rank` lies in the grid.
  int32_t IndexOf(const Rank& rank) const { return (rank.pipeline * data + rank.data) * tensor + rank.tensor; }
  // REQUIRES: 0 <= index < size().
  Rank At(int32_t index) const { return {index / tensor / data, index / tensor % data, index % tensor}; }

  // The ranks with the data and tensor coordinate of rank `index`, by pipeline coordinate: those that exchange messages
  // with it.
  std::vector<int32_t> PipelineOf(int32_t index) const {
    std::vector<int32_t> ranks;
    ranks.reserve(pipeline);
    for (int32_t i = 0; i < pipeline; ++i) {
      ranks.push_back((i * data * tensor) + index % (data * tensor));
    }
    return ranks;
  }

  // The tensor ranks of rank `index`'s replica of a stage, itself among them: those that its collectives are with.
  std::vector<int32_t> TensorGroupOf(int32_t index) const {
    std::vector<int32_t> ranks;
    ranks.reserve(tensor);
    for (int32_t i = 0; i < tensor; ++i) {
      ranks.push_back(index - (index % tensor) + i);
    }
    return ranks;
  }
  // Rank `index` and its replicas: those that it reduces gradients with.
  std::vector<int32_t> ReplicasOf(int32_t index) const {
    std::vector<int32_t> ranks;
    ranks.reserve(data);
    for (int32_t i = 0; i < data; ++i) {
      ranks.push_back(IndexOf({.pipeline = At(index).pipeline, .data = i, .tensor = At(index).tensor}));
    }
    return ranks;
  }

  friend bool operator==(const ProcessGrid&, const ProcessGrid&) = default;
};

}  // namespace geopipe
