#include "tests/runtime/model/reference_model.h"

#include <algorithm>
#include <cmath>

namespace geopipe {
namespace {

using Rows = std::vector<std::vector<double>>;

// x * W^T + bias, W [out, in].
Rows Linear(const Rows& x, const std::vector<double>& weight, const std::vector<double>& bias = {}) {
  const size_t in = x.front().size();
  const size_t out = weight.size() / in;
  Rows y(x.size(), bias.empty() ? std::vector<double>(out, 0.0) : bias);
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t o = 0; o < out; ++o) {
      for (size_t j = 0; j < in; ++j) {
        y[i][o] += x[i][j] * weight[o * in + j];
      }
    }
  }
  return y;
}

void Add(Rows& x, const Rows& y) {
  for (size_t i = 0; i < x.size(); ++i) {
    for (size_t j = 0; j < x[i].size(); ++j) {
      x[i][j] += y[i][j];
    }
  }
}

}  // namespace

Rows ReferenceModel::Norm(const Rows& x, const std::vector<double>& weight) const {
  Rows y = x;
  for (std::vector<double>& row : y) {
    double squares = 0;
    for (const double value : row) {
      squares += value * value;
    }
    const double rms = std::sqrt(squares / static_cast<double>(row.size()) + model_.rms_norm_eps);
    for (size_t j = 0; j < row.size(); ++j) {
      row[j] = row[j] / rms * weight[j];
    }
  }
  return y;
}

void ReferenceModel::NormHeads(Rows& x, const std::vector<double>& weight) const {
  for (std::vector<double>& row : x) {
    for (size_t head = 0; head < row.size(); head += weight.size()) {
      const auto begin = row.begin() + static_cast<ptrdiff_t>(head);
      const Rows normed = Norm({{begin, begin + static_cast<ptrdiff_t>(weight.size())}}, weight);
      std::copy(normed.front().begin(), normed.front().end(), begin);
    }
  }
}

// Radians per position of pair j, as transformers computes inv_freq.
double ReferenceModel::Frequency(int64_t j) const {
  constexpr double kPi = 3.14159265358979323846;
  const double frequency =
      1 / std::pow(model_.rope_theta, 2.0 * static_cast<double>(j) / static_cast<double>(model_.head_dim()));
  const RopeScaling& scaling = model_.rope_scaling;
  if (scaling.type == RopeScaling::Type::kLinear) {
    return frequency / scaling.factor;
  }
  if (scaling.type == RopeScaling::Type::kDefault) {
    return frequency;
  }
  const double wavelength = 2 * kPi / frequency;
  const auto original = static_cast<double>(scaling.original_max_position_embeddings);
  if (wavelength > original / scaling.low_freq_factor) {
    return frequency / scaling.factor;
  }
  if (wavelength < original / scaling.high_freq_factor) {
    return frequency;
  }
  const double smooth =
      (original / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

void ReferenceModel::Rotate(Rows& x) const {
  const int64_t d = model_.head_dim();
  for (size_t position = 0; position < x.size(); ++position) {
    for (size_t head = 0; head < x[position].size(); head += d) {
      for (int64_t j = 0; j < d / 2; ++j) {
        const double angle = static_cast<double>(position) * Frequency(j);
        double& first = x[position][head + j];
        double& second = x[position][head + j + d / 2];
        const double old_first = first;
        first = old_first * std::cos(angle) - second * std::sin(angle);
        second = second * std::cos(angle) + old_first * std::sin(angle);
      }
    }
  }
}

Rows ReferenceModel::Attention(const Weights& weights, const std::string& prefix, const Rows& x,
                               const std::vector<int64_t>& document) const {
  const auto vector = [&](const std::string& name) {
    const auto found = weights.find(prefix + "self_attn." + name);
    return found == weights.end() ? std::vector<double>() : found->second;
  };
  Rows q = Linear(x, weights.at(prefix + "self_attn.q_proj.weight"), vector("q_proj.bias"));
  Rows k = Linear(x, weights.at(prefix + "self_attn.k_proj.weight"), vector("k_proj.bias"));
  const Rows v = Linear(x, weights.at(prefix + "self_attn.v_proj.weight"), vector("v_proj.bias"));
  if (model_.family == ModelFamily::kQwen3) {
    NormHeads(q, vector("q_norm.weight"));
    NormHeads(k, vector("k_norm.weight"));
  }
  Rotate(q);
  Rotate(k);
  const int64_t d = model_.head_dim();
  const int64_t sharing = model_.num_attention_heads / model_.num_key_value_heads;
  Rows context(x.size(), std::vector<double>(q.front().size(), 0.0));
  for (int64_t head = 0; head < model_.num_attention_heads; ++head) {
    const int64_t q_column = head * d;
    const int64_t kv_column = head / sharing * d;
    for (size_t i = 0; i < x.size(); ++i) {
      std::vector<double> p(i + 1);
      double total = 0;
      for (size_t j = 0; j <= i; ++j) {
        double score = 0;
        for (int64_t c = 0; c < d; ++c) {
          score += q[i][q_column + c] * k[j][kv_column + c];
        }
        p[j] = document[i] == document[j] ? std::exp(score / std::sqrt(static_cast<double>(d))) : 0;
        total += p[j];
      }
      for (size_t j = 0; j <= i; ++j) {
        for (int64_t c = 0; c < d; ++c) {
          context[i][q_column + c] += p[j] / total * v[j][kv_column + c];
        }
      }
    }
  }
  return Linear(context, weights.at(prefix + "self_attn.o_proj.weight"), vector("o_proj.bias"));
}

Rows ReferenceModel::Mlp(const Weights& weights, const std::string& prefix, const Rows& x) const {
  Rows gate = Linear(x, weights.at(prefix + "mlp.gate_proj.weight"));
  const Rows up = Linear(x, weights.at(prefix + "mlp.up_proj.weight"));
  for (size_t i = 0; i < gate.size(); ++i) {
    for (size_t j = 0; j < gate[i].size(); ++j) {
      gate[i][j] = gate[i][j] / (1 + std::exp(-gate[i][j])) * up[i][j];
    }
  }
  return Linear(gate, weights.at(prefix + "mlp.down_proj.weight"));
}

double ReferenceModel::Loss(const Weights& weights, const std::vector<int32_t>& inputs,
                            const std::vector<int32_t>& targets) const {
  const std::vector<double>& embedding = weights.at("model.embed_tokens.weight");
  Rows x;
  std::vector<int64_t> document;
  int64_t number = 0;
  for (const int32_t token : inputs) {
    document.push_back(number);
    number += document_end_ == token ? 1 : 0;
    const auto row = embedding.begin() + token * model_.hidden_size;
    x.emplace_back(row, row + model_.hidden_size);
  }
  for (int64_t layer = 0; layer < model_.num_hidden_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    Add(x, Attention(weights, prefix, Norm(x, weights.at(prefix + "input_layernorm.weight")), document));
    Add(x, Mlp(weights, prefix, Norm(x, weights.at(prefix + "post_attention_layernorm.weight"))));
  }
  const Rows logits = Linear(Norm(x, weights.at("model.norm.weight")),
                             model_.tie_word_embeddings ? embedding : weights.at("lm_head.weight"));
  double loss = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    double total = 0;
    for (int64_t token = 0; token < model_.vocab_size; ++token) {  // rows of padding are not predicted
      total += std::exp(logits[i][token]);
    }
    loss += std::log(total) - logits[i][targets[i]];
  }
  return loss;
}

}  // namespace geopipe
