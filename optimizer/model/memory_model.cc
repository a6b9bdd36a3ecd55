#include "optimizer/model/memory_model.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "optimizer/base/check.h"
#include "optimizer/model/gpu_workspace.h"
#include "optimizer/model/parameter_buckets.h"
#include "optimizer/model/transformer.h"

namespace geopipe {
namespace {

constexpr int64_t kTokenIdBytes = 4;
constexpr int64_t kKeptStates = 2;
constexpr int64_t kStateBytes = 12;  // weight and both moments
// Query rows that the engine's attention takes at once (runtime/backend/cpu_backend_attention.cc).
constexpr int64_t kAttentionRows = 64;

constexpr std::array kLinearFields{
    &StageMemory::weight_bytes,    &StageMemory::gradient_bytes,   &StageMemory::optimizer_bytes,
    &StageMemory::host_bytes,      &StageMemory::recovery_bytes,   &StageMemory::workspace_bytes,
    &StageMemory::transport_bytes, &StageMemory::activation_bytes, &StageMemory::weight_grad_bytes};

int64_t ProbabilityBytes(const ModelSpec& model, const ExecutionConfig& config) {
  return ElementBytes(config.precision) * config.tokens() * config.sequence_length * model.num_attention_heads /
         config.tensor;
}

int64_t RowSumBytes(const ModelSpec& model, const ExecutionConfig& config) {
  return kFp32Bytes * config.tokens() * model.num_attention_heads / config.tensor;
}

// True when the backward of a layer makes the tensor again.
bool IsRecomputed(const KeptTensor& tensor, const ExecutionConfig& config) {
  switch (config.recompute) {
    case Recompute::kNone:
      return false;
    case Recompute::kSelective:
      return config.attention == Attention::kDense
                 ? tensor.name == "probabilities"
                 : tensor.name == "attention_input" || tensor.name == "mlp_input" || tensor.name == "activation";
    case Recompute::kFull:
      break;
  }
  return tensor.name != "input";
}

int64_t AttentionSumBytes(const ModelSpec& model, const ExecutionConfig& config) {
  const int64_t s = config.sequence_length;
  const int64_t of_a_head = 2 * s * model.head_dim();
  return config.attention == Attention::kBlocked
             ? kFp32Bytes * std::max(config.tokens() * model.query_width() / config.tensor, of_a_head) +
                   RowSumBytes(model, config)
             : kFp32Bytes * (of_a_head + std::min(kAttentionRows, s) * s);
}

// Columns of queries, keys and values, side by side.
int64_t QkvWidth(const ModelSpec& model, const ExecutionConfig& config) {
  return model.query_width() / config.tensor + 2 * model.key_value_width_per_rank(config.tensor);
}

// Results of the norms of heads, which I frees: queries and keys after them, and the statistics of each head.
std::vector<KeptTensor> HeadNormResults(const ModelSpec& model, const ExecutionConfig& config) {
  if (!model.has_head_norms()) {
    return {};
  }
  const int64_t n = config.tokens();
  const int64_t query = n * model.query_width() / config.tensor;
  const int64_t key = n * model.key_value_width_per_rank(config.tensor);
  return {{"heads", ElementBytes(config.precision) * (query + key), false},
          {"query_rms", kFp32Bytes * query / model.head_dim(), false},
          {"key_rms", kFp32Bytes * key / model.head_dim(), false}};
}

std::vector<KeptTensor> AllBlockActivations(const ModelSpec& model, const ExecutionConfig& config) {
  const int64_t e = ElementBytes(config.precision);
  const int64_t n = config.tokens();
  const int64_t t = config.tensor;
  const int64_t r = config.norm_region_split();
  const int64_t hidden = e * n * model.hidden_size;
  const int64_t intermediate = e * n * model.intermediate_size / t;
  std::vector<KeptTensor> tensors{
      {"input", hidden / r, false},
      {"input_rms", kFp32Bytes * n / r, false},
      {"attention_input", hidden / r, true},
      {"qkv", e * n * QkvWidth(model, config), false},
      config.attention == Attention::kBlocked ? KeptTensor{"row_sums", RowSumBytes(model, config), false}
                                              : KeptTensor{"probabilities", ProbabilityBytes(model, config), false},
      {"context", e * n * model.query_width() / t, true},
      {"mlp_residual", hidden / r, false},
      {"mlp_rms", kFp32Bytes * n / r, false},
      {"mlp_input", hidden / r, true},
      {"gate_up", 2 * intermediate, false},
      {"activation", intermediate, true},
  };
  std::ranges::move(HeadNormResults(model, config), std::back_inserter(tensors));
  return tensors;
}

// Workspace that the stage keeps whatever runs.
int64_t StandingWorkspaceBytes(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  const int64_t rope = config.sequence_length * model.head_dim();  // cosines and sines of half the head each
  // Ids that a TokenSource reads and this end does not need. The device never has them.
  const int64_t ends = (range.has_embedding ? 1 : 0) + (range.has_head ? 1 : 0);
  const int64_t unused = (ends > 0 || config.resets_documents) && !config.own_memory ? 2 - ends : 0;
  return kFp32Bytes * rope + unused * kTokenIdBytes * config.tokens();
}

// Most bytes that F, B, I and W of one micro-batch need besides those counted as kept of it before or after.
struct PassNeeds {
  int64_t bytes = 0;
  // The same as the engine accounts it: workspace, and activations in B and in I, which leaves the tensors that it made
  // again to W. They are not always at their peaks together.
  int64_t workspace_bytes = 0;
  int64_t backward_bytes = 0;
  int64_t input_grad_bytes = 0;
};

// Workspace of the loss: fp32 logits of some rows where their gradient is of another type, and what tensor ranks
// exchange.
int64_t LossBytes(const ModelSpec& model, const ExecutionConfig& config) {
  const bool in_place = config.precision == Precision::kFp32;
  const int64_t rows = in_place ? config.tokens() : std::min(kLossRows, config.tokens());
  const int64_t logits = in_place ? 0 : rows * (model.vocab_rows() / config.tensor);
  return kFp32Bytes * (logits + (config.tensor > 1 ? 3 * rows : 0));
}

PassNeeds NeedsOfPasses(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  const int64_t row = ElementBytes(config.precision) * config.tokens();
  const int64_t hidden = row * model.hidden_size;
  const bool divides_rows = config.norm_region_split() > 1;
  const int64_t loss = range.has_head ? LossBytes(model, config) + (divides_rows ? hidden : 0) : 0;
  const int64_t targets = range.has_head ? kTokenIdBytes * config.tokens() : 0;  // until F is over
  if (range.count() == 0) {
    const int64_t bytes = range.has_head ? std::max(hidden, targets + loss) : 0;
    return {.bytes = bytes, .workspace_bytes = bytes};
  }
  const bool cuts_messages = config.tensor > 1 && !divides_rows && !range.has_head;
  const std::vector<KeptTensor> all = AllBlockActivations(model, config);
  const int64_t kept = TotalBytes(BlockActivations(model, config));
  const int64_t again = TotalBytes(all) - kept;  // dropped after F and made again in I
  const int64_t statistics =
      config.attention == Attention::kBlocked ? RowSumBytes(model, config) : ProbabilityBytes(model, config);
  // The probabilities alone are made late, when attention's backward begins.
  const bool late = config.recompute == Recompute::kSelective && config.attention == Attention::kDense;
  // Bytes that a layer keeps more for W, once its I is done, than it did for I.
  const int64_t grown =
      std::max<int64_t>(0, KeptForWeightGradBytes(all) + BlockOutputGradientBytes(model, config) - kept);
  // Gradients of the outputs of down and o, gathered from regions.
  const int64_t gathered = hidden - hidden / config.norm_region_split();
  // Rows of a message that is cut from all rows, or gathered to them.
  const int64_t whole_message = cuts_messages ? hidden - hidden / config.tensor : 0;
  const int64_t forward = targets + std::max(again + (divides_rows || cuts_messages ? hidden : 0), loss);
  const int64_t of_mlp = (late ? 0 : again) + std::max(row * model.intermediate_size / config.tensor, hidden);
  // Attention's gradients are new memory; once they are made, its operands are freed.
  const int64_t gradients = row * QkvWidth(model, config);
  const int64_t freed = gradients + statistics + TotalBytes(HeadNormResults(model, config));
  const bool shares_heads = config.tensor > model.num_key_value_heads;
  const int64_t shared = shares_heads ? 2 * row * model.key_value_width_per_rank(config.tensor) : 0;
  const int64_t of_scores = again + gradients + row * model.query_width() / config.tensor;
  const int64_t of_qkv = again + gradients + hidden + shared;
  const int64_t of_attention = std::max(of_scores, of_qkv - freed);
  // Workspace is freed only of what was made again.
  const int64_t attention_workspace = std::max(of_scores, of_qkv - (config.recompute == Recompute::kFull ? freed
                                                                    : late                               ? statistics
                                                                                                         : 0));
  // W gathers one input at a time; the gradient of the embedding's output, gathered too, waits for its own.
  const int64_t weights = divides_rows ? hidden : 0;
  const int64_t of_embedding = range.has_embedding ? gathered : 0;
  // Bytes of the head that B has freed before the layers begin: all but the gradient that took its input's place.
  const int64_t of_head =
      range.has_head ? TotalBytes(HeadActivations(model, config)) - hidden / config.norm_region_split() : 0;
  // The gathered output gradient is new memory, while the layer's input has become the gradient that is sent on.
  const int64_t gone_on = divides_rows && !range.has_head ? hidden / config.tensor : 0;
  const int64_t of_layer = std::max(grown + gone_on, 2 * gathered);
  return {.bytes = std::max({forward, whole_message + of_mlp + gathered, whole_message + of_attention + 2 * gathered,
                             grown + of_embedding + weights}),
          .workspace_bytes =
              std::max({forward, (cuts_messages ? hidden : 0) + std::max(of_mlp, attention_workspace), weights}),
          .backward_bytes = std::max<int64_t>(0, of_layer - of_head),
          .input_grad_bytes = (range.count() - 1) * grown + of_layer};
}

// Computes a + count * b in every field.
StageMemory Sum(StageMemory a, int64_t count, const StageMemory& b) {
  for (int64_t StageMemory::*const bytes : kLinearFields) {
    a.*bytes += count * b.*bytes;
  }
  a.shared_workspace_bytes += count * b.shared_workspace_bytes;
  return a;
}

// Elements of each bucket of a stage on one tensor rank; all layers' are alike.
struct BucketElements {
  int64_t embedding = 0;
  int64_t layer = 0;
  int64_t head = 0;
  int64_t vectors = 0;
};

BucketElements ElementsOf(const ModelSpec& model, const LayerRange& range, int64_t tensor) {
  const auto count = [&](const LayerRange& part) { return ParameterCountPerRank(model, part, tensor); };
  const int64_t h = model.hidden_size;
  const int64_t vectors = LayerVectorElements(model, tensor);
  BucketElements elements;
  elements.embedding = range.has_embedding ? count({.has_embedding = true}) : 0;
  elements.layer = range.count() > 0 ? count({.first = 0, .last = 0}) - vectors : 0;
  if (range.has_head) {
    elements.head = count({.has_embedding = range.has_embedding, .has_head = true}) - elements.embedding - h;
  }
  elements.vectors = range.count() * vectors + (range.has_head ? h : 0);
  return elements;
}

// Weights, gradients and optimizer states of one bucket, and the states kept of them. `accumulators`: of gradients.
StageMemory BucketStates(BucketKind kind, int64_t elements, const ExecutionConfig& config, int64_t accumulators = 1) {
  const BucketShare share = ShareOfBucket(kind, elements, config.data, config.zero_stage);
  // Vectors compute with the weights that are updated, so they have no master.
  const bool has_master = config.precision == Precision::kBf16 && kind != BucketKind::kVectors;
  StageMemory memory;
  memory.weight_bytes = (has_master ? ElementBytes(config.precision) : kFp32Bytes) * share.weights;
  memory.gradient_bytes = accumulators * kGradientBytes * share.gradients;
  (config.offloads_optimizer && CanBeOffloaded(kind) ? memory.host_bytes : memory.optimizer_bytes) =
      StateVectors(kind, config.precision) * kFp32Bytes * share.states;
  (config.own_memory ? memory.host_bytes : memory.recovery_bytes) +=
      config.keeps_states ? kKeptStates * kStateBytes * share.states : 0;
  return memory;
}

StageMemory ModelStates(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  const BucketElements elements = ElementsOf(model, range, config.tensor);
  const bool tied_twice = model.tie_word_embeddings && range.has_embedding && range.has_head;
  StageMemory memory = BucketStates(BucketKind::kEmbedding, elements.embedding, config, tied_twice ? 2 : 1);
  memory += BucketStates(BucketKind::kHead, elements.head, config);
  memory += BucketStates(BucketKind::kVectors, elements.vectors, config);
  return Sum(memory, range.count(), BucketStates(BucketKind::kLayer, elements.layer, config));
}

// Buckets that ZeRO makes whole for a while: gradients (2, 3) and weights (3).
int64_t WholeBucketBytes(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  if (config.zero_stage < 2 || config.data == 1) {
    return 0;
  }
  const BucketElements elements = ElementsOf(model, range, config.tensor);
  const int64_t largest = std::max({elements.embedding, elements.layer, elements.head});
  const int64_t padded = ShareOfBucket(BucketKind::kLayer, largest, config.data, config.zero_stage).padded;
  return WholeBucketsAtOnce(config.zero_stage) * kGradientBytes * padded;
}

// The room that the run of offloaded states takes while it is updated.
int64_t OffloadedRunBytes(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  if (!config.offloads_optimizer) {
    return 0;
  }
  const BucketElements elements = ElementsOf(model, range, config.tensor);
  const int64_t largest = std::max({elements.embedding, elements.layer, elements.head});
  const int64_t states = ShareOfBucket(BucketKind::kLayer, largest, config.data, config.zero_stage).states;
  return StateVectors(BucketKind::kLayer, config.precision) * kFp32Bytes * std::min(states, kOffloadedRunElements);
}

// The backend's own workspace. Dense attention is no backend's.
int64_t BackendBytes(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  if (config.own_memory && config.attention == Attention::kBlocked) {
    return GpuWorkspaceBytes(model, range, config);
  }
  return range.count() > 0 ? AttentionSumBytes(model, config) : 0;
}

// Workspace that stages take turns in besides that of their passes.
int64_t OtherSharedBytes(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  return BackendBytes(model, range, config) + WholeBucketBytes(model, range, config) +
         OffloadedRunBytes(model, range, config);
}

}  // namespace

std::vector<KeptTensor> BlockActivations(const ModelSpec& model, const ExecutionConfig& config) {
  std::vector<KeptTensor> tensors = AllBlockActivations(model, config);
  std::erase_if(tensors, [&](const KeptTensor& tensor) { return IsRecomputed(tensor, config); });
  return tensors;
}

std::vector<KeptTensor> EmbeddingActivations(const ModelSpec& /*model*/, const ExecutionConfig& config) {
  return {{"token_ids", kTokenIdBytes * config.tokens(), true}};
}

std::vector<KeptTensor> HeadActivations(const ModelSpec& model, const ExecutionConfig& config) {
  const int64_t n = config.tokens();
  const int64_t r = config.norm_region_split();
  const int64_t hidden = ElementBytes(config.precision) * n * model.hidden_size / r;
  return {
      {"head_residual", hidden, false},
      {"head_rms", kFp32Bytes * n / r, false},
      {"head_input", hidden, true},
      {"grad_logits", ElementBytes(config.precision) * n * model.vocab_rows() / config.tensor, true},
  };
}

int64_t BlockOutputGradientBytes(const ModelSpec& model, const ExecutionConfig& config) {
  const int64_t split = QkvWidth(model, config) + 2 * (model.intermediate_size / config.tensor);
  return ElementBytes(config.precision) * config.tokens() * (split + 2 * model.hidden_size);
}

int64_t TotalBytes(const std::vector<KeptTensor>& tensors) {
  int64_t bytes = 0;
  for (const KeptTensor& tensor : tensors) {
    bytes += tensor.bytes;
  }
  return bytes;
}

int64_t KeptForWeightGradBytes(const std::vector<KeptTensor>& tensors) {
  int64_t bytes = 0;
  for (const KeptTensor& tensor : tensors) {
    bytes += tensor.kept_for_weight_grad ? tensor.bytes : 0;
  }
  return bytes;
}

StageMemory& StageMemory::operator+=(const StageMemory& other) {
  workspace_bytes -= std::min(shared_workspace_bytes, other.shared_workspace_bytes);
  shared_workspace_bytes = std::max(shared_workspace_bytes, other.shared_workspace_bytes);
  for (int64_t StageMemory::*const bytes : kLinearFields) {
    this->*bytes += other.*bytes;
  }
  return *this;
}

StageMemory MemoryOfStage(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  StageMemory memory = ModelStates(model, range, config);
  const std::vector<KeptTensor> block = BlockActivations(model, config);
  memory.activation_bytes =
      range.count() * TotalBytes(block) + (config.resets_documents ? kTokenIdBytes * config.tokens() : 0);
  // Tensors that were recomputed for I stay for W.
  memory.weight_grad_bytes = range.count() * (KeptForWeightGradBytes(AllBlockActivations(model, config)) +
                                              BlockOutputGradientBytes(model, config));
  if (range.has_embedding) {
    const std::vector<KeptTensor> embedding = EmbeddingActivations(model, config);
    memory.activation_bytes += TotalBytes(embedding);
    // The gradient of the embedding's output waits for W as well.
    memory.weight_grad_bytes += KeptForWeightGradBytes(embedding) + BoundaryMessageBytes(model, config);
  }
  if (range.has_head) {
    const std::vector<KeptTensor> head = HeadActivations(model, config);
    memory.activation_bytes += TotalBytes(head);
    memory.weight_grad_bytes += KeptForWeightGradBytes(head);
  }
  memory.shared_workspace_bytes = OtherSharedBytes(model, range, config) + NeedsOfPasses(model, range, config).bytes;
  memory.workspace_bytes = StandingWorkspaceBytes(model, range, config) + memory.shared_workspace_bytes;
  return memory;
}

PassMemory MemoryOfPasses(const ModelSpec& model, const LayerRange& range, const ExecutionConfig& config) {
  const PassNeeds needs = NeedsOfPasses(model, range, config);
  return {.workspace_bytes = OtherSharedBytes(model, range, config) + needs.workspace_bytes,
          .backward_bytes = needs.backward_bytes,
          .input_grad_bytes = needs.input_grad_bytes};
}

StageMemoryModel::StageMemoryModel(const ModelSpec& model, const ExecutionConfig& config) {
  const auto count = [&](const LayerRange& range) {
    return Part{.memory = MemoryOfStage(model, range, config),
                .parameters = ParameterCountPerRank(model, range, config.tensor)};
  };
  const auto less = [](Part part, const Part& other) {
    return Part{.memory = Sum(part.memory, -1, other.memory), .parameters = part.parameters - other.parameters};
  };
  layer_ = less(count({.first = 0, .last = 1}), count({.first = 0, .last = 0}));
  for (const bool embedding : {false, true}) {
    for (const bool head : {false, true}) {
      ends_[embedding ? 1 : 0][head ? 1 : 0] =
          less(count({.first = 0, .last = 0, .has_embedding = embedding, .has_head = head}), layer_);
    }
  }
}

StageMemory StageMemoryModel::Of(const LayerRange& range) const {
  GP_CHECK(range.count() > 0);
  const Part& ends = ends_[range.has_embedding ? 1 : 0][range.has_head ? 1 : 0];
  return Sum(ends.memory, range.count(), layer_.memory);
}

int64_t StageMemoryModel::Parameters(const LayerRange& range) const {
  return ends_[range.has_embedding ? 1 : 0][range.has_head ? 1 : 0].parameters + range.count() * layer_.parameters;
}

}  // namespace geopipe
