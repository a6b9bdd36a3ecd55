// The keeper's process, `geopipe-agent --keeper STATE_DIR`: one thread that sleeps in poll until a worker ends, an
// agent sends something or logs are due for a check, and one that writes the table. An agent that finds no keeper
// starts one; the keeper outlives it (under systemd with KillMode=process) and exits by itself when nobody needs it.
// SIGTERM tells it that the node goes down: jobs write their states and leave, as far as they can within its grace.
//
// The state folder holds keeper.lock (one keeper per folder), keeper.sock (mode 0600; only this user is heard),
// keeper.table (running and ended workers, so that a keeper that is killed loses neither) and logs/keeper.log.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/base/unique_fd.h"

namespace geopipe::agent {

struct KeeperOptions {
  std::string state_dir;
  bool die_with_parent = false;               // the workers are killed when the keeper ends
  int64_t look_interval_ns = 10'000'000'000;  // at the logs, and whether the folder is there
  int64_t leave_grace_ns = 90'000'000'000;    // from SIGTERM to the end of the workers
  size_t last_words_bytes = 4096;
};

// The memory for states that a process has under this descriptor number. Not valid when it cannot be opened or is none
// that a keeper has made: the process may have closed it, and then the number is another file's.
UniqueFd OpenStateMemory(int64_t pid, int32_t number);

// Runs until there is nothing left to keep. Errors: AlreadyExists when another keeper has the folder; otherwise what is
// wrong with it.
absl::Status RunKeeper(const KeeperOptions& options);

// Limit on one packet of the protocol between agent and keeper.
inline constexpr size_t kMaxKeeperPacketBytes = size_t{128} << 10;

std::string KeeperSocketPath(const std::string& state_dir);

}  // namespace geopipe::agent
