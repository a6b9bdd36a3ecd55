// The weight update: AdamW (arXiv 1711.05101) exactly as PyTorch's, with global-norm clipping and a warm-up and cosine
// learning rate.
#pragma once

#include <cstdint>
#include <optional>

#include "optimizer/model/job_spec.h"
#include "runtime/backend/backend.h"

namespace geopipe {

// The learning rate of `iteration`, from 0: lr * (i + 1) / warmup while i < warmup, then min + (lr - min) / 2 * (1 +
// cos(pi * (i - warmup) / (iterations - warmup))); constant after the warm-up when no minimum is given.
double LearningRate(const TrainingSpec& training, int64_t iteration);

// The factor of all gradients: min(1, clip / (norm + 1e-6)).
double ClipScale(double grad_clip, double grad_norm);

// An update without its vectors. `grad_norm`: the global norm, for clipping; nullopt: no clipping. `decays`: weight
// decay applies (to all weights but those of norms).
AdamWStep MakeAdamWStep(const TrainingSpec& training, int64_t iteration, std::optional<double> grad_norm, bool decays);

}  // namespace geopipe
