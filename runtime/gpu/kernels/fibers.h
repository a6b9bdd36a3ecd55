// CUDA threads on a processor: device_language.h includes this where no CUDA compiler is at work. A launch runs its
// blocks one after the other; each CUDA thread of a block is a fiber, and a warp's threads run as far as they can
// before another warp's do. Faults in a kernel's use of barriers and shuffles end the process with a sentence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace geopipe::gpu {

// NOLINTBEGIN(bugprone-reserved-identifier): these names, here and below, are CUDA's.

struct dim3 {
  unsigned x;
  unsigned y;
  unsigned z;

  explicit constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

extern constinit thread_local dim3 threadIdx;  // of the fiber that runs
extern constinit thread_local dim3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;

// Barriers of the block. All its threads have to wait at the same place of the source: neither at others, nor may any
// have returned.
void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE());
// A barrier that returns whether `predicate` is not 0 for any thread of the block.
int __syncthreads_or(int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE());

namespace emulation {

// Waits until all lanes of `mask` shuffle with this mask; returns the word of lane `source`, which is one of them.
uint64_t Shuffle(unsigned mask, uint64_t word, unsigned source);

// Order in which threads of a block run between two barriers, warps of a block and lanes of a warp.
enum class ThreadOrder : uint8_t { kAscending, kDescending, kShuffled };

// Settings of all launches. They may be changed while none runs.
struct Settings {
  ThreadOrder order = ThreadOrder::kAscending;
  uint64_t seed = 0;  // of kShuffled, which draws anew at each barrier
  // Counts a launch's barriers from 0; that one lets threads pass. -1: none.
  int ignored_barrier = -1;
  // Takes a launch's work and returns 0, or the error of the launch. Empty: it is done at once.
  std::function<int32_t(void* stream, std::function<void()> work)> submit = {};
  // The processor's address of an address of device memory; null: they are the same.
  void* (*processor_address)(void* device_address) = nullptr;
};
Settings& TheSettings();

// Barriers that a block of the calling thread's last launch reached, at most.
int BarriersOfLastLaunch();

// Checks that a GPU could access so many bytes at the address as a whole.
void CheckAligned(const void* address, size_t bytes);

// Memory that the threads of a block share, of one place in the source: NaNs at first, and exactly `bytes` large.
std::byte* SharedBytes(const void* place, size_t bytes);
template <class T>
T* Shared(const void* place, int count) {
  return reinterpret_cast<T*>(SharedBytes(place, static_cast<size_t>(count) * sizeof(T)));
}

// Runs body() for each thread of each block. The calling thread is the emulated device meanwhile.
void Run(dim3 grid, int threads, const std::function<void()>& body);

int32_t Submit(void* stream, std::function<void()> work);

// An argument of a kernel as the processor takes it.
template <class T>
T OnProcessor(T value) {
  return value;
}
template <class T>
T* OnProcessor(T* address) {
  const auto translate = TheSettings().processor_address;
  if (translate == nullptr || address == nullptr) {
    return address;
  }
  return static_cast<T*>(translate(const_cast<void*>(static_cast<const void*>(address))));
}

}  // namespace emulation

template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof(T));
  word = emulation::Shuffle(mask, word, threadIdx.x % 32 ^ static_cast<unsigned>(lane_mask));
  std::memcpy(&value, &word, sizeof(T));
  return value;
}

// NOLINTEND(bugprone-reserved-identifier)

}  // namespace geopipe::gpu
