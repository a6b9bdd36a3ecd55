// One unit of bytes for a whole table.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace geopipe {

struct MemoryUnit {
  // The unit for a table whose greatest value is this.
  explicit MemoryUnit(int64_t greatest_bytes);

  // "47.8", "1.91"; "0" of nothing at all.
  std::string Of(int64_t value_bytes) const;

  int64_t bytes;
  std::string_view name;  // "KiB", "MiB", "GiB"
};

}  // namespace geopipe
