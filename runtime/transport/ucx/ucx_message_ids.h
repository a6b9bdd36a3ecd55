// Active message numbers between workers. Part of the wire format.
#pragma once

namespace geopipe {

inline constexpr unsigned kHandshakeMessageId = 1;
inline constexpr unsigned kFrameMessageId = 2;

}  // namespace geopipe
