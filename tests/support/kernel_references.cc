#include "tests/support/kernel_references.h"

#include <algorithm>

#include "tests/support/all_processors.h"

namespace geopipe {

void WorstError::Note(double actual, double expected, double allowed_here) {
  const double error_here = std::isnan(actual) ? INFINITY : std::abs(actual - expected);
  if (error_here / allowed_here > share()) {
    error = error_here;
    allowed = allowed_here;
  }
}

Expected DotOf(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t count) {
  Expected sum;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<double>(a[i * a_stride]) * b[i * b_stride];
  }
  return sum;
}

NormLine NormLineOf(Floats x, Floats weight, Floats grad_y, double eps) {
  const double width = static_cast<double>(x.size());
  NormLine line;
  Expected squares;
  Expected dot;
  for (size_t j = 0; j < x.size(); ++j) {
    squares += static_cast<double>(x[j]) * x[j];
    dot += static_cast<double>(weight[j]) * grad_y[j] * x[j];
  }
  const double r = 1 / std::sqrt(squares.value / width + eps);
  line.inverse_rms = r;
  line.y.resize(x.size());
  line.grad_x.resize(x.size());
  line.grad_weight.resize(x.size());
  for (size_t j = 0; j < x.size(); ++j) {
    line.y[j] += x[j] * r * weight[j];
    line.grad_x[j] += r * weight[j] * grad_y[j];
    line.grad_x[j].Add(dot, -(x[j] * r * r * r / width));
    line.grad_weight[j] += grad_y[j] * x[j] * r;
  }
  return line;
}

LossRow LossRowOf(Floats logits, int32_t target, double grad_scale) {
  LossRow row;
  const double max = *std::ranges::max_element(logits);
  std::vector<double> exponentials(logits.size());
  double sum = 0;
  for (size_t j = 0; j < logits.size(); ++j) {
    exponentials[j] = std::exp(logits[j] - max);
    sum += exponentials[j];
  }
  row.loss = std::log(sum) + max - logits[static_cast<size_t>(target)];
  row.gradient.resize(logits.size());
  for (size_t j = 0; j < logits.size(); ++j) {
    row.gradient[j] += grad_scale * exponentials[j] / sum;
  }
  row.gradient[static_cast<size_t>(target)] += -grad_scale;
  return row;
}

SoftmaxRow SoftmaxRowOf(std::span<const double> scores, std::span<const Expected> grad_probabilities, int64_t start,
                        int64_t position, double scale) {
  SoftmaxRow row;
  row.probabilities.resize(scores.size());
  row.grad_scores.resize(scores.size());
  const auto begin = static_cast<size_t>(start);
  const auto end = static_cast<size_t>(position) + 1;
  const double max = *std::max_element(scores.begin() + start, scores.begin() + position + 1);
  double sum = 0;
  for (size_t j = begin; j < end; ++j) {
    sum += std::exp(scale * (scores[j] - max));
  }
  row.statistic = std::log(sum) + scale * max;
  for (size_t j = begin; j < end; ++j) {
    row.probabilities[j] += std::exp(scale * scores[j] - row.statistic);
    row.mean.Add(grad_probabilities[j], row.probabilities[j].value);
  }
  for (size_t j = begin; j < end; ++j) {
    const double p = scale * row.probabilities[j].value;
    row.grad_scores[j].Add(grad_probabilities[j], p);
    row.grad_scores[j].Add(row.mean, -p);
  }
  return row;
}

Expected SwiGluOf(float gate, float up) {
  Expected out;
  out += gate / (1 + std::exp(-static_cast<double>(gate))) * up;
  return out;
}

SwiGluGrads SwiGluGradsOf(float gate, float up, float grad_out) {
  const double sigmoid = 1 / (1 + std::exp(-static_cast<double>(gate)));
  const double outer = static_cast<double>(grad_out) * up;
  SwiGluGrads grads;
  grads.gate += outer * sigmoid;
  grads.gate += outer * gate * sigmoid * (1 - sigmoid);
  grads.up += grad_out * gate * sigmoid;
  return grads;
}

Expected RopeOf(Floats head, int64_t j, Floats cosine, Floats sine, RopeDirection direction) {
  const int64_t half = std::ssize(head) / 2;
  const bool second = j >= half;
  const double sign = (direction == RopeDirection::kForward) == second ? 1 : -1;
  const auto angle = static_cast<size_t>(j % half);
  Expected turned;
  turned += static_cast<double>(head[static_cast<size_t>(j)]) * cosine[angle];
  turned += sign * head[static_cast<size_t>(second ? j - half : j + half)] * sine[angle];
  return turned;
}

