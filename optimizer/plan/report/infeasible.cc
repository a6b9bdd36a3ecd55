#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/quantities.h"
#include "optimizer/model/cost_model.h"
#include "optimizer/model/plan/plan_memory.h"
#include "optimizer/plan/report/explain.h"
#include "optimizer/plan/space/choices.h"
#include "optimizer/plan/space/placement.h"
#include "optimizer/plan/space/shapes.h"

namespace geopipe {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

// The stage that lacks most at one choice of b, s, recompute mode and ZeRO stage, with the least ΔN.
struct Need {
  int32_t stage = 0;
  std::string site;
  int64_t capacity_bytes = 0;
  StageMemory memory;
  int64_t in_flight = 0;
  int64_t micro_batch_size = 0;
  int64_t sequence_length = 0;
  std::vector<int32_t> delta_n;
  MemoryMode mode;

  bool splits_to_fit = false;  // with other numbers of layers on the stages, which the job allows

  int64_t bytes() const { return memory.static_bytes() + in_flight * memory.activation_bytes; }
  int64_t excess_bytes() const { return splits_to_fit ? 0 : bytes() - capacity_bytes; }
};

struct Question {
  JobSpec job;
  ClusterSpec cluster;
  std::vector<std::string> sites;
  std::vector<int32_t> fixed_delta_n;
  CommMode comm = CommMode::kNonBlocking;
};

// True when the stages can share the layers so that all fit, if the job lets the search split them.
bool SplitsToFit(const JobSpec& job, const Plan& plan, const PlanMemoryModel& memory,
                 const std::vector<StageFlow>& flows) {
  if (job.parallelism.layers != LayerSplit::kAuto) {
    return false;
  }
  int64_t room = 0;
  for (int32_t stage = 0; stage < std::ssize(plan.stages); ++stage) {
    const int64_t layers = memory.MostLayers(stage, flows[stage], plan.pipeline_ranks[stage].capacity_bytes);
    if (layers == 0) {
      return false;
    }
    room += layers;
  }
  return room >= job.model.num_hidden_layers;
}

Need WorstStage(const Question& question, const Plan& plan) {
  const auto stages = static_cast<int32_t>(plan.stages.size());
  const PlanMemoryModel memory(question.job, ConfigOfPlan(question.job, plan), plan.Shape().placement);
  const std::vector<StageFlow> flows = FlowsOf(InFlightOfPlan(plan), plan.comm);
  Need worst;
  for (int32_t stage = stages - 1; stage >= 0; --stage) {
    Need need{.stage = stage,
              .site = plan.SiteOf(stage),
              .capacity_bytes = plan.pipeline_ranks[stage].capacity_bytes,
              .memory = memory.Needs(stage, plan.stages[stage].layers).At(flows[stage]),
              .in_flight = flows[stage].here,
              .micro_batch_size = plan.micro_batch_size,
              .sequence_length = plan.sequence_length,
              .delta_n = plan.delta_n,
              .mode = {plan.RecomputeOf(stage), plan.zero_stage},
              .splits_to_fit = false};
    if (worst.site.empty() || need.excess_bytes() >= worst.excess_bytes()) {
      worst = std::move(need);
    }
  }
  worst.splits_to_fit = worst.excess_bytes() > 0 && SplitsToFit(question.job, plan, memory, flows);
  return worst;
}

// The need at the most frugal choice that the job allows; nullopt when it has no valid placement or no valid choice.
std::optional<Need> LeastNeed(const Question& question) {
  const JobSpec& job = question.job;
  if (!ValidateJob(job).ok()) {
    return std::nullopt;
  }
  const absl::StatusOr<Plan> placement = PlaceStages(job, question.cluster, question.sites);
  if (!placement.ok()) {
    return std::nullopt;
  }
  std::optional<Need> least;
  for (const MemoryMode& mode : MemoryModes(job)) {
    for (const int64_t b : job.search.micro_batch_size) {
      for (const int64_t s : job.search.sequence_length) {
        Plan plan = *placement;
        plan.micro_batches = MicroBatchesOf(job, b, s);
        if (plan.micro_batches == 0) {
          continue;
        }
        plan.schedule = SearchedKind(job.search.schedule);
        plan.micro_batch_size = b;
        plan.sequence_length = s;
        plan.SetRecompute(mode.recompute);
        plan.zero_stage = mode.zero_stage;
        plan.comm = question.comm;
        const size_t crossings = placement->Crossings().size();
        plan.delta_n.assign(crossings, question.fixed_delta_n.empty() ? 0 : question.fixed_delta_n.front());
        if (question.fixed_delta_n.size() == crossings) {
          plan.delta_n = question.fixed_delta_n;
        }
        Need need = WorstStage(question, plan);
        if (!least.has_value() || need.excess_bytes() < least->excess_bytes()) {
          least = std::move(need);
        }
      }
    }
  }
  return least;
}

bool Fits(const Question& question) {
  const std::optional<Need> need = LeastNeed(question);
  return need.has_value() && need->excess_bytes() <= 0;
}

// Least whole number of GiB that every device needs.
std::optional<int64_t> DeviceGiBThatFits(Question question) {
  int64_t largest = 1;
  for (const SiteSpec& site : question.cluster.sites) {
    largest = std::max(largest, site.device.memory_bytes / kGiB);
  }
  const auto fits_with = [&](int64_t gib) {
    for (SiteSpec& site : question.cluster.sites) {
      site.device.memory_bytes = std::max(site.device.memory_bytes, gib * kGiB);
    }
    return Fits(question);
  };
  // The probe changes `question` upwards only, so each starts from the original.
  const ClusterSpec original = question.cluster;
  const int64_t limit = int64_t{1} << 20;
  int64_t high = 1;
  while (high < limit && !fits_with(high)) {
    high *= 2;
    question.cluster = original;
  }
  if (high >= limit) {
    return std::nullopt;
  }
  int64_t low = high / 2;  // does not fit
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    question.cluster = original;
    (fits_with(middle) ? high : low) = middle;
  }
  return high;
}

