#include "runtime/backend/backend.h"

#include "optimizer/base/check.h"

namespace geopipe {

MatrixView ViewOf(const Tensor& tensor) {
  GP_CHECK(!tensor.shape().empty(), "a view of an empty tensor");
  const int64_t columns = tensor.shape().back();
  return {.data = tensor.data(),
          .rows = tensor.elements() / columns,
          .columns = columns,
          .stride = columns,
          .dtype = tensor.dtype()};
}

}  // namespace geopipe
