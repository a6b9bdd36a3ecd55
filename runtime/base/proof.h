// Proofs that two processes know one secret, which itself never travels.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace geopipe {

using Proof = std::array<std::byte, 32>;

// HMAC-SHA-256 of `statement` under `secret`.
Proof MakeProof(std::string_view secret, std::span<const std::byte> statement);

// Compares in time that does not depend on where they differ.
bool SameProof(const Proof& a, const Proof& b);

}  // namespace geopipe
