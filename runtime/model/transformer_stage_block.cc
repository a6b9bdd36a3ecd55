#include "runtime/model/transformer_stage_block.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

// y = x * W^T + bias (may be null). W is [out, in], as Hugging Face stores it.
absl::Status Linear(const StageContext& context, const ConstMatrixView& x, const Parameter& weight,
                    const Parameter* bias, const Tensor& y) {
  if (bias != nullptr) {
    GP_RETURN_IF_ERROR(context.backend->RepeatRow(bias->value, ViewOf(y), /*accumulate=*/false));
  }
  return context.backend->MatMul(Product::kNT, x, ViewOf(weight.value), ViewOf(y), /*accumulate=*/bias != nullptr);
}

// grad_x = grad_y * W, or grad_x += grad_y * W.
absl::Status LinearInputGrad(const StageContext& context, const Tensor& grad_y, const Parameter& weight,
                             const Tensor& grad_x, bool accumulate = false) {
  return context.backend->MatMul(Product::kNN, ViewOf(grad_y), ViewOf(weight.value), ViewOf(grad_x), accumulate);
}

// grad_W += grad_y^T * x, and grad_bias += the sum of grad_y's rows.
absl::Status LinearWeightGrad(const StageContext& context, const Tensor& grad_y, const ConstMatrixView& x,
                              const Parameter& weight, const Parameter* bias = nullptr) {
  if (bias != nullptr) {
    GP_RETURN_IF_ERROR(context.backend->SumRows(ViewOf(grad_y), bias->gradient));
  }
  return context.backend->MatMul(Product::kTN, ViewOf(grad_y), x, ViewOf(weight.gradient), /*accumulate=*/true);
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
  GP_RETURN_IF_ERROR(context.backend->RmsNormWeightGrad(ViewOf(x), rms, grad_y, weight.gradient));
  return context.backend->RmsNormInputGrad(ViewOf(x), weight.value, rms, grad_y, residual, ViewOf(x));
}

// Rows of one head each: [n * heads, head_dim].
MatrixView HeadsOf(const StageContext& context, const Tensor& rows) {
  const int64_t d = context.model.head_dim();
  const MatrixView view = ViewOf(rows);
  return {view.data, view.rows * view.columns / d, d, d, view.dtype};
}

// Normalises each head of `input`; returns the result, and the statistics in `rms`.
absl::StatusOr<Tensor> NormHeads(const StageContext& context, const Tensor& input, const Parameter& weight,
                                 MemoryCategory category, Tensor& rms) {
  const MatrixView heads = HeadsOf(context, input);
  GP_ASSIGN_OR_RETURN(rms, Tensor::Create(*context.allocator, category, DType::kFp32, {heads.rows}));
  GP_ASSIGN_OR_RETURN(Tensor y, context.NewRows(ViewOf(input).columns, category));
  GP_RETURN_IF_ERROR(
      context.backend->RmsNorm(heads, weight.value, context.model.rms_norm_eps, HeadsOf(context, y), rms));
  return y;
}

// Turns the gradient of NormHeads' result into that of its input, whose memory it takes; adds the gradient of the
// weight.
absl::Status NormHeadsBackward(const StageContext& context, Tensor input, const Parameter& weight, const Tensor& rms,
                               Tensor& gradient) {
  const MatrixView heads = HeadsOf(context, input);
  const MatrixView grad_y = HeadsOf(context, gradient);
  GP_RETURN_IF_ERROR(context.backend->RmsNormWeightGrad(heads, rms, grad_y, weight.gradient));
  GP_RETURN_IF_ERROR(context.backend->RmsNormInputGrad(heads, weight.value, rms, grad_y, ConstMatrixView(), heads));
  gradient = std::move(input);
  gradient.SetCategory(MemoryCategory::kActivations);
  return absl::OkStatus();
}

// --- What recomputation drops after F and makes again in I ---------------------------------------------------------

