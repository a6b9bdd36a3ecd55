#include "tests/simulation/ledger.h"

#include <algorithm>

namespace geopipe::simulation {

void Ledger::OnEpochBegun(const std::string& job, uint64_t run, uint64_t epoch, int64_t first_iteration) {
  RunTruth& truth = runs_[run];
  truth.job = job;
  if (epoch < truth.epoch) {
    world_.Break(fmt::format("job {}: a rank begins epoch {} after epoch {} had begun", job, epoch, truth.epoch));
  }
  if (epoch > truth.epoch) {
    truth.epoch = epoch;
    truth.epoch_first = first_iteration;
  }
  truth.progress_ns = world_.now_ns();
}

void Ledger::OnIteration(uint64_t run, uint64_t epoch, int32_t rank, int64_t iteration) {
  RunTruth& truth = runs_[run];
  if (epoch < truth.epoch && iteration >= truth.epoch_first) {
    world_.Break(fmt::format("job {}: rank {} finishes iteration {} in epoch {}, which epoch {} begins with {}",
                             truth.job, rank, iteration, epoch, truth.epoch, truth.epoch_first));
  }
  int64_t& next = truth.next[rank];
  if (iteration != next) {
    world_.Break(fmt::format("job {}: rank {} finishes iteration {} and its last one was {}", truth.job, rank,
                             iteration, next - 1));
  }
  next = iteration + 1;
  truth.progress_ns = world_.now_ns();
  ++iterations_;
}

}  // namespace geopipe::simulation
