#include "coordinator/core/telemetry/iteration_log.h"

#include <catch2/catch.hpp>

namespace geopipe {
namespace {

v1::IterationReport Report(int32_t rank, int64_t iteration, int64_t duration_ns = 1000) {
  v1::IterationReport report;
  report.set_rank(rank);
  report.set_iteration(iteration);
  report.set_duration_ns(duration_ns);
  report.set_busy_ns(500);
  report.set_loss(5.0 - static_cast<double>(iteration));
  return report;
}

TEST_CASE("an iteration is complete when all ranks and all iterations before it are") {
  IterationLog log(2, 0, 100);
  CHECK(log.OnReport(Report(0, 0)) == 0);
  CHECK(log.OnReport(Report(0, 0)) == 0);  // twice
  CHECK(log.OnReport(Report(0, 1)) == 0);
  CHECK(log.reached() == 2);
  CHECK(log.OnReport(Report(1, 0)) == 1);
  CHECK(log.OnReport(Report(1, 1)) == 1);
  CHECK(log.next() == 2);
  CHECK(log.Get(1).loss() == 4.0);
  CHECK(log.Get(0).bubble_ratio() == Approx(0.5));
  CHECK_FALSE(log.Get(0).incomplete());
}

TEST_CASE("the work of many ranks of an iteration that takes a year does not overflow") {
  constexpr int64_t kYearNs = int64_t{365} * 24 * 3600 * 1'000'000'000;
  constexpr int32_t kRanks = 1000;
  IterationLog log(kRanks, 0, 100);
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    v1::IterationReport report = Report(rank, 0, kYearNs);
    report.set_busy_ns(kYearNs / 2);
    log.OnReport(report);
  }
  REQUIRE(log.next() == 1);
  CHECK(log.Get(0).bubble_ratio() == Approx(0.5));
}

TEST_CASE("a lost report holds nothing up: its iteration is told as far as it is known") {
  IterationLog log(2, 0, 100);
  CHECK(log.OnReport(Report(0, 0)) == 0);
  CHECK(log.OnReport(Report(0, 1)) == 0);
  CHECK(log.OnReport(Report(1, 1)) == 2);  // rank 1 will not tell of iteration 0 any more
  CHECK(log.Get(0).incomplete());
  CHECK(log.Get(0).duration_ns() == 1000);
  CHECK_FALSE(log.Get(1).incomplete());
  CHECK(log.OnReport(Report(0, 4)) == 0);
  CHECK(log.OnReport(Report(1, 4)) == 3);  // both have lost two: they are told all the same
  CHECK(log.Get(2).incomplete());
  CHECK_FALSE(log.Get(2).has_loss());
  CHECK(log.next() == 5);
  CHECK(log.OnRankAt(0, 7) == 0);
  CHECK(log.OnRankAt(1, 6) == 1);
  CHECK(log.next() == 6);
  CHECK(log.Measure(512)->iterations() == 1);  // after the warm-up the one that is complete: iteration 4
}

TEST_CASE("a plan that begins where an earlier run has been keeps what reaches up to it") {
  IterationLog log(1, 0, 100);
  for (int64_t i = 0; i < 5; ++i) {
    log.OnReport(Report(0, i));
  }
  IterationLog same = log;
  same.BeginAt(2, 5, 100);
  CHECK(same.oldest() == 0);
  CHECK(same.next() == 5);
  CHECK(same.OnReport(Report(0, 5)) == 0);
  CHECK(same.OnReport(Report(1, 5)) == 1);
  IterationLog earlier = log;
  earlier.BeginAt(1, 3, 100);
  CHECK(earlier.oldest() == 0);
  CHECK(earlier.next() == 3);
  CHECK(earlier.Get(2).loss() == 3.0);
  IterationLog later = log;
  later.BeginAt(1, 7, 100);
  CHECK(later.oldest() == 7);
  CHECK(later.next() == 7);
}

TEST_CASE("medians leave out the warm-up and are taken over what is kept") {
  IterationLog log(1, 0, 1000);
  CHECK_FALSE(log.Measure(512).has_value());
  log.OnReport(Report(0, 0, 9000));
  CHECK(log.Measure(512)->iteration_ns() == 9000);  // never nothing
  for (int64_t i = 1; i < 3; ++i) {
    log.OnReport(Report(0, i, 9000));
  }
  for (int64_t i = 3; i < 60; ++i) {
    log.OnReport(Report(0, i, i < 6 ? 8000 : 1000));
  }
  CHECK(log.Measure(512)->iterations() == 54);  // the first tenth, 6, left out
  CHECK(log.Measure(512)->iteration_ns() == 1000);
  CHECK(log.Measure(512)->tokens_per_s() == Approx(512e6));
}

TEST_CASE("only the latest iterations are kept, and a rank that tells nothing is waited for within a bound") {
  IterationLog log(2, 0, 4);
  for (int64_t i = 0; i < 10; ++i) {
    log.OnReport(Report(0, i));
    log.OnReport(Report(1, i));
  }
  CHECK(log.oldest() == 6);
  const auto bound = static_cast<int64_t>(IterationLog::kMaxPending);
  for (int64_t i = 10; i < 10 + bound + 5; ++i) {
    log.OnReport(Report(0, i));
  }
  CHECK(log.next() == 15);
  CHECK(log.Get(14).incomplete());
}

TEST_CASE("what was stored goes on: complete iterations, partial ones, and each new partial report once") {
  IterationLog log(2, 0, 100);
  for (int64_t i = 0; i < 3; ++i) {
    log.OnReport(Report(0, i));
    log.OnReport(Report(1, i));
  }
  log.OnReport(Report(0, 3));
  const std::vector<v1::IterationReport> partial = log.TakeNewPartials();
  REQUIRE(partial.size() == 1);
  CHECK(partial[0].iteration() == 3);
  CHECK(log.TakeNewPartials().empty());
  log.OnReport(Report(0, 4));
  CHECK(log.TakeNewPartials().size() == 1);

  IterationLog restored = IterationLog::Restore(2, 100, 0, 3, {log.Get(0), log.Get(1), log.Get(2)}, partial);
  CHECK(restored.next() == 3);
  CHECK(restored.oldest() == 0);
  CHECK(restored.TakeNewPartials().empty());
  CHECK(restored.OnReport(Report(0, 3)) == 0);  // told again
  CHECK(restored.OnReport(Report(1, 3)) == 1);
  CHECK_FALSE(restored.Get(3).incomplete());
}

TEST_CASE("an epoch that ended early leaves nothing of the iteration it broke off") {
  IterationLog log(2, 0, 100);
  log.BeginEpoch(1, log.next());
  log.OnReport(Report(0, 0));
  log.OnReport(Report(1, 0));
  log.OnReport(Report(0, 1));
  log.BeginEpoch(2, 1);
  CHECK(log.OnReport(Report(1, 1)) == 0);
  CHECK(log.OnReport(Report(0, 1, 7000)) == 1);
  CHECK(log.Get(0).epoch() == 1);
  CHECK(log.Get(1).epoch() == 2);
  CHECK(log.Get(1).duration_ns() == 7000);
}

}  // namespace
}  // namespace geopipe