bool DropsAll(const StageContext& context) { return context.recompute == Recompute::kFull; }
bool DropsStatistics(const StageContext& context) {
  return DropsAll(context) ||
         (context.recompute == Recompute::kSelective && context.attention_kind == Attention::kDense);
}
// True when the operands that elementwise work alone can make again are dropped.
bool DropsCheap(const StageContext& context) {
  return DropsAll(context) ||
         (context.recompute == Recompute::kSelective && context.attention_kind == Attention::kBlocked);
}

MemoryCategory KeptUnless(bool dropped) { return dropped ? MemoryCategory::kWorkspace : MemoryCategory::kActivations; }

absl::Status AttentionForward(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  const MemoryCategory category = KeptUnless(DropsAll(context));
  const int64_t d = context.model.head_dim();
  const int64_t s = context.sequence;
  GP_ASSIGN_OR_RETURN(saved.input_rms, context.NewStatistics(category));
  GP_ASSIGN_OR_RETURN(saved.attention_input, context.NewRegion(context.hidden(), KeptUnless(DropsCheap(context))));
  GP_RETURN_IF_ERROR(Norm(context, saved.input, *parameters.attention_norm, saved.attention_input, saved.input_rms));
  GP_ASSIGN_OR_RETURN(Tensor query, context.NewRows(context.query_width(), category));
  GP_ASSIGN_OR_RETURN(Tensor key, context.NewRows(context.kv_width(), category));
  GP_ASSIGN_OR_RETURN(Tensor value, context.NewRows(context.kv_width(), category));
  {
    Tensor room;
    GP_ASSIGN_OR_RETURN(const ConstMatrixView x, context.Whole(saved.attention_input, room));
    GP_RETURN_IF_ERROR(Linear(context, x, *parameters.q, parameters.q_bias, query));
    GP_RETURN_IF_ERROR(Linear(context, x, *parameters.k, parameters.k_bias, key));
    GP_RETURN_IF_ERROR(Linear(context, x, *parameters.v, parameters.v_bias, value));
  }
  if (parameters.q_norm != nullptr) {
    saved.query_input = std::move(query);
    saved.key_input = std::move(key);
    GP_ASSIGN_OR_RETURN(query, NormHeads(context, saved.query_input, *parameters.q_norm, category, saved.query_rms));
    GP_ASSIGN_OR_RETURN(key, NormHeads(context, saved.key_input, *parameters.k_norm, category, saved.key_rms));
  }
  GP_RETURN_IF_ERROR(context.backend->Rope(ViewOf(query), context.rope(), s, d, RopeDirection::kForward));
  GP_RETURN_IF_ERROR(context.backend->Rope(ViewOf(key), context.rope(), s, d, RopeDirection::kForward));
  GP_ASSIGN_OR_RETURN(saved.context, context.NewRows(context.query_width(), category));
  GP_ASSIGN_OR_RETURN(
      saved.state, context.backend->Attention(context.attention(), std::move(query), std::move(key), std::move(value),
                                              ViewOf(saved.context), KeptUnless(DropsStatistics(context))));
  GP_ASSIGN_OR_RETURN(saved.mlp_residual,
                      context.AddProduct(saved.input, saved.context, *parameters.o, parameters.o_bias, category));
  return absl::OkStatus();
}

absl::Status MakeActivation(const StageContext& context, SavedBlock& saved) {
  GP_ASSIGN_OR_RETURN(saved.activation, context.NewRows(context.intermediate(), KeptUnless(DropsCheap(context))));
  return context.backend->SwiGlu(ViewOf(saved.gate), ViewOf(saved.up), ViewOf(saved.activation));
}

