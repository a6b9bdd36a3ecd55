// AMX tiles: a probe of whether this machine computes with them. Flags of the processor do not tell, for virtual
// machines show them that fault on the first tile.
#pragma once

namespace geopipe::cpu {

// Runs `work` in a child process and returns true when it returns true there. A fault ends the child alone, without a
// word and without a core file, whatever handlers this process has. `work` allocates nothing: another thread may have
// held the allocator's lock when the child was forked. Waits for the child. Any thread.
bool SucceedsInChild(bool (*work)());

// Multiplies two small bf16 matrices by tiles in a child process, once per process. Returns true when the child ends
// with the right result. Any thread.
bool AmxWorks();

}  // namespace geopipe::cpu
