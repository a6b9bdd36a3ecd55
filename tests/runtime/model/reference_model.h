// The decoder's loss in fp64, in plain loops, independent of the engine: what finite differences are taken of.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "optimizer/model/model_spec.h"

namespace geopipe {

class ReferenceModel {
 public:
  using Weights = std::map<std::string, std::vector<double>, std::less<>>;  // by HF name, row-major

  // `document_end`: the token after which attention begins anew.
  explicit ReferenceModel(const ModelSpec& model, std::optional<int64_t> document_end = std::nullopt)
      : model_(model), document_end_(document_end) {}

  // Sum over one sample's tokens of the cross-entropy of `targets` given `inputs`.
  double Loss(const Weights& weights, const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets) const;

 private:
  using Rows = std::vector<std::vector<double>>;

  Rows Norm(const Rows& x, const std::vector<double>& weight) const;
  void NormHeads(Rows& x, const std::vector<double>& weight) const;
  double Frequency(int64_t j) const;
  void Rotate(Rows& x) const;
  // A position attends to those of its document alone; `document` has their numbers.
  Rows Attention(const Weights& weights, const std::string& prefix, const Rows& x,
                 const std::vector<int64_t>& document) const;
  Rows Mlp(const Weights& weights, const std::string& prefix, const Rows& x) const;

  ModelSpec model_;
  std::optional<int64_t> document_end_;
};

}  // namespace geopipe
