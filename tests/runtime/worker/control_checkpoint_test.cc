// Tests a worker's control of checkpoints: each order and each turn is answered by one report, whatever training and
// the writer are at.
#include <catch2/catch.hpp>
#include <cstdint>
#include <string>

#include "tests/runtime/worker/control_harness.h"

namespace geopipe {
namespace {

TEST_CASE("a checkpoint that is asked for in training is taken there, and reported when it is written") {
  Training worker;
  worker.Command(CheckpointOf(3, 5));
  CHECK(worker.Last<RequestCheckpoint>().iteration == 5);
  worker.Step(TakenOf(5));
  const size_t before = worker.reports.size();
  worker.Step(WrittenOf(5));
  REQUIRE(worker.reports.size() == before + 1);
  CHECK(worker.reports.back().checkpoint().iteration() == 5);
  CHECK(worker.reports.back().epoch() == 3);
  worker.Step(ReturnedOf(3, 10));
  CHECK(worker.Count<RunCheckpoint>() == 0);
}

TEST_CASE(
    "a checkpoint that training has not seen is taken when it has returned, or its iteration is told to be past") {
  Training worker;
  SECTION("before the iteration") {
    worker.Command(CheckpointOf(3, 10));
    worker.Step(ReturnedOf(3, 10, absl::OkStatus(), {10}));
    CHECK(worker.Last<RunCheckpoint>().iteration == 10);
    // Orders wait for the copy.
    worker.Command(CheckpointOf(3, 4));
    CHECK_FALSE(worker.reports.back().has_checkpoint());
    worker.Step(TakenOf(10));
    CHECK(worker.reports.back().checkpoint().error() == "rank 1 holds the state before iteration 10, not 4");
  }
  SECTION("behind it") {
    worker.Command(CheckpointOf(3, 6));
    worker.Step(ReturnedOf(3, 10, absl::OkStatus(), {6}));
    CHECK(worker.Count<RunCheckpoint>() == 0);
    CHECK(worker.reports.back().checkpoint().error() == "rank 1 holds the state before iteration 10, not 6");
  }
}

TEST_CASE("each of several checkpoints that are asked for in training is told once") {
  Training worker;
  for (const int64_t iteration : {5, 6, 10, 12}) {
    worker.Command(CheckpointOf(3, iteration));
    CHECK(worker.Last<RequestCheckpoint>().iteration == iteration);
  }
  worker.Step(TakenOf(5));
  worker.Step(WrittenOf(5));
  worker.Step(TakenOf(6, kBusy));
  worker.Step(ReturnedOf(3, 10, absl::OkStatus(), {10, 12}));
  worker.Step(TakenOf(10));
  worker.Step(WrittenOf(10));
  worker.Pass(3);
  CHECK(worker.Count<RunCheckpoint>() == 1);
  CHECK(ToldBy(worker) == Told{{5, ""},
                               {6, std::string(kBusy.message())},
                               {12, "rank 1 holds the state before iteration 10, not 12"},
                               {10, ""}});
}

TEST_CASE("the last state that has waited is saved once for requests, of it and others, that training has not seen") {
  Training worker;
  worker.Step(TakenOf(10, kBusy));
  worker.Step(WrittenOf(9));
  worker.Step(ReturnedOf(3, 10, absl::OkStatus(), {6, 10}));
  CHECK(worker.Count<RunCheckpoint>() == 1);
  worker.Step(TakenOf(10));
  worker.Step(WrittenOf(10));
  CHECK(ToldBy(worker) == Told{{9, ""}, {6, "rank 1 holds the state before iteration 10, not 6"}, {10, ""}});
}

TEST_CASE("a checkpoint that is asked for before training begins is told to be of another state") {
  Harness worker;
  worker.Open();
  worker.Command(PrepareOf(3));
  worker.Command(CheckpointOf(3, 2));
  CHECK(worker.reports.empty());
  worker.Step(PreparedOf(3));
  worker.Command(CheckpointOf(3, 4));
  CHECK(ToldBy(worker) == Told{{2, "rank 1 holds the state before iteration 0, not 2"},
                               {4, "rank 1 holds the state before iteration 0, not 4"}});
  CHECK(worker.Count<RequestCheckpoint>() == 0);
  worker.Command(CommitOf(3));
  worker.Command(CheckpointOf(3, 4));  // before its peers are connected
  CHECK(worker.Last<RequestCheckpoint>().iteration == 4);
  worker.Step(ReturnedOf(3, 0, absl::UnavailableError("no peer"), {4}));
  CHECK(ToldBy(worker).size() == 3);
  CHECK(ToldBy(worker).back() == ToldBy(worker).at(1));
}

TEST_CASE("a checkpoint that is asked for while an epoch ends, or behind its end, is taken of the state that it left") {
  Training worker;
  worker.Command(EndOf(3, 7));
  worker.Command(CheckpointOf(3, 7));
  CHECK(worker.Last<RequestCheckpoint>().iteration == 7);
  worker.Step(ReturnedOf(3, 7, absl::OkStatus(), {7}));
  CHECK(worker.reports.back().ended().next_iteration() == 7);
  worker.Step(TakenOf(7));
  worker.Step(WrittenOf(7));
  CHECK(worker.phase() == v1::WORKER_PHASE_ENDED);
  worker.Command(CheckpointOf(3, 7));
  worker.Step(TakenOf(7));
  worker.Step(WrittenOf(7));
  worker.Command(CheckpointOf(3, 8));
  CHECK(worker.Count<RequestCheckpoint>() == 1);
  CHECK(worker.Count<RunCheckpoint>() == 2);
  CHECK(ToldBy(worker) == Told{{7, ""}, {7, ""}, {8, "rank 1 holds the state before iteration 7, not 8"}});
}

TEST_CASE("a worker that is about to end tells why, and nothing of checkpoints") {
  Training worker;
  worker.Command(CheckpointOf(3, 10));
  SECTION("by an error of its own") {
    worker.Step(ReturnedOf(3, 10, absl::InternalError("why"), {10}));
    CHECK(worker.reports.back().failure().message() == "why");
  }
  SECTION("as it is told to") {
    worker.Command(StopOf());
    worker.Step(ReturnedOf(3, 10, absl::CancelledError("stopped"), {10}));
  }
  CHECK(worker.Count<RunCheckpoint>() == 0);
  CHECK(ToldBy(worker).empty());
}

TEST_CASE("the last state waits for a writer that is busy, whichever of the two is told first") {
  Training worker;
  SECTION("the writer tells while training returns") {
    worker.Step(TakenOf(10, kBusy));
    worker.Step(WrittenOf(9));
    worker.Step(ReturnedOf(3, 10));
  }
  SECTION("the writer tells afterwards") {
    worker.Step(TakenOf(10, kBusy));
    worker.Step(ReturnedOf(3, 10));
    if (worker.Count<RunCheckpoint>() > 0) {
      worker.Step(TakenOf(10, kBusy));  // it still is
    }
    worker.Step(WrittenOf(9));
  }
  SECTION("the writer has told before") {
    worker.Step(WrittenOf(9));
    worker.Step(TakenOf(10, kBusy));
    worker.Step(ReturnedOf(3, 10));
  }
  SECTION("the writer told before, and once more after the first attempt at rest") {
    worker.Step(TakenOf(10, kBusy));
    worker.Step(ReturnedOf(3, 10));
    worker.Step(WrittenOf(9));
    worker.Step(TakenOf(10, kBusy));
    worker.Pass(2);  // nobody tells anything any more
  }
  CHECK(worker.Last<RunCheckpoint>().iteration == 10);
  for (const v1::WorkerReport& report : worker.reports) {
    CHECK((!report.has_checkpoint() || report.checkpoint().iteration() == 9));  // no error of the last one
  }
  worker.Step(TakenOf(10));
  worker.Step(WrittenOf(10));
  CHECK(worker.reports.back().checkpoint().iteration() == 10);
  const int taken = worker.Count<RunCheckpoint>();
  worker.Pass(3);
  CHECK(worker.Count<RunCheckpoint>() == taken);
}

TEST_CASE("the last state that has waited is not saved again when a request has saved it") {
  Training worker;
  worker.Step(TakenOf(10, kBusy));
  worker.Command(CheckpointOf(3, 10));
  SECTION("which training has not seen") { worker.Step(ReturnedOf(3, 10, absl::OkStatus(), {10})); }
  SECTION("which comes at rest") {
    worker.Step(ReturnedOf(3, 10));
    worker.Step(TakenOf(10, kBusy));
    worker.Command(CheckpointOf(3, 10));
  }
  const int runs = worker.Count<RunCheckpoint>();
  worker.Step(WrittenOf(9));
  worker.Step(TakenOf(10));
  worker.Step(WrittenOf(10));
  worker.Pass(3);
  CHECK(worker.Count<RunCheckpoint>() == runs);
  CHECK(ToldBy(worker) == Told{{9, ""}, {10, ""}});
}

TEST_CASE("the last state that has waited is saved by a worker that is parked, and not in the next epoch") {
  Training worker;
  worker.Step(TakenOf(10, kBusy));
  worker.Step(ReturnedOf(3, 10, absl::UnavailableError("a peer is gone in the last evaluation")));
  CHECK(worker.reports.back().failure().parked());
  REQUIRE(worker.Last<RunCheckpoint>().iteration == 10);
  SECTION("of the same epoch") {
    worker.Step(TakenOf(10));
    worker.Step(WrittenOf(10));
    CHECK(ToldBy(worker) == Told{{10, ""}});
  }
  SECTION("which waits again, and is ordered on") {
    worker.Step(TakenOf(10, kBusy));
    worker.Command(PrepareOf(4, 10));
    worker.Step(PreparedOf(4, 10));
    worker.Step(WrittenOf(9));
    worker.Pass(3);
    CHECK(ToldBy(worker) == Told{{9, ""}});
  }
  CHECK(worker.Count<RunCheckpoint>() == 1);
}

TEST_CASE("a turn that finds the writer busy is reported, and training goes on") {
  Training worker;
  worker.Step(TakenOf(4, kBusy));
  CHECK(worker.reports.back().checkpoint().error() == kBusy.message());
  CHECK(worker.phase() == v1::WORKER_PHASE_TRAINING);
  worker.Step(WrittenOf(2));
  CHECK(worker.Count<RunCheckpoint>() == 0);
}

v1::WorkerCommand ReplicateOf(uint64_t epoch, int64_t iteration) {
  v1::WorkerCommand command;
  command.set_epoch(epoch);
  command.mutable_replicate()->set_iteration(iteration);
  return command;
}

ReplicaFetched FetchedOf(uint64_t epoch, int64_t iteration, const std::string& error = "") {
  ReplicaFetched fetched{.epoch = epoch, .report = {}};
  fetched.report.set_iteration(iteration);
  fetched.report.set_error(error);
  return fetched;
}

TEST_CASE("replicas are fetched from preparation on, in the epoch under way, and told with a number") {
  Harness worker;
  worker.Open();
  worker.Command(ReplicateOf(3, 4));
  CHECK(worker.Count<FetchReplica>() == 0);
  CHECK(worker.LastLog() == "passed over: replica of iteration 4 in epoch 3; this worker is in epoch 0");
  worker.Command(PrepareOf(3));
  worker.Command(ReplicateOf(3, 4));  // waits until it is prepared
  CHECK(worker.Count<FetchReplica>() == 0);
  worker.Step(PreparedOf(3));
  CHECK(worker.Count<FetchReplica>() == 1);
  worker.Command(CommitOf(3));
  worker.Step(Connected{3});
  worker.Command(ReplicateOf(3, 5));
  CHECK(worker.Last<FetchReplica>().command.iteration() == 5);
  CHECK(worker.Last<FetchReplica>().epoch == 3);
  worker.Step(FetchedOf(3, 5));
  CHECK(worker.reports.back().replica().iteration() == 5);
  CHECK(worker.reports.back().sequence() > 0);
  CHECK(worker.reports.back().epoch() == 3);
  worker.Step(ReturnedOf(3, 10));
  worker.Command(ReplicateOf(3, 10));
  CHECK(worker.Count<FetchReplica>() == 3);
  worker.Step(FetchedOf(3, 10, "why"));
  CHECK(worker.reports.back().replica().error() == "why");
  CHECK(worker.LastLog() == "no replica of iteration 10: why");
  for (const uint64_t epoch : {2, 4}) {
    worker.Command(ReplicateOf(epoch, 10));
  }
  CHECK(worker.Count<FetchReplica>() == 3);
}

TEST_CASE("a failure names the checkpoint that no node has intact") {
  Harness worker;
  worker.Open();
  worker.Command(PrepareOf(3));
  Prepared failed = PreparedOf(3);
  failed.report = absl::DataLossError("why");
  SECTION("where it is the reason") {
    failed.unreadable.emplace().set_iteration(7);
    worker.Step(failed);
    CHECK(worker.reports.back().failure().unreadable().iteration() == 7);
  }
  SECTION("and none else") {
    worker.Step(failed);
    CHECK_FALSE(worker.reports.back().failure().has_unreadable());
  }
  CHECK(worker.reports.back().failure().message() == "why");
  CHECK_FALSE(worker.reports.back().failure().parked());
  worker.Beat(worker.reports.back().sequence());
  CHECK(worker.Last<ExitWorker>().code == 1);
}

TEST_CASE("a worker says where its node's checkpoint files are fetched from") {
  Harness worker;
  worker.Open();
  worker.Pass(2);
  CHECK(worker.hellos.front().status().exchange_address() == "10.0.0.1:4000");
  CHECK(worker.heartbeats.back().heartbeat().status().exchange_address() == "10.0.0.1:4000");
}

TEST_CASE("orders of other epochs change nothing, and a manifest needs a rank that is prepared") {
  Harness worker;
  worker.Open();
  v1::WorkerCommand manifest;
  manifest.set_epoch(3);
  manifest.mutable_write_manifest()->set_iteration(4);
  worker.Command(manifest);
  CHECK(worker.Count<CompleteCheckpoint>() == 0);
  CHECK(worker.LastLog() == "passed over: manifest of iteration 4 of epoch 3, which is not prepared");
  Train(worker, 3);
  worker.Command(CheckpointOf(2, 5));
  CHECK(worker.Count<RequestCheckpoint>() == 0);
  CHECK(worker.LastLog() == "passed over: checkpoint in epoch 2; this worker is in epoch 3");
  worker.Command(manifest);
  CHECK(worker.Last<CompleteCheckpoint>().command.iteration() == 4);
}

}  // namespace
}  // namespace geopipe