// The least pipeline that fits when sites may have any number of devices.
std::optional<int64_t> StagesThatFit(Question question, int64_t present) {
  const int64_t layers = question.job.model.num_hidden_layers;
  for (SiteSpec& site : question.cluster.sites) {
    site.nodes *= layers;
  }
  for (int64_t stages = present + 1; stages <= layers; ++stages) {
    question.job.parallelism.pipeline = stages;
    if (Fits(question)) {
      return stages;
    }
  }
  return std::nullopt;
}

// First of these values that makes the job fit.
template <typename Apply>
std::optional<int64_t> FirstThatFits(const Question& question, const std::vector<int64_t>& values, Apply apply) {
  for (const int64_t value : values) {
    Question changed = question;
    apply(changed.job, value);
    if (Fits(changed)) {
      return value;
    }
  }
  return std::nullopt;
}

std::vector<int64_t> Halvings(int64_t from) {
  std::vector<int64_t> values;
  for (int64_t value = from / 2; value >= 1; value /= 2) {
    values.push_back(value);
  }
  return values;
}

std::vector<std::string> NumericRemedies(const Question& question) {
  std::vector<std::string> remedies;
  const SearchSpec& search = question.job.search;
  const int64_t least_b = *std::min_element(search.micro_batch_size.begin(), search.micro_batch_size.end());
  const int64_t least_s = *std::min_element(search.sequence_length.begin(), search.sequence_length.end());
  if (const auto b = FirstThatFits(question, Halvings(least_b),
                                   [](JobSpec& job, int64_t value) { job.search.micro_batch_size = {value}; })) {
    remedies.push_back(fmt::format("search.micro_batch_size {}", *b));
  }
  if (const auto s = FirstThatFits(question, Halvings(least_s),
                                   [](JobSpec& job, int64_t value) { job.search.sequence_length = {value}; })) {
    remedies.push_back(fmt::format("search.sequence_length {}", *s));
  }
  if (question.job.precision == Precision::kFp32) {
    Question changed = question;
    changed.job.precision = Precision::kBf16;
    if (Fits(changed)) {
      remedies.emplace_back("precision bf16");
    }
  }
  if (std::any_of(question.fixed_delta_n.begin(), question.fixed_delta_n.end(), [](int32_t n) { return n > 0; })) {
    Question changed = question;
    changed.fixed_delta_n = {0};
    if (Fits(changed)) {
      remedies.emplace_back("a smaller delta_n");
    }
  }
  return remedies;
}

