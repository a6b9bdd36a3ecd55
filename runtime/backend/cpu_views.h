// The backend's views as the cpu kernels take them.
#pragma once

#include <absl/status/status.h>
#include <fmt/format.h>

#include "optimizer/base/check.h"
#include "runtime/backend/backend.h"
#include "runtime/backend/cpu_kernels.h"

namespace geopipe {

// Calls kernel(W()) with the widest vectors that the processor has.
template <class Kernel>
void WithWidth(const Kernel& kernel) {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                           __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  if (wide) {
    kernel(cpu::Wide());
    return;
  }
#endif
  kernel(cpu::Narrow());
}

// Calls kernel(T(), W()) with the type of the elements. Unimplemented when the kernels do not compute in it.
template <class Kernel>
absl::Status WithElements(DType dtype, const Kernel& kernel) {
  if (dtype == DType::kFp32) {
    WithWidth([&]<class W>(W width) { kernel(float(), width); });
  } else if (dtype == DType::kBf16) {
    WithWidth([&]<class W>(W width) { kernel(BFloat16(), width); });
  } else {
    return absl::UnimplementedError(
        fmt::format("the cpu backend does not compute in {}; use fp32 or bf16", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

// REQUIRES: the elements are of type T.
template <class T>
cpu::Rows<T> ToRows(const MatrixView& view) {
  GP_CHECK(view.dtype == internal::kDTypeOf<T>, "a matrix of {} where {} is needed", DTypeName(view.dtype),
           DTypeName(internal::kDTypeOf<T>));
  return {reinterpret_cast<T*>(view.data), view.rows, view.columns, view.stride};
}

template <class T>
cpu::Rows<const T> ToRows(const ConstMatrixView& view) {
  GP_CHECK(view.dtype == internal::kDTypeOf<T>, "a matrix of {} where {} is needed", DTypeName(view.dtype),
           DTypeName(internal::kDTypeOf<T>));
  return {reinterpret_cast<const T*>(view.data), view.rows, view.columns, view.stride};
}

template <class View>
View Sub(const View& view, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  View sub = view;
  sub.data += (row * view.stride + column) * ByteSize(view.dtype);
  sub.rows = rows;
  sub.columns = columns;
  return sub;
}

// A matrix whose rows lie together.
inline MatrixView Fp32View(float* data, int64_t rows, int64_t columns) {
  return {.data = reinterpret_cast<std::byte*>(data), .rows = rows, .columns = columns, .stride = columns};
}

// to = from, rounded to its type, which may be another. Unimplemented when either is not fp32 or bf16.
absl::Status ConvertRows(int threads, const ConstMatrixView& from, const MatrixView& to);

}  // namespace geopipe
