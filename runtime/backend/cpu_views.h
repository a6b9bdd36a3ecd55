// The backend's views as the cpu kernels take them.
#pragma once

#include <absl/status/status.h>
#include <fmt/format.h>

#include "runtime/backend/backend.h"
#include "runtime/backend/cpu_kernels.h"

namespace geopipe {

template <typename... Views>
absl::Status CheckFp32(const Views&... views) {
  for (const DType dtype : {views.dtype...}) {
    if (dtype != DType::kFp32) {
      return absl::UnimplementedError(
          fmt::format("the cpu backend does not compute in {}; use precision fp32", DTypeName(dtype)));
    }
  }
  return absl::OkStatus();
}

inline cpu::Rows ToRows(const MatrixView& view) {
  return {reinterpret_cast<float*>(view.data), view.rows, view.columns, view.stride};
}

inline cpu::ConstRows ToRows(const ConstMatrixView& view) {
  return {reinterpret_cast<const float*>(view.data), view.rows, view.columns, view.stride};
}

}  // namespace geopipe
