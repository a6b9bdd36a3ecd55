// Seeded storms of events: whatever comes in whatever order, the rules that Federation checks on every effect hold, and
// the core still serves afterwards.
#include <catch2/catch.hpp>
#include <random>

#include "tests/coordinator/core/federation.h"
#include "tests/support/seed.h"

namespace geopipe {
namespace {

class Storm {
 public:
  // Begins anywhere in a job's life: from nothing, chance alone would seldom get as far as RUNNING.
  // Every third has its links probed.
  explicit Storm(uint64_t seed)
      : f(seed % 3 == 0 ? Federation::ProbingOptions() : Federation::DefaultOptions()), random_(seed) {
    constexpr JobState kBegin[] = {v1::JOB_STATE_PENDING, v1::JOB_STATE_PROFILING, v1::JOB_STATE_PLANNING,
                                   v1::JOB_STATE_DEPLOYING, v1::JOB_STATE_RUNNING};
    const JobState begin = kBegin[Pick(5)];
    if (begin != v1::JOB_STATE_PENDING) {
      for (const std::string& site : f.sites) {
        f.Register(site);
      }
      f.AnswerProbes();
    }
    f.DriveTo(begin);
  }

  void Act() {
    const std::string site = f.sites[Pick(3)];
    const auto rank = static_cast<int32_t>(Pick(3));
    switch (Pick(28)) {
      case 24:
        f.OpenProbe();
        return;
      case 25:
        f.MeasureProbe();
        return;
      case 26:
        if (Pick(3) == 0) {
          f.FailProbe();
        }
        return;
      case 27:
        f.AnswerProbes();
        return;
      case 0:
        f.Step(ApplyJob{f.next_call++, Federation::TinyJob(), {}});
        return;
      case 1:
        if (Pick(4) == 0) {
          f.Step(CancelJob{f.next_call++, "tiny", ""});
        }
        return;
      case 2:
        if (Pick(4) == 0) {
          f.Close(f.sessions[site]);
        }
        return;
      case 3:
        f.Register(site, 1 + Pick(2),
                   Pick(2) == 0 ? std::vector<v1::WorkerId>{f.IdOf({site, "n0", 0})} : std::vector<v1::WorkerId>{});
        return;
      case 4:
        if (Pick(8) == 0) {
          f.Exit({site, "n0", 0}, static_cast<int>(Pick(2)) * 9, 1);
        }
        return;
      case 5:
        f.RunFor(static_cast<int64_t>(Pick(3)) * 1'000'000'000);
        return;
      case 6:
        f.Step(WatchStart{f.next_call++, "tiny", 0, static_cast<int64_t>(Pick(4))});
        return;
      case 7:
        f.Step(WatchMore{1 + Pick(f.next_call), 2});
        return;
      case 8:
        f.Step(WatchStop{1 + Pick(f.next_call)});
        return;
      case 9:
        f.Answer(site, FailureReportOf(absl::StatusCode::kUnavailable, "peer"));
        return;
      case 10:
        if (!f.planning.empty()) {
          const StartPlanning request = f.planning[Pick(f.planning.size())];  // perhaps an old one
          f.Step(PlannerDone{request.job, request.incarnation, Federation::PlanFor(request.input), "secret"});
        }
        return;
      case 11:
        f.Answer(site, PreparedReportOf(rank, 1 + Pick(2)));
        return;
      case 12:
        f.Answer(site, CommittedReportOf(rank, 1 + Pick(2)));
        return;
      case 13:
        f.Answer(site, IterationReportOf(rank, 1, static_cast<int64_t>(Pick(4))));
        return;
      case 14:
        f.Answer(site, FinishedReportOf(rank, 1, 3));
        return;
      case 15:
      case 16:
      case 17:
        f.HelloAll();
        return;
      case 18:
        f.ProfileAll();
        return;
      case 19:
        f.PrepareAll();
        return;
      case 20:
        f.CommitAll();
        return;
      case 21:
        f.IterateAll(static_cast<int64_t>(Pick(3)));
        return;
      default:
        f.FinishAll();
        return;
    }
  }

  Federation f;

 private:
  uint64_t Pick(uint64_t below) { return random_() % below; }

  std::mt19937_64 random_;
};

TEST_CASE("no storm of events breaks the core's rules") {
  const uint64_t seed = TestSeed();
  INFO("GEOPIPE_TEST_SEED=" << seed);
  std::map<JobState, int> reached;
  int probes = 0;
  for (uint64_t round = 0; round < 400; ++round) {
    INFO("round " << round);
    Storm storm(seed + round);
    for (int i = 0; i < 150; ++i) {
      storm.Act();
    }
    REQUIRE(storm.f.broken == "");
    probes += storm.f.probes;
    for (const auto& [state, times] : storm.f.reached) {
      reached[state] += times;
    }
  }
  // The storm is worth something only if it gets far.
  for (const JobState state : {v1::JOB_STATE_PROFILING, v1::JOB_STATE_PLANNING, v1::JOB_STATE_DEPLOYING,
                               v1::JOB_STATE_RUNNING, v1::JOB_STATE_FAILED, v1::JOB_STATE_CANCELLED}) {
    INFO(JobStateName(state));
    CHECK(reached[state] > 0);
  }
  CHECK(probes > 300);
}

}  // namespace
}  // namespace geopipe
