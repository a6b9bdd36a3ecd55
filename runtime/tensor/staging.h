// Moves data between a device's memory and the host: through staging buffers of the tensor's allocator. Where the
// device's memory is the host's, the tensor itself is the staging buffer, and nothing is copied.
#pragma once

#include <absl/functional/function_ref.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "runtime/tensor/completion.h"
#include "runtime/tensor/tensor.h"

namespace geopipe {

// Enqueues the copy of a tensor to one of the same size; both are in memory that one device reaches.
absl::Status Copy(const Tensor& from, const Tensor& to, Queue queue = Queue::kCompute);

// Gives the tensor, in order with kernels, the elements that `fill` writes to a host tensor of the same type and shape.
// Does not wait. Errors: those of `fill`, of staging memory and of the device.
absl::Status FillFromHost(const Tensor& tensor, absl::FunctionRef<absl::Status(const Tensor&)> fill);

// Tensors of more bytes than kMaxWholeBytes cross in runs, through two staging buffers that they take turns in.
inline constexpr int64_t kMaxWholeBytes = int64_t{1} << 20;
inline constexpr int64_t kRunBytes = int64_t{16} << 20;

// The same for a tensor of any size: waits for the copy, and takes no more staging memory than two runs. A tensor
// longer than one is filled in memory that the device does not reach. Errors: FillFromHost's.
absl::Status FillInRuns(const Tensor& tensor, absl::FunctionRef<absl::Status(const Tensor&)> fill);

// Enqueues a copy of the tensor, as the kernels enqueued before leave it, to a staging buffer. Where its memory is the
// host's, the value is empty, and the tensor itself is what becomes ready. Does not wait.
absl::StatusOr<Timed<Tensor>> StagedCopy(const Tensor& tensor);

// Waits until all kernels enqueued before are done, and shows `read` the tensor's contents, in memory that the device
// does not reach if they are longer than a run. Errors: those of staging memory and of the device.
absl::Status ReadOnHost(const Tensor& tensor, absl::FunctionRef<void(const Tensor&)> read);

// The tensor in host memory, copied on the out queue when it is ready. Does not wait; keeps the category.
absl::StatusOr<Timed<Tensor>> ToHost(Timed<Tensor> tensor);

// A tensor in `allocator`'s memory with the elements of one in host memory, which is ready; copied on the in queue.
// Does not wait; of `category`.
absl::StatusOr<Timed<Tensor>> ToDevice(Timed<Tensor> host, Allocator& allocator, MemoryCategory category);

}  // namespace geopipe
