// The GPUs of this machine, and how a playground's devices share them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace geopipe {

// Ordinals, or UUIDs where `visible`, the value of CUDA_VISIBLE_DEVICES, has them: those it names, or where it is empty
// one for each file nvidia0, nvidia1, … of `devices`. At least one, so that a worker says why there is none.
std::vector<std::string> GpusHere(std::string_view visible, const std::filesystem::path& devices = "/dev");

// Keys of an agent's devices (", ordinals: [0, 1]") that give its `count` devices, of which the first is number `first`
// of the machine's, GPUs in turn. REQUIRES: at least one GPU.
std::string GpuKeys(std::span<const std::string> gpus, int32_t first, int32_t count);

}  // namespace geopipe
