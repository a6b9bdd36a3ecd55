// Bugs of the product that rules of the simulation make allowance for, until they are mended.
#pragma once

namespace geopipe::simulation {

// Whether nodes keep what is newer than the newest checkpoint that is listed. As long as they do not, one may be listed
// that some node has removed, and jobs keep more than can be under way at once.
inline constexpr bool kNewerStay = false;

// The last state of a job may never be written when an agent or the coordinator is restarted meanwhile.
inline constexpr bool kLastStateMayHang = true;

}  // namespace geopipe::simulation
