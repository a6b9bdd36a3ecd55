// The decoder's loss in fp64, in plain loops, independent of the engine: what finite differences are taken of.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "optimizer/model/model_spec.h"

namespace geopipe {

class ReferenceModel {
 public:
  using Weights = std::map<std::string, std::vector<double>, std::less<>>;  // by HF name, row-major

  explicit ReferenceModel(const ModelSpec& model) : model_(model) {}

  // Sum over one sample's tokens of the cross-entropy of `targets` given `inputs`.
  double Loss(const Weights& weights, const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets) const;

 private:
  using Rows = std::vector<std::vector<double>>;

  Rows Norm(const Rows& x, const std::vector<double>& weight) const;
  void NormHeads(Rows& x, const std::vector<double>& weight) const;
  double Frequency(int64_t j) const;
  void Rotate(Rows& x) const;
  Rows Attention(const Weights& weights, const std::string& prefix, const Rows& x) const;
  Rows Mlp(const Weights& weights, const std::string& prefix, const Rows& x) const;

  ModelSpec model_;
};

}  // namespace geopipe