Expected AdamWOf(const AdamWStep& step, float parameter, float gradient, float first_moment, float second_moment) {
  const auto exponent = static_cast<double>(step.step);
  const double g = step.grad_scale * gradient;
  const double mean = step.beta1 * first_moment + (1 - step.beta1) * g;
  const double square = step.beta2 * second_moment + (1 - step.beta2) * g * g;
  Expected updated;
  updated += parameter * (1 - step.learning_rate * step.weight_decay);
  updated += -step.learning_rate / (1 - std::pow(step.beta1, exponent)) * mean /
             (std::sqrt(square) / std::sqrt(1 - std::pow(step.beta2, exponent)) + step.eps);
  return updated;
}

ReferenceAttention::ReferenceAttention(const AttentionShape& shape, Floats query, Floats key, Floats value,
                                       Floats grad_out)
    : shape_(shape),
      scale_(1 / std::sqrt(static_cast<double>(shape.head_dim))),
      query_(query),
      key_(key),
      value_(value),
      grad_out_(grad_out),
      lines_(static_cast<size_t>(shape.batch * shape.heads * shape.sequence)) {
  OnAllProcessors(std::ssize(lines_), /*grain=*/64, [&](int64_t i) {
    const int64_t head = i / shape_.sequence;  // of all samples
    const SoftmaxRow row = RowOf(head / shape_.heads, head % shape_.heads, i % shape_.sequence);
    lines_[static_cast<size_t>(i)] = {.statistic = row.statistic, .mean = row.mean};
  });
}

int64_t ReferenceAttention::StartOf(int64_t sample, int64_t position) const {
  return shape_.starts.size == 0 ? 0 : shape_.starts.data[sample * shape_.sequence + position];
}

const float* ReferenceAttention::At(Floats matrix, int64_t heads, int64_t sample, int64_t position,
                                    int64_t head) const {
  return matrix.data() + ((sample * shape_.sequence + position) * heads + head) * shape_.head_dim;
}

SoftmaxRow ReferenceAttention::RowOf(int64_t sample, int64_t head, int64_t position) const {
  const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
  std::vector<double> scores(static_cast<size_t>(position) + 1);
  std::vector<Expected> grads(scores.size());
  for (int64_t j = StartOf(sample, position); j <= position; ++j) {
    const auto at = static_cast<size_t>(j);
    scores[at] = DotOf(At(query_, shape_.heads, sample, position, head), 1,
                       At(key_, shape_.kv_heads, sample, j, kv_head), 1, shape_.head_dim)
                     .value;
    grads[at] = DotOf(At(grad_out_, shape_.heads, sample, position, head), 1,
                      At(value_, shape_.kv_heads, sample, j, kv_head), 1, shape_.head_dim);
  }
  return SoftmaxRowOf(scores, grads, StartOf(sample, position), position, scale_);
}

ReferenceAttention::Query ReferenceAttention::QueryOf(int64_t sample, int64_t head, int64_t position) const {
  const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
  const SoftmaxRow row = RowOf(sample, head, position);
  const auto width = static_cast<size_t>(shape_.head_dim);
  Query result = {.out = std::vector<Expected>(width), .grad_query = std::vector<Expected>(width)};
  for (int64_t j = StartOf(sample, position); j <= position; ++j) {
    const float* key = At(key_, shape_.kv_heads, sample, j, kv_head);
    const float* value = At(value_, shape_.kv_heads, sample, j, kv_head);
    for (size_t d = 0; d < width; ++d) {
      result.out[d].Add(row.probabilities[static_cast<size_t>(j)], value[d]);
      result.grad_query[d].Add(row.grad_scores[static_cast<size_t>(j)], key[d]);
    }
  }
  return result;
}

ReferenceAttention::Key ReferenceAttention::KeyOf(int64_t sample, int64_t kv_head, int64_t position) const {
  const int64_t group = shape_.heads / shape_.kv_heads;
  const auto width = static_cast<size_t>(shape_.head_dim);
  Key result = {.grad_key = std::vector<Expected>(width), .grad_value = std::vector<Expected>(width)};
  const float* key = At(key_, shape_.kv_heads, sample, position, kv_head);
  const float* value = At(value_, shape_.kv_heads, sample, position, kv_head);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int64_t i = position; i < shape_.sequence; ++i) {
      if (StartOf(sample, i) > position) {
        continue;
      }
      const Line& line = lines_[static_cast<size_t>((sample * shape_.heads + head) * shape_.sequence + i)];
      const float* query = At(query_, shape_.heads, sample, i, head);
      const float* grad_out = At(grad_out_, shape_.heads, sample, i, head);
      const double p = std::exp(scale_ * DotOf(query, 1, key, 1, shape_.head_dim).value - line.statistic);
      Expected grad_score;
      grad_score.Add(DotOf(grad_out, 1, value, 1, shape_.head_dim), scale_ * p);
      grad_score.Add(line.mean, -scale_ * p);
      for (size_t d = 0; d < width; ++d) {
        result.grad_key[d].Add(grad_score, query[d]);
        result.grad_value[d] += p * grad_out[d];
      }
    }
  }
  return result;
}

}  // namespace geopipe