std::vector<std::string> ParallelRemedies(const Question& question) {
  std::vector<std::string> remedies;
  const ParallelismSpec& parallelism = question.job.parallelism;
  for (const Recompute recompute : {Recompute::kSelective, Recompute::kFull}) {
    Question changed = question;
    changed.job.parallelism.recompute = recompute;
    if (parallelism.recompute.has_value() && recompute > *parallelism.recompute && Fits(changed)) {
      remedies.push_back(fmt::format("parallelism.recompute {}", RecomputeName(recompute)));
      break;
    }
  }
  for (int32_t zero_stage = parallelism.zero_stage.value_or(3) + 1; zero_stage <= 3; ++zero_stage) {
    Question changed = question;
    changed.job.parallelism.zero_stage = zero_stage;
    if (parallelism.data > 1 && Fits(changed)) {
      remedies.push_back(fmt::format("parallelism.zero_stage {}", zero_stage));
      break;
    }
  }
  if (parallelism.tensor > 1 && !parallelism.sequence_parallel) {
    Question changed = question;
    changed.job.parallelism.sequence_parallel = true;
    if (Fits(changed)) {
      remedies.emplace_back("parallelism.sequence_parallel true");
    }
  }
  if (parallelism.offload == Offload::kNone) {
    Question changed = question;
    changed.job.parallelism.offload = Offload::kOptimizer;
    if (Fits(changed)) {
      remedies.emplace_back("parallelism.offload optimizer");
    }
  }
  std::vector<int64_t> degrees;
  for (int64_t t = 2 * std::max<int64_t>(1, parallelism.tensor); t <= question.job.model.num_key_value_heads; t *= 2) {
    degrees.push_back(t);
  }
  if (const auto tensor =
          FirstThatFits(question, degrees, [](JobSpec& job, int64_t value) { job.parallelism.tensor = value; })) {
    remedies.push_back(fmt::format("parallelism.tensor {}", *tensor));
  }
  return remedies;
}

// Degrees left to the planner, where the job gives a tensor degree that none of the pipelines on these devices goes
// with.
std::optional<std::string> AutoDegrees(const JobSpec& asked, const Question& question) {
  if (asked.parallelism.tensor == 0) {
    return std::nullopt;
  }
  for (int64_t tensor = 1; tensor <= asked.model.num_attention_heads; tensor *= 2) {
    Question changed = question;
    changed.job.parallelism.tensor = tensor;
    changed.job.parallelism.pipeline = 0;
    if (tensor != asked.parallelism.tensor && Fits(changed)) {
      return fmt::format("parallelism.tensor auto{} (it fits with tensor {})",
                         asked.parallelism.pipeline == 0 ? "" : ", and pipeline auto", tensor);
    }
  }
  return std::nullopt;
}

// The degrees that the job left to the planner: no others need less memory.
std::string ChosenDegrees(const JobSpec& asked, const Shape& frugal, int64_t stages) {
  const ParallelismSpec& parallelism = asked.parallelism;
  return fmt::format("{}{}{}", parallelism.tensor == 0 ? fmt::format("tensor {}, ", frugal.tensor) : "",
                     parallelism.pipeline == 0 ? fmt::format("pipeline {}, ", stages) : "",
                     parallelism.data == 0 ? fmt::format("data {}, ", frugal.data) : "");
}

// The derivation of a capacity that is less than the memory.
std::string ReserveText(const ClusterSpec& cluster, std::string_view site) {
  const SiteSpec* spec = cluster.FindSite(site);
  if (spec == nullptr || spec->device.reserve_bytes.value_or(0) == 0) {
    return "";
  }
  return fmt::format(" ({} less a reserve of {})", HumanBytes(spec->device.memory_bytes),
                     HumanBytes(*spec->device.reserve_bytes));
}

