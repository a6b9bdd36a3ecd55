#include "coordinator/cli/render/what_if_output.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "coordinator/cli/render/format.h"
#include "runtime/base/wrap.h"

namespace geopipe {
namespace {

// A plan with its figures, alternatives and memory.
struct Side {
  PlanResult result;
  PlanFigures figures;
  Alternatives alternatives;
  std::vector<MemoryBreakdown> memory;

  WhatIfSide side() const {
    return {.result = &result, .figures = &figures, .alternatives = &alternatives, .memory = &memory};
  }
};

Side Made(int64_t iteration_ns = 16'220'000'000) {
  Side side;
  Plan& plan = side.result.plan;
  plan.schedule = ScheduleKind::kGeoPipe;
  plan.micro_batch_size = 4;
  plan.sequence_length = 4096;
  plan.delta_n = {2};
  plan.micro_batches = 64;
  plan.grid.tensor = 8;
  plan.Append({.site = "oslo", .peak_bytes = 1'000, .capacity_bytes = 4'000}, {0, 39, true, false});
  plan.Append({.site = "dublin"}, {40, 79, false, true}, 1);
  side.result.prediction = {
      .iteration_ns = iteration_ns, .bubble_ratio = 0.25, .lower_bound_ns = 1, .tokens_per_s = 258'000};
  side.figures.mfu = 0.23;
  side.figures.job_s = 1000 * static_cast<double>(iteration_ns) / 1e9;
  side.figures.sites = {{"oslo", 256, 128, ""}, {"dublin", 256, 128, ""}};
  side.figures.links = {{"oslo", "dublin", 1 << 30, 12.5e9, 0.556}};
  side.memory = {{.site = "oslo", .weight_bytes = int64_t{60} << 30, .capacity_bytes = int64_t{70} << 30}};
  for (const AlternativeKind kind : {AlternativeKind::kSingleSite, AlternativeKind::kPipeline,
                                     AlternativeKind::kSiteReplicas, AlternativeKind::kLocalSteps}) {
    side.alternatives.all.push_back({.kind = kind, .missing = "no", .iteration_ns = 18'700'000'000});
  }
  side.alternatives.all[0].missing.clear();
  side.alternatives.all[0].shares.emplace_back().site = "oslo";
  return side;
}

TEST_CASE("two plans stand side by side with the change of each figure") {
  const Side now = Made();
  Side then = Made(9'880'000'000);
  then.result.prediction.bubble_ratio = 0.125;
  then.result.prediction.tokens_per_s = 424'000;
  then.result.plan.micro_batch_size = 1;
  then.result.plan.micro_batches = 256;
  then.figures.links.clear();
  const std::string text =
      WhatIfText({{"bandwidth", "100Gbps", "400Gbps"}, {"model.preset", "", "llama-2-70b"}}, now.side(), then.side());
  CHECK(text ==
        "what if  bandwidth 100Gbps → 400Gbps\n"
        "         model.preset llama-2-70b\n"
        "\n"
        "                  NOW                      THEN                     CHANGE\n"
        "iteration         16.220 s                 9.880 s                  -39.1 %\n"
        "bubble            25.0 %                   12.5 %                   -12.5 points\n"
        "MFU               23.0 %                   23.0 %\n"
        "tokens/s          258,000                  424,000                  +64.3 %\n"
        "job               4 h 30 min               2 h 44 min               -39.1 %\n"
        "devices           256 of 512               256 of 512\n"
        "degrees           TP 8, PP 2, DP 1         TP 8, PP 2, DP 1\n"
        "pipeline ranks    oslo 1, dublin 1         oslo 1, dublin 1\n"
        "schedule          geopipe                  geopipe\n"
        "b × s             4 × 4096, 64             1 × 4096, 256            changes\n"
        "                  micro-batches            micro-batches\n"
        "ΔN                2                        2\n"
        "recompute         none                     none\n"
        "ZeRO              0                        0\n"
        "layers            2 stages of 40 layers    2 stages of 40 layers\n"
        "peak memory       60.0 GiB of 70.0 GiB     60.0 GiB of 70.0 GiB\n"
        "busiest link      55.6 % of oslo-dublin    no crossing\n"
        "best single site  18.700 s, oslo           18.700 s, oslo\n"
        "replica per site  none                     none\n");
  const Json change = WhatIfChangeToJson(now.side(), then.side());
  CHECK(change["same_plan"] == false);
  CHECK(change["iteration"].get<double>() == Approx(9.88 / 16.22 - 1));
  CHECK(change["bubble_ratio"].get<double>() == Approx(-0.125));
}

TEST_CASE("that nothing changes is said, and that only times do") {
  const Side now = Made();
  CHECK(WhatIfText({{"latency", "1ms", "2ms"}}, now.side(), now.side())
            .ends_with("\n\nnothing changes: with another latency the plan and its times are the same\n"));
  Side then = Made(16'000'000'000);
  then.result.plan.pipeline_ranks[0].capacity_bytes = 8'000;
  then.result.search.stopped_early = true;
  CHECK(WhatIfText({{"latency", "1ms", "2ms"}}, now.side(), then.side())
            .ends_with("\n\nthe plan stays the same; its times change\n"
                       "then: the search was ended by search.time_budget; a longer one may find a faster plan\n"));
  CHECK(WhatIfChangeToJson(now.side(), then.side())["same_plan"] == true);
}

TEST_CASE("where one of the two has no plan, it says why") {
  const Side then = Made();
  const WhatIfSide none{.missing = "stage 0 needs 95.2 GiB of 70.2 GiB"};
  const std::string text = WhatIfText({{"device.memory", "80GB", "141GB"}}, none, then.side());
  CHECK(text.find("iteration         -                        16.220 s\n") != std::string::npos);
  CHECK(text.ends_with("\n\nno plan now: stage 0 needs 95.2 GiB of 70.2 GiB\n"));
  CHECK(WhatIfChangeToJson(none, then.side()).is_null());
  CHECK(WhatIfText({}, then.side(), none).ends_with("\n\nno plan then: stage 0 needs 95.2 GiB of 70.2 GiB\n"));
}

TEST_CASE("no line of the table is longer than 80 columns, whatever the names") {
  Side now = Made();
  Side then = Made();
  const std::string longest(63, 'x');
  now.result.plan.pipeline_ranks[0].site = longest;
  now.result.plan.pipeline_ranks[1].site = "ü" + longest;
  now.result.plan.delta_n.assign(40, 1);
  for (size_t i = 0; i < now.result.plan.delta_n.size(); i += 2) {
    now.result.plan.delta_n[i] = 1000;
  }
  then.figures.links[0].site_a = longest;
  then.alternatives.all[0].shares.front().site = longest;
  then.result.prediction = {.iteration_ns = 999'999'000'000'000, .bubble_ratio = 1, .tokens_per_s = 9e15};
  const std::string text = WhatIfText({}, now.side(), then.side());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    INFO(text.substr(begin, end - begin));
    CHECK(DisplayWidth(text.substr(begin, end - begin)) <= 80);
    begin = end + 1;
  }
  CHECK(text.find("1000, 1, 1000, 1") != std::string::npos);
}

}  // namespace
}  // namespace geopipe
