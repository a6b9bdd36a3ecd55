// Reads how much this host's memory still holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace geopipe {

// Bytes of all of it; 0: not known.
int64_t HostMemoryBytes();

// Bytes that programs may still take without swapping: the kernel's MemAvailable, or less where a control group of this
// process (version 2 or 1) allows less; pages of files that it can give back count as free. nullopt: it is not known.
// `root`: where /proc and /sys are, for tests.
std::optional<int64_t> AvailableMemoryBytes(const std::filesystem::path& root = "/");

}  // namespace geopipe