// Computes from `input` to the input of the down projection.
absl::Status ForwardToActivation(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  const MemoryCategory category = KeptUnless(DropsAll(context));
  GP_RETURN_IF_ERROR(AttentionForward(context, parameters, saved));
  GP_ASSIGN_OR_RETURN(saved.mlp_rms, context.NewStatistics(category));
  GP_ASSIGN_OR_RETURN(saved.mlp_input, context.NewRegion(context.hidden(), KeptUnless(DropsCheap(context))));
  GP_RETURN_IF_ERROR(Norm(context, saved.mlp_residual, *parameters.mlp_norm, saved.mlp_input, saved.mlp_rms));
  GP_ASSIGN_OR_RETURN(saved.gate, context.NewRows(context.intermediate(), category));
  GP_ASSIGN_OR_RETURN(saved.up, context.NewRows(context.intermediate(), category));
  {
    Tensor room;
    GP_ASSIGN_OR_RETURN(const ConstMatrixView x, context.Whole(saved.mlp_input, room));
    GP_RETURN_IF_ERROR(Linear(context, x, *parameters.gate, nullptr, saved.gate));
    GP_RETURN_IF_ERROR(Linear(context, x, *parameters.up, nullptr, saved.up));
  }
  return MakeActivation(context, saved);
}

void DropAfterForward(const StageContext& context, SavedBlock& saved) {
  if (DropsAll(context)) {
    Tensor input = std::move(saved.input);
    saved = SavedBlock();
    saved.input = std::move(input);
    return;
  }
  if (DropsStatistics(context)) {
    saved.state.statistics = Tensor();
  }
  if (DropsCheap(context)) {
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

// Makes the attention's statistics again, as late as possible: they are the largest tensors of all.
absl::Status MakeStatisticsAgain(const StageContext& context, SavedBlock& saved) {
  if (!saved.state.statistics.empty()) {
    return absl::OkStatus();
  }
  AttentionState& state = saved.state;
  GP_ASSIGN_OR_RETURN(
      state, context.backend->Attention(context.attention(), std::move(state.query), std::move(state.key),
                                        std::move(state.value), ViewOf(saved.context), MemoryCategory::kWorkspace));
  return absl::OkStatus();
}

// Accounts recomputed tensors that W needs as kept activations.
void KeepForWeights(SavedBlock& saved) {
  for (Tensor* tensor : {&saved.attention_input, &saved.context, &saved.mlp_residual, &saved.mlp_input, &saved.gate,
                         &saved.up, &saved.activation}) {
    tensor->SetCategory(MemoryCategory::kActivations);
  }
}

// --- The backward --------------------------------------------------------------------------------------------------

// Turns the gradient of the layer's output into that of mlp_residual, which it replaces.
absl::Status MlpBackwardInput(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  {
    GP_ASSIGN_OR_RETURN(const Tensor grad_activation,
                        context.NewRows(context.intermediate(), MemoryCategory::kWorkspace));
    GP_RETURN_IF_ERROR(LinearInputGrad(context, saved.grad_output, *parameters.down, grad_activation));
    GP_RETURN_IF_ERROR(context.backend->SwiGluGrad(ViewOf(saved.gate), ViewOf(saved.up), ViewOf(grad_activation),
                                                   ViewOf(saved.gate), ViewOf(saved.up)));
  }
  GP_ASSIGN_OR_RETURN(const Tensor grad_mlp_input, context.NewRows(context.hidden(), MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, saved.gate, *parameters.gate, grad_mlp_input));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, saved.up, *parameters.up, grad_mlp_input, /*accumulate=*/true));
  GP_RETURN_IF_ERROR(context.SumOverRanks(grad_mlp_input));
  GP_RETURN_IF_ERROR(NormBackward(context, saved.mlp_residual, *parameters.mlp_norm, saved.mlp_rms,
                                  context.RegionOf(grad_mlp_input), context.RegionOf(saved.grad_output)));
  saved.mlp_rms = Tensor();
  return absl::OkStatus();
}

