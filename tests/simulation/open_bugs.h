// Bugs of the product that rules of the simulation make allowance for, until they are mended.
#pragma once

namespace geopipe::simulation {

// Whether nodes keep what is newer than the newest checkpoint that is listed. As long as they do not, one may be listed
// that some node has removed, and jobs keep more than can be under way at once.
inline constexpr bool kNewerStay = true;

// A checkpoint that a job waits for, with its last state or to leave a site, may never come about when an agent or the
// coordinator is restarted meanwhile.
inline constexpr bool kCheckpointMayHang = false;

// A rank that goes back to an earlier iteration tells for a moment that it is further in its new epoch, which passes
// for progress: the next loss is taken for the first.
inline constexpr bool kGoingBackIsProgress = false;

}  // namespace geopipe::simulation
