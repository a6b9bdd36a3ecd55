// A run that has broken a rule, made small enough to be understood.
#pragma once

#include <string>

#include "tests/simulation/simulation.h"

namespace geopipe::simulation {

// The fewest faults found that still break a rule: the shortest prefix, and of it what is needed. `outcome` is of a run
// with these options that has broken one.
Outcome Shrink(const Options& options, Outcome outcome);

// The rule, when it was broken, the faults, and how to see it again.
std::string Report(const Options& options, const Outcome& outcome);

}  // namespace geopipe::simulation
