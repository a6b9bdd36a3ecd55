// A sweep for people (a table and what it comes to), for spreadsheets (CSV) and for programs (JSON).
#pragma once

#include <string>

#include "coordinator/cli/plan_output.h"
#include "optimizer/plan/sweep.h"

namespace geopipe {

std::string SweepText(const Sweep& sweep);

// One line per point and schedule; the first one names the columns. Base units; ΔN of several crossings with blanks
// between them; empty where there is no plan.
std::string SweepCsv(const Sweep& sweep);

// {"axes":[{"key","values"}…],"points":[{…the swept figures…,"results":[…]}…],"knees":[…],"summary":[…]}.
Json SweepToJson(const Sweep& sweep);

}  // namespace geopipe
