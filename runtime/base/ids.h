// Randomness from the operating system, for names and secrets; never for anything that has to be reproducible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace geopipe {

// Returns an incarnation, which names one life of one process. Never 0.
uint64_t RandomId();

// `count` bytes fit for a secret.
std::string RandomBytes(size_t count);

}  // namespace geopipe
