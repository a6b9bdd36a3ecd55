// Says whether a sanitizer watches this build: tests repeat a few times there what they repeat often elsewhere.
#pragma once

namespace geopipe {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitized = true;  // what has one thread and takes long has nothing to show
#else
inline constexpr bool kThreadSanitized = false;
#endif

// kKeepsBlocks: allocators keep what is freed for the next of the same size (runtime/tensor/allocator.cc). Where they
// do not, a device's queues wait for each other at every free.
#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
inline constexpr bool kKeepsBlocks = false;
#else
inline constexpr bool kSanitized = kThreadSanitized;
inline constexpr bool kKeepsBlocks = true;
#endif

}  // namespace geopipe
