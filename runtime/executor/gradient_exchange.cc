#include "runtime/executor/gradient_exchange.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/executor/norm_message.h"

namespace geopipe {
namespace {

// The backward pass runs from the last stage to the first, and what is not finite spreads with it.
absl::Status NotFinite(double norm, const std::vector<std::vector<NormTerm>>& terms_of_stage) {
  std::string first;
  for (size_t stage = 0; stage < terms_of_stage.size(); ++stage) {
    for (const NormTerm& term : terms_of_stage[stage]) {
      if (!std::isfinite(term.sum_of_squares)) {
        first = fmt::format(", from the gradient of {} on stage {} on", term.name, stage);
      }
    }
  }
  return absl::OutOfRangeError(
      fmt::format("the gradient norm is {}{}; lower training.learning_rate, or give warmup_iterations",
                  std::isnan(norm) ? "nan" : "infinite", first));
}

}  // namespace

GradientExchange::GradientExchange(const PipelineShape& shape, int32_t stage, std::vector<StageEngine*> engines,
                                   MessageTransport& transport, Allocator& allocator, Clock& clock,
                                   int64_t progress_deadline_ns)
    : shape_(shape),
      stage_(stage),
      engines_(std::move(engines)),
      transport_(transport),
      allocator_(allocator),
      clock_(clock),
      progress_deadline_ns_(progress_deadline_ns) {}

absl::Status GradientExchange::ExchangeTied(int64_t iteration) {
  StageEngine* first = engines_.front();
  StageEngine* last = engines_.back();
  if (shape_.chunks == 1 || (first == nullptr && last == nullptr)) {
    return absl::OkStatus();  // one chunk with both uses adds them up itself
  }
  if (first != nullptr && last != nullptr) {
    std::optional<Tensor> of_first = first->TakeTiedGradient();
    std::optional<Tensor> of_last = last->TakeTiedGradient();
    GP_CHECK(of_first.has_value() == of_last.has_value(), "one end alone shares an embedding");
    if (of_first.has_value()) {
      GP_RETURN_IF_ERROR(first->AddTiedGradient(*std::move(of_last)));
      GP_RETURN_IF_ERROR(last->AddTiedGradient(*std::move(of_first)));
    }
    return absl::OkStatus();
  }
  StageEngine& mine = first != nullptr ? *first : *last;
  const int32_t other_stage = first != nullptr ? shape_.placement.back() : shape_.placement.front();
  std::optional<Tensor> gradient = mine.TakeTiedGradient();
  if (!gradient.has_value()) {
    return absl::OkStatus();
  }
  const MessageTag tag{iteration, 0};
  GP_RETURN_IF_ERROR(transport_.Send({MessageKind::kTiedGradient, 0, stage_, other_stage}, tag, *std::move(gradient)));
  GP_ASSIGN_OR_RETURN(Tensor other, Receive({MessageKind::kTiedGradient, 0, other_stage, stage_}, tag));
  return mine.AddTiedGradient(std::move(other));
}

absl::StatusOr<std::optional<double>> GradientExchange::ExchangeNorm(int64_t iteration) {
  std::vector<std::vector<NormTerm>> terms(static_cast<size_t>(shape_.devices));
  for (StageEngine* engine : engines_) {
    if (engine != nullptr) {
      GP_ASSIGN_OR_RETURN(std::vector<NormTerm> of_chunk, engine->GradientNormTerms());
      std::ranges::move(of_chunk, std::back_inserter(terms[stage_]));
    }
  }
  const MessageTag tag{iteration, 0};
  for (int32_t other = 0; other < shape_.devices; ++other) {
    if (other != stage_) {
      GP_ASSIGN_OR_RETURN(Tensor message, EncodeNormTerms(terms[stage_], allocator_));
      GP_RETURN_IF_ERROR(transport_.Send({MessageKind::kNormTerms, 0, stage_, other}, tag, std::move(message)));
    }
  }
  for (int32_t other = 0; other < shape_.devices; ++other) {
    if (other != stage_) {
      GP_ASSIGN_OR_RETURN(const Tensor message, Receive({MessageKind::kNormTerms, 0, other, stage_}, tag));
      GP_ASSIGN_OR_RETURN(terms[other], DecodeNormTerms(message));
    }
  }
  std::vector<NormTerm> all;
  for (const std::vector<NormTerm>& of_stage : terms) {
    std::ranges::copy(of_stage, std::back_inserter(all));
  }
  if (all.empty()) {
    return std::nullopt;
  }
  const double norm = GlobalNorm(std::move(all));
  if (!std::isfinite(norm)) {
    return NotFinite(norm, terms);
  }
  return norm;
}

absl::StatusOr<Tensor> GradientExchange::Receive(const ChannelId& channel, const MessageTag& tag) {
  waited_ = true;
  absl::StatusOr<Tensor> message = transport_.Receive(channel, tag, clock_.NowNs() + progress_deadline_ns_);
  if (absl::IsDeadlineExceeded(message.status())) {
    return absl::DeadlineExceededError(fmt::format(
        "{} of stage {} have not come within {:.1f} s; that stage, or the link to it, is stuck",
        MessageKindName(channel.kind), channel.from_rank, static_cast<double>(progress_deadline_ns_) * 1e-9));
  }
  return message;
}

}  // namespace geopipe
