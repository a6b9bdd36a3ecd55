// The log of a device's workers, bounded: past its size the content moves to <log>.1, which replaces the one before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace geopipe::agent {

// 0 where there is none.
int64_t FileSize(const std::string& path);

// Moves a log past `max_bytes` aside, before a worker starts. A log that cannot be moved goes on growing.
void MoveLogAside(const std::string& path, int64_t max_bytes);

// Copies a log past `max_bytes` and cuts it while a worker has it open; what is written in between is lost. True when
// it was cut. Failures are logged.
bool CutLog(const std::string& path, int64_t max_bytes);

// The end of the text written from `start` on, at most `max_bytes`, as UTF-8.
std::string LastWords(const std::string& path, int64_t start, size_t max_bytes);

}  // namespace geopipe::agent
