// Gloo's all_reduce over TCP on this host, to compare with; where it is installed (packages.txt, group bench).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace geopipe {

// Connects rank `rank` of `size` to the others, which find each other through `folder`. Returns what adds up `count`
// floats at `data` in place, or nothing where Gloo is not installed.
std::function<void(float* data, int64_t count)> ConnectGloo(const std::string& folder, int32_t rank, int32_t size);

}  // namespace geopipe
