#include "runtime/model/transformer_stage_block.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

// y = x * W^T, or y += x * W^T. W is [out, in], as Hugging Face stores it.
absl::Status Linear(const StageContext& context, const Tensor& x, const Parameter& weight, const Tensor& y,
                    bool accumulate = false) {
  return context.backend->MatMul(Product::kNT, ViewOf(x), ViewOf(weight.value), ViewOf(y), accumulate);
}

// grad_x = grad_y * W, or grad_x += grad_y * W.
absl::Status LinearInputGrad(const StageContext& context, const Tensor& grad_y, const Parameter& weight,
                             const Tensor& grad_x, bool accumulate = false) {
  return context.backend->MatMul(Product::kNN, ViewOf(grad_y), ViewOf(weight.value), ViewOf(grad_x), accumulate);
}

// grad_W += grad_y^T * x.
absl::Status LinearWeightGrad(const StageContext& context, const Tensor& grad_y, const Tensor& x, Parameter& weight) {
  return context.backend->MatMul(Product::kTN, ViewOf(grad_y), ViewOf(x), ViewOf(weight.gradient),
                                 /*accumulate=*/true);
}

// y = norm(x); the norm's statistics go to `rms`.
absl::Status Norm(const StageContext& context, const Tensor& x, const Parameter& weight, const Tensor& y,
                  const Tensor& rms) {
  return context.backend->RmsNorm(ViewOf(x), weight.value, context.model.rms_norm_eps, ViewOf(y), rms);
}

// x becomes residual + the gradient through the norm; adds the gradient of the norm's weight.
absl::Status NormBackward(const StageContext& context, const Tensor& x, Parameter& weight, const Tensor& rms,
                          const Tensor& grad_y, const Tensor& residual) {
  GP_RETURN_IF_ERROR(context.backend->RmsNormWeightGrad(ViewOf(x), rms, ViewOf(grad_y), weight.gradient));
  return context.backend->RmsNormInputGrad(ViewOf(x), weight.value, rms, ViewOf(grad_y), ViewOf(residual), ViewOf(x));
}

