// Alternatives to a pipeline over a job's sites, side by side: how long an iteration would take, and how much would
// cross between sites for it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optimizer/model/cluster.h"
#include "optimizer/plan/report/plan_result.h"
#include "optimizer/plan/report/site_reduction.h"
#include "optimizer/plan/site_planner.h"

namespace geopipe {

enum class AlternativeKind : uint8_t {
  kSingleSite,  // the fastest site alone, with all tokens
  kPipeline,    // one pipeline over several sites
  // A replica of the model at each of two or more sites on its share of the tokens, gradients summed over the sites
  // before every update (replica_timing.h): equivalent training.
  kSiteReplicas,
  // The same replicas, each with updates of its own, and the changes of the weights averaged over the sites every
  // kLocalSteps iterations (DiLoCo, arXiv 2311.08105): not equivalent training.
  kLocalSteps,
};
// "single-site", "pipeline", "site-replicas", "local-steps".
std::string_view AlternativeName(AlternativeKind kind);

// Iterations from one average to the next. DiLoCo's authors take 500 and see little loss; fewer are closer to
// equivalent training, and with 100 the traffic between sites is a hundredth of that of replicas in fp32.
inline constexpr int64_t kLocalSteps = 100;
// Bytes of a parameter's change, in fp32.
inline constexpr int64_t kOuterGradientBytes = 4;

struct SiteShare {
  std::string site;
  int64_t tokens = 0;  // of an iteration
  Plan plan;
  Prediction prediction;  // of the site alone

  friend bool operator==(const SiteShare&, const SiteShare&) = default;
};

struct Alternative {
  AlternativeKind kind = AlternativeKind::kSingleSite;
  std::string missing = {};            // why it does not exist; empty: it does
  bool is_plan = false;                // the planner's own answer
  std::vector<SiteShare> shares = {};  // of each site; empty where it is the plan
  int64_t iteration_ns = 0;            // of local steps: in the mean
  double tokens_per_s = 0;
  int64_t wan_bytes_per_iteration = 0;  // over all links, both directions; of local steps: in the mean
  int64_t devices = 0;                  // in use
  // Replicas and local steps: the links over which `reduced_bytes` of every site are summed; the time of that if
  // nothing hides it (each time, of local steps every kLocalSteps iterations), and the time by which it lengthens the
  // iteration.
  std::optional<SiteReduction> reduction = {};
  int64_t reduced_bytes = 0;
  int64_t reduction_ns = 0;
  int64_t exposed_ns = 0;

  bool found() const { return missing.empty(); }
  bool changes_training() const { return kind == AlternativeKind::kLocalSteps; }
  std::string SitesText() const;  // "north,east", "16 sites"; empty where it is the plan
};

struct Alternatives {
  std::vector<Alternative> all;  // one of each kind, in their order

  const Alternative& Of(AlternativeKind kind) const { return all[static_cast<size_t>(kind)]; }
  // The fastest of those that leave the training as it is; null if there is none. Of equally fast ones the plan.
  const Alternative* Fastest() const;
};

// The fastest, and the part of the next one's iteration that it saves; nullopt: it is the only one.
struct Lead {
  AlternativeKind kind = AlternativeKind::kPipeline;
  std::optional<double> saved = {};
};
// The lead of the fastest of those that leave the training as it is; nullopt if there is none.
std::optional<Lead> LeadOf(const Alternatives& alternatives);

// Plans all alternatives. `plan`: the planner's answer on `cluster`, null when there is none. `sites` was made for the
// same request, on the same cluster but for the links. Replicas are at those of the job's sites with which an iteration
// is estimated to be shortest. Shares of the tokens follow the speeds that the sites have alone, in units of which the
// best of a few is taken; all sites train the same sequence length. An alternative that cannot be, or was not found
// before the request's should_stop, is missing.
Alternatives FindAlternatives(SitePlanner& sites, const ClusterSpec& cluster, const PlanResult* plan);

// Puts rows at the end of the baselines of `result`, the plan that they are alternatives to, in place of its rows of
// these scopes: replicas if there are any, and the single site, even if it is the plan itself. If no single site fits
// it has no row, and SingleSiteBaseline gives the time of the fastest that does not fit.
void PutAmongBaselines(const Alternatives& alternatives, PlanResult& result);

}  // namespace geopipe
