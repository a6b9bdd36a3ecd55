#include "runtime/model/transformer_stage_block.h"

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

// The weights, or gradients, of parameters that lie one after the other in their bucket, as one matrix.
MatrixView Joined(std::initializer_list<const Parameter*> parameters, Tensor Parameter::*part) {
  MatrixView joined = ViewOf((*parameters.begin())->*part);
  int64_t bytes = 0;
  joined.rows = 0;
  for (const Parameter* parameter : parameters) {
    const Tensor& tensor = parameter->*part;
    GP_CHECK(tensor.address() == joined.data + bytes, "{} does not lie behind what comes before", parameter->spec.name);
    joined.rows += ViewOf(tensor).rows;
    bytes += tensor.bytes();
  }
  return joined;
}

// The same of vectors; empty when there are none.
VectorView<float> JoinedVector(std::initializer_list<const Parameter*> parameters, Tensor Parameter::*part) {
  if (*parameters.begin() == nullptr) {
    return {};
  }
  VectorView<float> joined((*parameters.begin())->*part);
  joined.size = 0;
  for (const Parameter* parameter : parameters) {
    const VectorView<float> vector(parameter->*part);
    GP_CHECK(vector.data == joined.data + joined.size, "{} does not lie behind what comes before",
             parameter->spec.name);
    joined.size += vector.size;
  }
  return joined;
}

// A product's weight W [out, in], as Hugging Face stores it, and its bias [out] or nothing.
struct Linear {
  MatrixView weight;
  VectorView<float> bias;

  static Linear Of(std::initializer_list<const Parameter*> weights, Tensor Parameter::*part,
                   std::initializer_list<const Parameter*> biases = {nullptr}) {
    return {Joined(weights, part), JoinedVector(biases, part)};
  }
};

Linear QkvOf(const BlockParameters& parameters, Tensor Parameter::*part) {
  return Linear::Of({parameters.q, parameters.k, parameters.v}, part,
                    {parameters.q_bias, parameters.k_bias, parameters.v_bias});
}

Linear GateUpOf(const BlockParameters& parameters, Tensor Parameter::*part) {
  return Linear::Of({parameters.gate, parameters.up}, part);
}

// y = x * W^T + bias.
absl::Status LinearForward(const StageContext& context, const ConstMatrixView& x, const Linear& linear,
                           const Tensor& y) {
  return context.backend->MatMul(Product::kNT, x, linear.weight, {.row = linear.bias}, ViewOf(y));
}

// grad_x = grad_y * W.
absl::Status LinearInputGrad(const StageContext& context, const Tensor& grad_y, const MatrixView& weight,
                             const Tensor& grad_x) {
  return context.backend->MatMul(Product::kNN, ViewOf(grad_y), weight, Addend::None(), ViewOf(grad_x));
}

// grad_W += grad_y^T * x, or where it does not add = that, and grad_bias += the sum of grad_y's rows.
absl::Status LinearWeightGrad(const StageContext& context, const Tensor& grad_y, const ConstMatrixView& x,
                              const Linear& gradient, bool adds) {
  if (gradient.bias.size > 0) {
    GP_RETURN_IF_ERROR(context.backend->SumRows(ViewOf(grad_y), gradient.bias));
  }
  return context.backend->MatMul(Product::kTN, ViewOf(grad_y), x,
                                 adds ? Addend{.matrix = gradient.weight} : Addend::None(), gradient.weight);
}

// y = norm(x); the norm's statistics go to `rms`.
absl::Status Norm(const StageContext& context, const Tensor& x, const Parameter& weight, const Tensor& y,
                  const Tensor& rms) {
  return context.backend->RmsNorm(ViewOf(x), weight.value, context.model.rms_norm_eps, ViewOf(y), rms);
}

// x becomes residual + the gradient through the norm; adds the gradient of the norm's weight. All rows are the
// region's.
absl::Status NormBackward(const StageContext& context, const Tensor& x, const Parameter& weight, const Tensor& rms,
                          const ConstMatrixView& grad_y, const ConstMatrixView& residual) {
  return context.backend->RmsNormGrad(ViewOf(x), weight.value, rms, grad_y, residual, ViewOf(x), weight.gradient);
}

// Columns of queries, keys and values side by side.
struct Qkv {
  MatrixView query;
  MatrixView key;
  MatrixView value;
  MatrixView turned;  // queries and keys, which RoPE turns

