// Checkpoints of weights that a test chooses.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/model_spec.h"

namespace geopipe {

// The values of a weight, as many as asked for.
using WeightValues = std::function<std::vector<float>(std::string_view name, const std::vector<int64_t>& shape)>;

// Writes the state before iteration 7 with these weights, and moments of zero; returns its folder.
std::string CheckpointOf(const std::string& root, const ModelSpec& model, const WeightValues& values);

}  // namespace geopipe
