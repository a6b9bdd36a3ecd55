#include "tests/simulation/ledger.h"

#include <algorithm>

namespace geopipe::simulation {

void Ledger::OnEpochBegun(const std::string& job, uint64_t run, uint64_t epoch, int32_t rank,
                          const StateIdentity& from) {
  RunTruth& truth = runs_[run];
  truth.job = job;
  if (epoch < truth.epoch) {
    world_.Break(fmt::format("job {}: a rank begins epoch {} after epoch {} had begun", job, epoch, truth.epoch));
  }
  if (epoch > truth.epoch) {
    const auto least = std::ranges::min_element(truth.next, {}, [](const auto& entry) { return entry.second; });
    if (truth.keeps && !truth.lost_memory && least != truth.next.end() && from.iteration + 1 < least->second) {
      world_.Break(fmt::format("job {}: epoch {} begins with iteration {}, and all ranks had come to {} and kept it",
                               job, epoch, from.iteration, least->second));
    }
    truth.epoch = epoch;
    truth.epoch_from = from;
  }
  if (from != truth.epoch_from) {
    world_.Break(
        fmt::format("job {}: epoch {} begins with iteration {} of epoch {} and, on rank {}, with iteration {} "
                    "of epoch {}",
                    job, epoch, truth.epoch_from.iteration, truth.epoch_from.epoch, rank, from.iteration, from.epoch));
  }
  truth.next[rank] = from.iteration;  // it may go back
  truth.progress_ns = world_.now_ns();
}

void Ledger::OnIteration(uint64_t run, uint64_t epoch, int32_t rank, int64_t iteration) {
  RunTruth& truth = runs_[run];
  if (epoch < truth.epoch && iteration >= truth.epoch_from.iteration) {
    world_.Break(fmt::format("job {}: rank {} finishes iteration {} in epoch {}, which epoch {} begins with {}",
                             truth.job, rank, iteration, epoch, truth.epoch, truth.epoch_from.iteration));
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
