// AMX tiles: a probe of whether this machine computes with them. Flags of the processor do not tell, for virtual
// machines show them that fault on the first tile.
#pragma once

namespace geopipe::cpu {

// Multiplies two small bf16 matrices by tiles in a child process, once per process. Returns true when the child ends
// with the right result. Any thread.
bool AmxWorks();

}  // namespace geopipe::cpu
