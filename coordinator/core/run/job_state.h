// The states of a job and the moves allowed between them, as one table.
#pragma once

#include <span>

#include "geopipe/v1/control_service.pb.h"
#include "proto/wire/control_wire.h"  // JobStateName, IsFinal

namespace geopipe {

// The wire's enumeration is the state itself; its names (JobStateName, IsFinal) live with the wire, its rules here.
using JobState = v1::JobState;

// True if a job may go from `from` to `to`. A new job begins in PENDING.
bool MayFollow(JobState from, JobState to);

// All states in the order of a job's life.
std::span<const JobState> AllJobStates();

}  // namespace geopipe
