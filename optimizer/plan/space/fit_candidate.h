// Makes a candidate fit its memory, and finds the layers and ΔN that are best with its other choices.
#pragma once

#include <cstdint>
#include <vector>

#include "optimizer/plan/space/candidate_model.h"

namespace geopipe {

// The split with the least largest stage time under the candidate's ΔN; the even one when the job wants that or none
// fits.
std::vector<int32_t> BalancedLayers(const CandidateModel& model, const Candidate& candidate);

// ceil(2 D_k / t) of every crossing, CandidateModel::max_delta_n at most.
std::vector<int32_t> HidingDeltaN(const CandidateModel& model, const Candidate& candidate);

// Lowers ΔN alone until the candidate fits or no ΔN is left that could help; true when it fits. Goes from the last
// stage to the first, each as far as it needs, and lowers the largest of the ΔN that bear on it first.
bool LowerDeltaN(const CandidateModel& model, Candidate& candidate);

// Moves a layer from the stage to the one that has room for it and takes the least time with it; false: there is none.
bool MoveOneLayer(const CandidateModel& model, Candidate& candidate, int32_t from);

// True when some split of the layers that the job allows may fit, with the candidate's other choices.
bool MayFit(const CandidateModel& model, const Candidate& candidate);

}  // namespace geopipe
