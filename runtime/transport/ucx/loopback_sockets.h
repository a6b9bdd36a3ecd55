// The TCP connections of this process that stay on this host.
//
// Congestion control that paces by the rates it has seen (bbr, a common default) is kept off them, and reno, which
// every kernel has and lets everybody choose, is put in its place. A pipeline's messages come after pauses, so that
// pacing takes milliseconds for what loopback carries in a fraction of one, the first message after a pause worst of
// all; and where nothing can be congested nothing is lost by it. It has to be done before a socket is connected: once a
// connection has been paced, Linux goes on pacing it whatever congestion control it is given.
//
// UCX (1.13) has no setting for it and does not show its sockets. So this library has a connect and a listen of its
// own, which the program uses in place of libc's: they set the socket, if it is of 127/8, and call libc's. Not under
// the sanitizers, which do the same.
#pragma once

namespace geopipe {

// Whether they are in place. Refer to it to have them linked in. Any thread.
bool KeepsLoopbackUnpaced();

}  // namespace geopipe
