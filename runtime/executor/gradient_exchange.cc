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
#include "runtime/tensor/staging.h"

namespace geopipe {
namespace {

// Names the first tensor whose gradient is not finite. Such values spread with the backward pass, which runs from the
// last rank to the first.
absl::Status NotFinite(double norm, std::span<const PeerId> pipeline,
                       const std::vector<std::vector<NormTerm>>& terms_of) {
  std::string first;
  for (size_t i = 0; i < terms_of.size(); ++i) {
    for (const NormTerm& term : terms_of[i]) {
      if (!std::isfinite(term.sum_of_squares)) {
        first = fmt::format(", from the gradient of {} on rank {} on", term.name, pipeline[i]);
      }
    }
  }
  return absl::OutOfRangeError(
      fmt::format("the gradient norm is {}{}; lower training.learning_rate, or give warmup_iterations",
                  std::isnan(norm) ? "nan" : "infinite", first));
}

}  // namespace

GradientExchange::GradientExchange(const PipelineShape& shape, int32_t pipeline_rank, std::span<const PeerId> pipeline,
                                   const std::vector<StageEngine*>& engines, MessageTransport& transport,
                                   Allocator& allocator, Clock& clock, int64_t progress_deadline_ns)
    : shape_(shape),
      pipeline_rank_(pipeline_rank),
      pipeline_(pipeline),
      engines_(engines),
      transport_(transport),
      allocator_(allocator),
      clock_(clock),
      progress_deadline_ns_(progress_deadline_ns) {}

absl::Status GradientExchange::ExchangeTied(int64_t iteration) {
  StageEngine* first = engines_.front();
  StageEngine* last = engines_.back();
  if (shape_.stages == 1 || (first == nullptr && last == nullptr)) {
    return absl::OkStatus();  // one stage with both uses adds them up itself
  }
  if (first != nullptr && last != nullptr) {
    GP_ASSIGN_OR_RETURN(std::optional<Timed<Tensor>> of_first, first->TakeTiedGradient());
    GP_ASSIGN_OR_RETURN(std::optional<Timed<Tensor>> of_last, last->TakeTiedGradient());
    GP_CHECK(of_first.has_value() == of_last.has_value(), "one end alone shares an embedding");
    if (of_first.has_value()) {
      GP_RETURN_IF_ERROR(first->AddTiedGradient(*std::move(of_last)));
      GP_RETURN_IF_ERROR(last->AddTiedGradient(*std::move(of_first)));
    }
    return absl::OkStatus();
  }
  StageEngine& mine = first != nullptr ? *first : *last;
  const int32_t other = first != nullptr ? shape_.placement.back() : shape_.placement.front();
  GP_ASSIGN_OR_RETURN(std::optional<Timed<Tensor>> gradient, mine.TakeTiedGradient());
  if (!gradient.has_value()) {
    return absl::OkStatus();
  }
  const MessageTag tag{iteration, 0};
  GP_ASSIGN_OR_RETURN(Timed<Tensor> message, ToHost(*std::move(gradient)));
  GP_RETURN_IF_ERROR(Send(MessageKind::kTiedGradient, other, tag, std::move(message)));
  GP_ASSIGN_OR_RETURN(Timed<Tensor> of_other, Receive(MessageKind::kTiedGradient, other, tag));
  GP_ASSIGN_OR_RETURN(of_other, ToDevice(std::move(of_other), allocator_, MemoryCategory::kTransport));
  return mine.AddTiedGradient(std::move(of_other));
}

absl::StatusOr<std::optional<double>> GradientExchange::ExchangeNorm(int64_t iteration, std::vector<NormTerm> own) {
  std::vector<std::vector<NormTerm>> terms(static_cast<size_t>(shape_.devices));
  terms[pipeline_rank_] = std::move(own);
  const MessageTag tag{iteration, 0};
  for (int32_t other = 0; other < shape_.devices; ++other) {
    if (other != pipeline_rank_) {
      GP_ASSIGN_OR_RETURN(Tensor message, EncodeNormTerms(terms[pipeline_rank_], allocator_.staging()));
      GP_RETURN_IF_ERROR(
          Send(MessageKind::kNormTerms, other, tag, {std::move(message), Completion::At(clock_.NowNs())}));
    }
  }
  for (int32_t other = 0; other < shape_.devices; ++other) {
    if (other != pipeline_rank_) {
      GP_ASSIGN_OR_RETURN(const Timed<Tensor> message, Receive(MessageKind::kNormTerms, other, tag));
      GP_ASSIGN_OR_RETURN(terms[other], DecodeNormTerms(message.value));
    }
  }
  std::vector<NormTerm> all;
  for (const std::vector<NormTerm>& of_rank : terms) {
    std::ranges::copy(of_rank, std::back_inserter(all));
  }
  if (all.empty()) {
    return std::nullopt;
  }
  const double norm = GlobalNorm(std::move(all));
  if (!std::isfinite(norm)) {
    return NotFinite(norm, pipeline_, terms);
  }
  return norm;
}

absl::Status GradientExchange::Send(MessageKind kind, int32_t to, const MessageTag& tag, Timed<Tensor> message) {
  return transport_.Send({kind, 0, pipeline_[pipeline_rank_], pipeline_[to]}, tag, std::move(message));
}

absl::StatusOr<Timed<Tensor>> GradientExchange::Receive(MessageKind kind, int32_t from, const MessageTag& tag) {
  waited_ = true;
  absl::StatusOr<Timed<Tensor>> message = transport_.Receive({kind, 0, pipeline_[from], pipeline_[pipeline_rank_]}, tag,
                                                             clock_.NowNs() + progress_deadline_ns_);
  if (absl::IsDeadlineExceeded(message.status())) {
    return absl::DeadlineExceededError(
        fmt::format("{} of rank {} have not come within {:.1f} s; that rank, or the link to it, is stuck",
                    MessageKindName(kind), pipeline_[from], static_cast<double>(progress_deadline_ns_) * 1e-9));
  }
  return message;
}

}  // namespace geopipe
