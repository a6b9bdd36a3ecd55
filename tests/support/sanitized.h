// Says whether a sanitizer watches this build: tests repeat a few times there what they repeat often elsewhere.
#pragma once

namespace geopipe {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace geopipe
