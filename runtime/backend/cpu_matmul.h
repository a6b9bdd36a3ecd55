// Matrix products of the cpu backend: oneDNN primitives, made once per shape and kept.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/backend/backend.h"

namespace geopipe::cpu {

// The way in which a product of two bf16 matrices is computed.
enum class Bf16Products : uint8_t {
  kNative,     // by the processor's bf16 instructions
  kConverted,  // as the product of their fp32 values
};

// Returns kNative where the processor has such instructions (AVX512_BF16, or AMX that works). On others oneDNN either
// has no bf16 products or makes them three times slower than those of fp32.
Bf16Products BestBf16Products();

// The widest instructions that products use: "AVX2", "AVX-512", "AVX-512 BF16", "AMX".
std::string_view ProductInstructions();

// Runs on exactly `threads` OpenMP threads; where k is long and m and n are short, oneDNN divides k among them, so that
// a result's last bits depend on their number.
//
// A product of bf16 matrices with kConverted is a product of tiles, converted to fp32 one after the other, so that no
// matrix is converted as a whole.
//
// oneDNN's scratchpad is kept, so a product whose shape is known allocates nothing. It does not count as the device's
// memory, like all memory of libraries: its size depends on the processor, a few MiB for each thread. The same holds
// for the converted tiles: 3 MiB.
class MatMulCache {
 public:
  // Internal: oneDNN's own error.
  static absl::StatusOr<std::unique_ptr<MatMulCache>> Create(int threads, Bf16Products bf16_products);

  MatMulCache(const MatMulCache&) = delete;
  MatMulCache& operator=(const MatMulCache&) = delete;
  ~MatMulCache();

  // True when products of bf16 run on AMX tiles.
  bool UsesAmx() const;

  // While on, products are checked and their primitives made, but nothing is computed.
  void RunDry(bool on);
  int64_t primitives() const;

  // See Backend::MatMul. Unimplemented: the operands are neither fp32 nor bf16. Internal: oneDNN's own error.
  absl::Status Run(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const Addend& addend,
                   const MatrixView& c);

 private:
  struct State;

  explicit MatMulCache(std::unique_ptr<State> state);

  // Products that oneDNN has: of fp32 matrices, or a and b bf16 and c either.
  absl::Status RunPrimitive(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const Addend& addend,
                            const MatrixView& c);
  // Products of bf16 matrices, by tiles of fp32.
  absl::Status RunTiles(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const Addend& addend,
                        const MatrixView& c);

  absl::Status Convert(const ConstMatrixView& from, const MatrixView& to) const;
  absl::Status NoProduct(const Addend& addend, const MatrixView& c);

  std::unique_ptr<State> state_;
};

}  // namespace geopipe::cpu
