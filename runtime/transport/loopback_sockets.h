// The TCP connections of this process that stay on this host.
#pragma once

namespace geopipe {

// Takes congestion control that paces by the rates it has seen (bbr, a common default) off this process's established
// loopback TCP connections, and puts reno in its place, which every kernel has and lets everybody choose. A pipeline's
// messages come after pauses, so that such pacing takes milliseconds for what loopback carries in microseconds; and
// where nothing can be congested nothing is lost by it. UCX does not show its sockets: they are found among the
// process's descriptors. Returns how many connections were changed. Any thread; what cannot be changed stays as it is.
int UnpaceLoopbackSockets();

}  // namespace geopipe