absl::Status AttentionForward(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  const int64_t h = context.model.hidden_size;
  const int64_t k = context.kv_width();
  const int64_t d = context.model.head_dim();
  const int64_t s = context.sequence;
  GP_ASSIGN_OR_RETURN(saved.input_rms, context.NewRows(1, MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(saved.attention_input, context.NewRows(h, MemoryCategory::kActivations));
  GP_RETURN_IF_ERROR(Norm(context, saved.input, *parameters.attention_norm, saved.attention_input, saved.input_rms));
  GP_ASSIGN_OR_RETURN(Tensor query, context.NewRows(h, MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(Tensor key, context.NewRows(k, MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(Tensor value, context.NewRows(k, MemoryCategory::kActivations));
  GP_RETURN_IF_ERROR(Linear(context, saved.attention_input, *parameters.q, query));
  GP_RETURN_IF_ERROR(Linear(context, saved.attention_input, *parameters.k, key));
  GP_RETURN_IF_ERROR(Linear(context, saved.attention_input, *parameters.v, value));
  GP_RETURN_IF_ERROR(context.backend->Rope(ViewOf(query), context.rope(), s, d, RopeDirection::kForward));
  GP_RETURN_IF_ERROR(context.backend->Rope(ViewOf(key), context.rope(), s, d, RopeDirection::kForward));
  GP_ASSIGN_OR_RETURN(saved.context, context.NewRows(h, MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(saved.state, context.backend->Attention(context.attention(), std::move(query), std::move(key),
                                                              std::move(value), ViewOf(saved.context)));
  GP_ASSIGN_OR_RETURN(saved.mlp_residual, context.NewRows(h, MemoryCategory::kActivations));
  GP_RETURN_IF_ERROR(Copy(saved.input, saved.mlp_residual));
  return Linear(context, saved.context, *parameters.o, saved.mlp_residual, /*accumulate=*/true);
}

// From the gradient of the layer's output to that of mlp_residual, which takes its place.
absl::Status MlpBackwardInput(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  {
    GP_ASSIGN_OR_RETURN(const Tensor grad_activation,
                        context.NewRows(context.model.intermediate_size, MemoryCategory::kWorkspace));
    GP_RETURN_IF_ERROR(LinearInputGrad(context, saved.grad_output, *parameters.down, grad_activation));
    GP_RETURN_IF_ERROR(context.backend->SwiGluGrad(ViewOf(saved.gate), ViewOf(saved.up), ViewOf(grad_activation),
                                                   ViewOf(saved.gate), ViewOf(saved.up)));
  }
  GP_ASSIGN_OR_RETURN(const Tensor grad_mlp_input,
                      context.NewRows(context.model.hidden_size, MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, saved.gate, *parameters.gate, grad_mlp_input));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, saved.up, *parameters.up, grad_mlp_input, /*accumulate=*/true));
  GP_RETURN_IF_ERROR(NormBackward(context, saved.mlp_residual, *parameters.mlp_norm, saved.mlp_rms, grad_mlp_input,
                                  saved.grad_output));
  saved.mlp_rms = Tensor();
  return absl::OkStatus();
}

// From the gradient of the attention's output (in mlp_residual) to that of the layer's input, which takes its place.
absl::Status AttentionBackwardInput(const StageContext& context, const BlockParameters& parameters, SavedBlock& saved) {
  const int64_t d = context.model.head_dim();
  const int64_t s = context.sequence;
  {
    GP_ASSIGN_OR_RETURN(Tensor grad_context, context.NewRows(context.model.hidden_size, MemoryCategory::kWorkspace));
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
  GP_ASSIGN_OR_RETURN(const Tensor grad_attention_input,
                      context.NewRows(context.model.hidden_size, MemoryCategory::kWorkspace));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, query, *parameters.q, grad_attention_input));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, key, *parameters.k, grad_attention_input, /*accumulate=*/true));
  GP_RETURN_IF_ERROR(LinearInputGrad(context, value, *parameters.v, grad_attention_input, /*accumulate=*/true));
  GP_RETURN_IF_ERROR(NormBackward(context, saved.input, *parameters.attention_norm, saved.input_rms,
                                  grad_attention_input, saved.mlp_residual));
  saved.input_rms = Tensor();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Tensor> StageContext::NewRows(int64_t columns, MemoryCategory category) const {
  return Tensor::Create(*allocator, category, DType::kFp32, {tokens(), columns});
}

BlockParameters BlockParameters::Of(ParameterSet& parameters, int64_t layer) {
  const auto find = [&parameters, layer](std::string_view suffix) {
    const std::string name = fmt::format("model.layers.{}.{}.weight", layer, suffix);
    Parameter* parameter = parameters.Find(name);
    GP_CHECK(parameter != nullptr, "no parameter {}", name);
    return parameter;
  };
  return {.attention_norm = find("input_layernorm"),
          .q = find("self_attn.q_proj"),
          .k = find("self_attn.k_proj"),
          .v = find("self_attn.v_proj"),
          .o = find("self_attn.o_proj"),
          .mlp_norm = find("post_attention_layernorm"),
          .gate = find("mlp.gate_proj"),
          .up = find("mlp.up_proj"),
          .down = find("mlp.down_proj")};
}

absl::StatusOr<Tensor> BlockForward(const StageContext& context, const BlockParameters& parameters, Tensor input,
                                    MemoryCategory output_category, SavedBlock& saved) {
  const int64_t h = context.model.hidden_size;
  const int64_t f = context.model.intermediate_size;
  saved.input = std::move(input);
  GP_RETURN_IF_ERROR(AttentionForward(context, parameters, saved));
  GP_ASSIGN_OR_RETURN(saved.mlp_rms, context.NewRows(1, MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(saved.mlp_input, context.NewRows(h, MemoryCategory::kActivations));
  GP_RETURN_IF_ERROR(Norm(context, saved.mlp_residual, *parameters.mlp_norm, saved.mlp_input, saved.mlp_rms));
  GP_ASSIGN_OR_RETURN(saved.gate, context.NewRows(f, MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(saved.up, context.NewRows(f, MemoryCategory::kActivations));
  GP_ASSIGN_OR_RETURN(saved.activation, context.NewRows(f, MemoryCategory::kActivations));
  GP_RETURN_IF_ERROR(Linear(context, saved.mlp_input, *parameters.gate, saved.gate));
  GP_RETURN_IF_ERROR(Linear(context, saved.mlp_input, *parameters.up, saved.up));
  GP_RETURN_IF_ERROR(context.backend->SwiGlu(ViewOf(saved.gate), ViewOf(saved.up), ViewOf(saved.activation)));
  GP_ASSIGN_OR_RETURN(Tensor output, context.NewRows(h, output_category));
  GP_RETURN_IF_ERROR(Copy(saved.mlp_residual, output));
  GP_RETURN_IF_ERROR(Linear(context, saved.activation, *parameters.down, output, /*accumulate=*/true));
  return output;
}

absl::StatusOr<Tensor> BlockBackwardInput(const StageContext& context, const BlockParameters& parameters,
                                          Tensor grad_output, SavedBlock& saved) {
  saved.grad_output = std::move(grad_output);
  GP_RETURN_IF_ERROR(MlpBackwardInput(context, parameters, saved));
  GP_RETURN_IF_ERROR(AttentionBackwardInput(context, parameters, saved));
  return std::move(saved.input);
}

absl::Status BlockBackwardWeight(const StageContext& context, const BlockParameters& parameters, SavedBlock saved) {
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.grad_output, saved.activation, *parameters.down));
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.gate, saved.mlp_input, *parameters.gate));
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.up, saved.mlp_input, *parameters.up));
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.mlp_residual, saved.context, *parameters.o));
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.gradients.query, saved.attention_input, *parameters.q));
  GP_RETURN_IF_ERROR(LinearWeightGrad(context, saved.gradients.key, saved.attention_input, *parameters.k));
  return LinearWeightGrad(context, saved.gradients.value, saved.attention_input, *parameters.v);
}

}  // namespace geopipe
