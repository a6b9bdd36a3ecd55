#include "optimizer/plan/space/choices.h"

#include <catch2/catch.hpp>
#include <vector>

namespace geopipe {
namespace {

Plan PlanOf(const std::vector<Recompute>& modes) {
  Plan plan;
  for (const Recompute mode : modes) {
    plan.Append({.site = "a", .recompute = mode}, {});
  }
  return plan;
}

constexpr Recompute kNone = Recompute::kNone;
constexpr Recompute kSelective = Recompute::kSelective;
constexpr Recompute kFull = Recompute::kFull;

TEST_CASE("what ranks recompute is told in runs, most first") {
  CHECK(RecomputeText(PlanOf({kSelective})) == "selective");
  CHECK(RecomputeText(PlanOf({kFull, kFull, kFull})) == "full");
  CHECK(RecomputeText(PlanOf({kNone, kFull})) == "full on ranks 1, none on 0");
  CHECK(RecomputeText(PlanOf({kFull, kFull, kSelective, kNone, kNone, kNone, kFull})) ==
        "full on ranks 0-1, 6, selective on 2, none on 3-5");
  CHECK(RecomputeWord(PlanOf({kFull, kFull})) == "full");
  CHECK(RecomputeWord(PlanOf({kFull, kNone})) == "mixed");
}

TEST_CASE("a mode is that of all ranks, unless they differ") {
  Plan same = PlanOf({kNone, kNone});
  SetMode({kFull, 2}, same);
  CHECK(same.SameRecompute() == kFull);
  CHECK(same.zero_stage == 2);
  Plan mixed = PlanOf({kNone, kSelective});
  SetMode({kFull, 3}, mixed);
  CHECK(mixed.pipeline_ranks[0].recompute == kNone);
  CHECK(mixed.pipeline_ranks[1].recompute == kSelective);
  CHECK(mixed.zero_stage == 3);
}

}  // namespace
}  // namespace geopipe