  static Qkv In(const StageContext& context, const Tensor& qkv) {
    const MatrixView all = ViewOf(qkv);
    const int64_t q = context.query_width();
    const int64_t k = context.kv_width();
    return {ColumnsOf(all, 0, q), ColumnsOf(all, q, k), ColumnsOf(all, q + k, k), ColumnsOf(all, 0, q + k)};
  }
};

// Operands of attention: queries and keys are in `heads` where the family has norms of heads.
Qkv AttentionOperands(const StageContext& context, const SavedBlock& saved) {
  Qkv operands = Qkv::In(context, saved.qkv);
  if (!saved.heads.empty()) {
    operands.turned = ViewOf(saved.heads);
    operands.query = ColumnsOf(operands.turned, 0, context.query_width());
    operands.key = ColumnsOf(operands.turned, context.query_width(), context.kv_width());
  }
  return operands;
}

// Normalises each head of the products' queries and keys.
absl::Status NormHeads(const StageContext& context, const BlockParameters& parameters, MemoryCategory category,
                       SavedBlock& saved) {
  const Qkv before = Qkv::In(context, saved.qkv);
  const auto statistics = [&](int64_t width) {
    return Tensor::Create(*context.allocator, category, DType::kFp32,
                          {context.tokens() * (width / context.model.head_dim())});
  };
  GP_ASSIGN_OR_RETURN(saved.query_rms, statistics(context.query_width()));
  GP_ASSIGN_OR_RETURN(saved.key_rms, statistics(context.kv_width()));
  GP_ASSIGN_OR_RETURN(saved.heads, context.NewRows(context.query_width() + context.kv_width(), category));
  const Qkv after = AttentionOperands(context, saved);
  const double eps = context.model.rms_norm_eps;
  GP_RETURN_IF_ERROR(
      context.backend->RmsNorm(before.query, parameters.q_norm->value, eps, after.query, saved.query_rms));
  return context.backend->RmsNorm(before.key, parameters.k_norm->value, eps, after.key, saved.key_rms);
}

// Turns the gradients of NormHeads' results into those of its operands; adds those of the weights.
absl::Status NormHeadsBackward(const StageContext& context, const BlockParameters& parameters,
                               const SavedBlock& saved) {
  const Qkv before = Qkv::In(context, saved.qkv);
  const Qkv gradient = Qkv::In(context, saved.grad_qkv);
  GP_RETURN_IF_ERROR(context.backend->RmsNormGrad(before.query, parameters.q_norm->value, saved.query_rms,
                                                  gradient.query, ConstMatrixView(), gradient.query,
                                                  parameters.q_norm->gradient));
  return context.backend->RmsNormGrad(before.key, parameters.k_norm->value, saved.key_rms, gradient.key,
                                      ConstMatrixView(), gradient.key, parameters.k_norm->gradient);
}

// --- What recomputation drops after F and makes again in I ---------------------------------------------------------

bool DropsAll(const StageContext& context) { return context.recompute == Recompute::kFull; }
// True when the operands that elementwise work alone can make again are dropped.
bool DropsCheap(const StageContext& context) { return context.recompute != Recompute::kNone; }

MemoryCategory KeptUnless(bool dropped) { return dropped ? MemoryCategory::kWorkspace : MemoryCategory::kActivations; }

absl::Status AttentionForward(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  const MemoryCategory category = KeptUnless(DropsAll(context));
  GP_ASSIGN_OR_RETURN(saved.input_rms, context.NewStatistics(category));
  GP_ASSIGN_OR_RETURN(saved.attention_input, context.NewRegion(context.hidden(), KeptUnless(DropsCheap(context))));
  GP_RETURN_IF_ERROR(Norm(context, saved.input, *parameters.attention_norm, saved.attention_input, saved.input_rms));
  GP_ASSIGN_OR_RETURN(saved.qkv, context.NewRows(context.query_width() + 2 * context.kv_width(), category));
  {
    Tensor room;
    GP_ASSIGN_OR_RETURN(const ConstMatrixView x, context.Whole(saved.attention_input, room));
    GP_RETURN_IF_ERROR(LinearForward(context, x, QkvOf(parameters, &Parameter::value), saved.qkv));
  }
  if (parameters.q_norm != nullptr) {
    GP_RETURN_IF_ERROR(NormHeads(context, parameters, category, saved));
  }
  const Qkv operands = AttentionOperands(context, saved);
  GP_RETURN_IF_ERROR(context.backend->Rope(operands.turned, context.rope(), context.sequence, context.model.head_dim(),
                                           RopeDirection::kForward));
  const AttentionShape shape = context.attention(saved.starts);
  GP_ASSIGN_OR_RETURN(saved.statistics,
                      Tensor::Create(*context.allocator, category, DType::kFp32, {context.tokens() * shape.heads}));
  GP_ASSIGN_OR_RETURN(saved.context, context.NewRows(context.query_width(), category));
  GP_RETURN_IF_ERROR(context.backend->Attention(shape, operands.query, operands.key, operands.value,
                                                ViewOf(saved.context), saved.statistics));
  GP_ASSIGN_OR_RETURN(saved.mlp_residual,
                      context.AddProduct(saved.input, saved.context, *parameters.o, parameters.o_bias, category));
  return absl::OkStatus();
}

