#include "runtime/backend/cpu_views.h"

namespace geopipe {

absl::Status ConvertRows(int threads, const ConstMatrixView& from, const MatrixView& to) {
  CheckSameShape(from, to);
  absl::Status status;
  const absl::Status outer = WithElements(from.dtype, [&]<class From, class W>(From, W) {
    status = WithElements(to.dtype, [&]<class To, class W2>(To, W2) {
      cpu::VectorKernels<W>::template Convert<From, To>(threads, ToRows<From>(from), ToRows<To>(to));
    });
  });
  return outer.ok() ? status : outer;
}

}  // namespace geopipe