Question QuestionOf(const PlanRequest& request, const Shape& frugal) {
  JobSpec job = JobOf(request.job, frugal);
  job.placement.sites = request.job.placement.sites;
  return {std::move(job), request.cluster, frugal.sites, request.fixed_delta_n, request.comm};
}

}  // namespace

absl::Status Infeasible(const PlanRequest& request, const Shape& frugal) {
  const Question question = QuestionOf(request, frugal);
  const std::optional<Need> need = LeastNeed(question);
  GP_CHECK(need.has_value(), "the caller has placed the stages");
  if (need->excess_bytes() <= 0) {
    return absl::FailedPreconditionError(
        fmt::format("the search found no plan that fits within search.max_evaluations {}, though memory does not rule "
                    "one out; raise it, or use --search exhaustive",
                    request.job.search.max_evaluations));
  }
  std::vector<std::string> remedies;
  if (const auto gib = DeviceGiBThatFits(question)) {
    remedies.push_back(fmt::format("devices with at least {} GiB", *gib));
  }
  const absl::StatusOr<Plan> placement = PlaceStages(question.job, question.cluster, frugal.sites);
  const auto present = static_cast<int64_t>(placement->stages.size());
  if (const auto stages = StagesThatFit(question, present)) {
    remedies.push_back(fmt::format("a pipeline of at least {} stages on as many more such devices", *stages));
  }
  for (auto& group : {ParallelRemedies(question), NumericRemedies(question)}) {
    remedies.insert(remedies.end(), group.begin(), group.end());
  }
  const bool names_tensor = std::ranges::any_of(
      remedies, [](const std::string& remedy) { return remedy.starts_with("parallelism.tensor "); });
  if (auto degrees = AutoDegrees(request.job, question); degrees.has_value() && !names_tensor) {
    remedies.push_back(*std::move(degrees));
  }
  return absl::FailedPreconditionError(fmt::format(
      "the job does not fit: pipeline rank {} on site \"{}\" needs {} per device of {}{} even at {}micro_batch_size "
      "{}, "
      "sequence_length {}{}, recompute {}{} (model states {}{}, {} micro-batches in flight of {} each, "
      "workspace {}, transport {}); {}{}",
      need->stage, need->site, HumanBytes(need->bytes()), HumanBytes(need->capacity_bytes),
      ReserveText(request.cluster, need->site), ChosenDegrees(request.job, frugal, present), need->micro_batch_size,
      need->sequence_length, need->delta_n.empty() ? "" : fmt::format(", delta_n [{}]", fmt::join(need->delta_n, ",")),
      RecomputeName(need->mode.recompute),
      question.job.parallelism.data > 1 ? fmt::format(", zero_stage {}", need->mode.zero_stage) : "",
      HumanBytes(need->memory.model_state_bytes()),
      need->memory.recovery_bytes == 0
          ? ""
          : fmt::format(", states kept for recovery {}", HumanBytes(need->memory.recovery_bytes)),
      need->in_flight, HumanBytes(need->memory.activation_bytes), HumanBytes(need->memory.workspace_bytes),
      HumanBytes(need->memory.transport_bytes),
      remedies.empty() ? "no single change of memory, parallelism or micro-batch makes it fit"
                       : fmt::format("any of these would relax it: {}", fmt::join(remedies, "; ")),
      TriesAllOrders(request.job, request.cluster)
          ? ""
          : fmt::format("; only some orders of the {} sites were tried, set placement.sites to force one",
                        request.cluster.sites.size())));
}

std::string LackingMemory(const PlanRequest& request, const Shape& frugal) {
  const std::optional<Need> need = LeastNeed(QuestionOf(request, frugal));
  GP_CHECK(need.has_value(), "the caller has placed the stages");
  if (need->excess_bytes() <= 0) {
    return fmt::format("none that fits was found within search.max_evaluations {}", request.job.search.max_evaluations);
  }
  return fmt::format("rank {} at {} needs {} of {}, {} too much", need->stage, need->site, HumanBytes(need->bytes()),
                     HumanBytes(need->capacity_bytes), HumanBytes(need->excess_bytes()));
}

}  // namespace geopipe