// Gate and up side by side.
struct GateUp {
  MatrixView gate;
  MatrixView up;

  static GateUp In(const StageContext& context, const Tensor& gate_up) {
    const MatrixView all = ViewOf(gate_up);
    return {ColumnsOf(all, 0, context.intermediate()), ColumnsOf(all, context.intermediate(), context.intermediate())};
  }
};

absl::Status MakeActivation(const StageContext& context, SavedBlock& saved) {
  GP_ASSIGN_OR_RETURN(saved.activation, context.NewRows(context.intermediate(), KeptUnless(DropsCheap(context))));
  const GateUp operands = GateUp::In(context, saved.gate_up);
  return context.backend->SwiGlu(operands.gate, operands.up, ViewOf(saved.activation));
}

// Computes from `input` to the input of the down projection.
absl::Status ForwardToActivation(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  const MemoryCategory category = KeptUnless(DropsAll(context));
  GP_RETURN_IF_ERROR(AttentionForward(context, parameters, saved));
  GP_ASSIGN_OR_RETURN(saved.mlp_rms, context.NewStatistics(category));
  GP_ASSIGN_OR_RETURN(saved.mlp_input, context.NewRegion(context.hidden(), KeptUnless(DropsCheap(context))));
  GP_RETURN_IF_ERROR(Norm(context, saved.mlp_residual, *parameters.mlp_norm, saved.mlp_input, saved.mlp_rms));
  GP_ASSIGN_OR_RETURN(saved.gate_up, context.NewRows(2 * context.intermediate(), category));
  {
    Tensor room;
    GP_ASSIGN_OR_RETURN(const ConstMatrixView x, context.Whole(saved.mlp_input, room));
    GP_RETURN_IF_ERROR(LinearForward(context, x, GateUpOf(parameters, &Parameter::value), saved.gate_up));
  }
  return MakeActivation(context, saved);
}

void DropAfterForward(const StageContext& context, SavedBlock& saved) {
  if (DropsAll(context)) {
    SavedBlock kept;
    kept.input = std::move(saved.input);
    kept.starts = saved.starts;
    saved = std::move(kept);
  } else if (DropsCheap(context)) {
    saved.attention_input = Tensor();
    saved.mlp_input = Tensor();
    saved.activation = Tensor();
  }
}

absl::Status MakeAgain(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  if (DropsAll(context)) {
    return ForwardToActivation(context, parameters, saved);
  }
  if (DropsCheap(context)) {
    GP_ASSIGN_OR_RETURN(saved.attention_input, context.NewRegion(context.hidden(), MemoryCategory::kWorkspace));
    GP_RETURN_IF_ERROR(Norm(context, saved.input, *parameters.attention_norm, saved.attention_input, saved.input_rms));
    GP_ASSIGN_OR_RETURN(saved.mlp_input, context.NewRegion(context.hidden(), MemoryCategory::kWorkspace));
    GP_RETURN_IF_ERROR(Norm(context, saved.mlp_residual, *parameters.mlp_norm, saved.mlp_input, saved.mlp_rms));
    return MakeActivation(context, saved);
  }
  return absl::OkStatus();
}

// Accounts recomputed tensors that W needs as kept activations.
void KeepForWeights(SavedBlock& saved) {
  for (Tensor* tensor : {&saved.attention_input, &saved.context, &saved.mlp_residual, &saved.mlp_input, &saved.gate_up,
                         &saved.activation, &saved.grad_qkv}) {
    tensor->SetCategory(MemoryCategory::kActivations);
  }
}

