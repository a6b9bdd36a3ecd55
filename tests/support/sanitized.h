// Says whether a sanitizer watches this build: tests repeat a few times there what they repeat often elsewhere.
#pragma once

namespace geopipe {

#ifdef __SANITIZE_THREAD__
inline constexpr bool kThreadSanitized = true;  // what has one thread and takes long has nothing to show
#else
inline constexpr bool kThreadSanitized = false;
#endif

#ifdef __SANITIZE_ADDRESS__
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = kThreadSanitized;
#endif

}  // namespace geopipe
