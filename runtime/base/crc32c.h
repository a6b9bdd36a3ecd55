// CRC-32C (Castagnoli polynomial 0x1EDC6F41, reflected), as in iSCSI (RFC 3720, appendix B.4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace geopipe {

// Continues `crc` (0 to begin with) over `bytes`: Crc32c(b, Crc32c(a)) is the checksum of a followed by b.
// Uses the processor's instruction where there is one.
uint32_t Crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);

// The same by table, on any processor.
uint32_t Crc32cPortable(std::span<const std::byte> bytes, uint32_t crc = 0);

}  // namespace geopipe
