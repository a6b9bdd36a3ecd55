// The version of these programs.
#pragma once

#include <cstdint>
#include <string_view>

namespace geopipe {

// The project's version as CMake states it: "0.1.0". Coordinator and agents of a federation must have the same one.
std::string_view Version();

// Version of what a worker program has in common with others: its command line, its messages to agents, coordinator and
// the other workers of its run, the memory that it leaves to its successor, and the bits that it computes. Workers of a
// run that began before an upgrade go on with the program of that time (agent/keeper.h), so they meet agents,
// coordinators and, after the loss of a node, workers of later product versions. Raised when one of these could not
// work with a program of before; kOldestWireVersion with it, unless both are understood.
inline constexpr uint32_t kWireVersion = 1;
inline constexpr uint32_t kOldestWireVersion = 1;

// True when programs of this version work with a worker of that wire version.
constexpr bool SpeaksWireVersion(uint32_t version) { return version >= kOldestWireVersion && version <= kWireVersion; }

}  // namespace geopipe