// --- The backward --------------------------------------------------------------------------------------------------

// Turns the gradient of the layer's output into that of mlp_residual, which it replaces.
absl::Status MlpBackwardInput(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  {
    GP_ASSIGN_OR_RETURN(const Tensor grad_activation,
                        context.NewRows(context.intermediate(), MemoryCategory::kWorkspace));
    GP_RETURN_IF_ERROR(LinearInputGrad(context, saved.grad_output, ViewOf(parameters.down->value), grad_activation));
    const GateUp operands = GateUp::In(context, saved.gate_up);
    GP_RETURN_IF_ERROR(
        context.backend->SwiGluGrad(operands.gate, operands.up, ViewOf(grad_activation), operands.gate, operands.up));
  }
  GP_ASSIGN_OR_RETURN(const Tensor grad_mlp_input, context.NewRows(context.hidden(), MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(
      LinearInputGrad(context, saved.gate_up, GateUpOf(parameters, &Parameter::value).weight, grad_mlp_input));
  GP_RETURN_IF_ERROR(context.SumOverRanks(grad_mlp_input));
  GP_RETURN_IF_ERROR(NormBackward(context, saved.mlp_residual, *parameters.mlp_norm, saved.mlp_rms,
                                  context.RegionOf(grad_mlp_input), context.RegionOf(saved.grad_output)));
  saved.mlp_rms = Tensor();
  return absl::OkStatus();
}

// Adds up the gradients of a key-value head over the ranks that share it: each has those of its own query heads, and
// its weights need all.
absl::Status SumOverSharers(const StageContext& context, const Tensor& grad_qkv) {
  if (context.groups.key_value == nullptr) {
    return absl::OkStatus();
  }
  const MatrixView shared = ColumnsOf(ViewOf(grad_qkv), context.query_width(), 2 * context.kv_width());
  GP_ASSIGN_OR_RETURN(const Tensor dense, context.NewRows(shared.columns, MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(context.backend->Convert(shared, ViewOf(dense)));
  GP_ASSIGN_OR_RETURN(const Completion done,
                      context.groups.key_value->AllReduce(ReduceOp::kSum, ElementsOf(dense), ElementsOf(dense)));
  GP_RETURN_IF_ERROR(context.groups.key_value->Join(done));
  return context.backend->Convert(ViewOf(dense), shared);
}

// Makes the gradient of the products' queries, keys and values, and frees their values.
absl::Status QkvBackwardInput(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  GP_ASSIGN_OR_RETURN(const Tensor grad_context, context.NewRows(context.query_width(), MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, saved.mlp_residual, ViewOf(parameters.o->value), grad_context));
  GP_ASSIGN_OR_RETURN(saved.grad_qkv,
                      context.NewRows(context.query_width() + 2 * context.kv_width(), MemoryCategory::kWorkspace));
  const Qkv operands = AttentionOperands(context, saved);
  const Qkv gradient = Qkv::In(context, saved.grad_qkv);
  GP_RETURN_IF_ERROR(context.backend->AttentionGrad(
      context.attention(saved.starts), operands.query, operands.key, operands.value, ViewOf(saved.context),
      saved.statistics, ViewOf(grad_context), gradient.query, gradient.key, gradient.value));
  GP_RETURN_IF_ERROR(context.backend->Rope(gradient.turned, context.rope(), context.sequence, context.model.head_dim(),
                                           RopeDirection::kBackward));
  if (parameters.q_norm != nullptr) {
    GP_RETURN_IF_ERROR(NormHeadsBackward(context, parameters, saved));
  }
  for (Tensor* tensor : {&saved.qkv, &saved.heads, &saved.query_rms, &saved.key_rms, &saved.statistics}) {
    *tensor = Tensor();
  }
  return absl::OkStatus();
}

// Turns the gradient of the attention's output (in mlp_residual) into that of the layer's input, which it replaces.
absl::Status AttentionBackwardInput(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  GP_ASSIGN_OR_RETURN(saved.mlp_residual,
                      context.Gathered(std::move(saved.mlp_residual), MemoryCategory::kActivations));
  GP_RETURN_IF_ERROR(QkvBackwardInput(context, parameters, saved));
  GP_ASSIGN_OR_RETURN(const Tensor grad_attention_input, context.NewRows(context.hidden(), MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(
      LinearInputGrad(context, saved.grad_qkv, QkvOf(parameters, &Parameter::value).weight, grad_attention_input));
  GP_RETURN_IF_ERROR(SumOverSharers(context, saved.grad_qkv));
  GP_RETURN_IF_ERROR(context.SumOverRanks(grad_attention_input));
  GP_RETURN_IF_ERROR(NormBackward(context, saved.input, *parameters.attention_norm, saved.input_rms,
                                  context.RegionOf(grad_attention_input), context.RegionOf(saved.mlp_residual)));
  saved.input_rms = Tensor();
  return absl::OkStatus();
}

}  // namespace

BlockParameters BlockParameters::Of(ParameterSet& parameters, int64_t layer) {
  const auto find_any = [&parameters, layer](std::string_view suffix) {
    return parameters.Find(fmt::format("model.layers.{}.{}", layer, suffix));
  };
  const auto find = [&](std::string_view suffix) {
    Parameter* parameter = find_any(fmt::format("{}.weight", suffix));
    GP_CHECK(parameter != nullptr, "no parameter {} of layer {}", suffix, layer);
    return parameter;
  };
  return {.bucket = parameters.BucketOf(BucketKind::kLayer, layer),
          .attention_norm = find("input_layernorm"),
          .q = find("self_attn.q_proj"),
          .k = find("self_attn.k_proj"),
          .v = find("self_attn.v_proj"),
          .o = find("self_attn.o_proj"),
          .mlp_norm = find("post_attention_layernorm"),
          .gate = find("mlp.gate_proj"),
          .up = find("mlp.up_proj"),
          .down = find("mlp.down_proj"),
          .q_bias = find_any("self_attn.q_proj.bias"),
          .k_bias = find_any("self_attn.k_proj.bias"),
          .v_bias = find_any("self_attn.v_proj.bias"),
          .o_bias = find_any("self_attn.o_proj.bias"),
          .q_norm = find_any("self_attn.q_norm.weight"),
          .k_norm = find_any("self_attn.k_norm.weight")};
}

absl::StatusOr<Tensor> BlockForward(const StageContext& context, const BlockParameters& parameters, Tensor input,
                                    MemoryCategory output_category, SavedBlock& saved) {
  saved.input = std::move(input);
  GP_RETURN_IF_ERROR(ForwardToActivation(context, parameters, saved));
  GP_ASSIGN_OR_RETURN(Tensor output, context.AddProduct(saved.mlp_residual, saved.activation, *parameters.down, nullptr,
                                                        output_category));
  DropAfterForward(context, saved);
  return output;
}

absl::StatusOr<Tensor> BlockBackwardInput(const StageContext& context, const BlockParameters& parameters,
                                          Tensor grad_output, SavedBlock& saved) {
  GP_RETURN_IF_ERROR(MakeAgain(context, parameters, saved));
  GP_ASSIGN_OR_RETURN(saved.grad_output, context.Gathered(std::move(grad_output), MemoryCategory::kActivations));
  GP_RETURN_IF_ERROR(MlpBackwardInput(context, parameters, saved));
  GP_RETURN_IF_ERROR(AttentionBackwardInput(context, parameters, saved));
  KeepForWeights(saved);
  return std::move(saved.input);
}

absl::Status BlockBackwardWeight(const StageContext& context, const BlockParameters& parameters, SavedBlock saved,
                                 bool adds) {
  constexpr auto kGradient = &Parameter::gradient;
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.grad_output, ViewOf(saved.activation),
                                      Linear::Of({parameters.down}, kGradient), adds));
  {
    Tensor room;
    GP_ASSIGN_OR_RETURN(const ConstMatrixView x, context.Whole(saved.mlp_input, room));
    GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.gate_up, x, GateUpOf(parameters, kGradient), adds));
  }
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.mlp_residual, ViewOf(saved.context),
                                      Linear::Of({parameters.o}, kGradient, {parameters.o_bias}), adds));
  Tensor room;
  GP_ASSIGN_OR_RETURN(const ConstMatrixView x, context.Whole(saved.attention_input, room));
  return LinearWeightGrad(context, saved.grad_qkv, x, QkvOf(parameters, kGradient), adds);
}

}  // namespace geopipe
