// The TCP ports a process listens on, over IPv4.
#pragma once

#include <cstdint>
#include <set>

namespace geopipe {

// Empty when there is no such process.
std::set<uint16_t> ListeningPorts(int64_t pid);

}  // namespace geopipe