// Adds up the gradients of a key-value head over the ranks that share it: each has those of its own query heads, and
// its weights need all.
absl::Status SumOverSharers(const StageContext& context, const AttentionGradients& gradients) {
  if (context.groups.key_value == nullptr) {
    return absl::OkStatus();
  }
  for (const Tensor* gradient : {&gradients.key, &gradients.value}) {
    GP_ASSIGN_OR_RETURN(const Completion done, context.groups.key_value->AllReduce(
                                                   ReduceOp::kSum, ElementsOf(*gradient), ElementsOf(*gradient)));
    GP_RETURN_IF_ERROR(context.groups.key_value->Join(done));
  }
  return absl::OkStatus();
}

// Turns the gradient of the attention's output (in mlp_residual) into that of the layer's input, which it replaces.
absl::Status AttentionBackwardInput(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  const int64_t d = context.model.head_dim();
  const int64_t s = context.sequence;
  GP_ASSIGN_OR_RETURN(saved.mlp_residual,
                      context.Gathered(std::move(saved.mlp_residual), MemoryCategory::kActivations));
  GP_RETURN_IF_ERROR(MakeStatisticsAgain(context, saved));
  {
    GP_ASSIGN_OR_RETURN(Tensor grad_context, context.NewRows(context.query_width(), MemoryCategory::kWorkspace));
    GP_RETURN_IF_ERROR(LinearInputGrad(context, saved.mlp_residual, *parameters.o, grad_context));
    GP_ASSIGN_OR_RETURN(saved.gradients,
                        context.backend->AttentionGrad(context.attention(), std::move(saved.state),
                                                       ViewOf(saved.context), std::move(grad_context)));
  }
  const auto& [query, key, value] = saved.gradients;
  for (Tensor* gradient : {&saved.gradients.query, &saved.gradients.key, &saved.gradients.value}) {
    gradient->SetCategory(MemoryCategory::kActivations);
  }
  GP_RETURN_IF_ERROR(context.backend->Rope(ViewOf(query), context.rope(), s, d, RopeDirection::kBackward));
  GP_RETURN_IF_ERROR(context.backend->Rope(ViewOf(key), context.rope(), s, d, RopeDirection::kBackward));
  if (parameters.q_norm != nullptr) {
    GP_RETURN_IF_ERROR(NormHeadsBackward(context, std::move(saved.query_input), *parameters.q_norm, saved.query_rms,
                                         saved.gradients.query));
    GP_RETURN_IF_ERROR(
        NormHeadsBackward(context, std::move(saved.key_input), *parameters.k_norm, saved.key_rms, saved.gradients.key));
    saved.query_rms = Tensor();
    saved.key_rms = Tensor();
  }
  GP_ASSIGN_OR_RETURN(const Tensor grad_attention_input, context.NewRows(context.hidden(), MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, query, *parameters.q, grad_attention_input));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, key, *parameters.k, grad_attention_input, /*accumulate=*/true));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, value, *parameters.v, grad_attention_input, /*accumulate=*/true));
  GP_RETURN_IF_ERROR(SumOverSharers(context, saved.gradients));
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

absl::Status BlockBackwardWeight(const StageContext& context, const BlockParameters& parameters, SavedBlock saved) {
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.grad_output, ViewOf(saved.activation), *parameters.down));
  {
    Tensor room;
    GP_ASSIGN_OR_RETURN(const ConstMatrixView x, context.Whole(saved.mlp_input, room));
    GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.gate, x, *parameters.gate));
    GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.up, x, *parameters.up));
  }
  GP_RETURN_IF_ERROR(
      LinearWeightGrad(context, saved.mlp_residual, ViewOf(saved.context), *parameters.o, parameters.o_bias));
  Tensor room;
  GP_ASSIGN_OR_RETURN(const ConstMatrixView x, context.Whole(saved.attention_input, room));
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.gradients.query, x, *parameters.q, parameters.q_bias));
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.gradients.key, x, *parameters.k, parameters.k_bias));
  return LinearWeightGrad(context, saved.gradients.value, x, *parameters.v, parameters.v_bias);
}

}  // namespace geopipe
