#include "runtime/backend/cpu_amx.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#if defined(__x86_64__)
#include <immintrin.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstdint>
#endif

namespace geopipe::cpu {
namespace {

#if defined(__x86_64__)

// Operands and result of the product, in static memory: the child allocates nothing.
alignas(64) uint16_t a_tile[16][32];
alignas(64) uint16_t b_tile[16][32];
alignas(64) float c_tile[16][16];

struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64};
  uint8_t rows[16] = {16, 16, 16};
};
constexpr TileConfiguration kTiles;

__attribute__((target("amx-tile,amx-bf16"))) bool MultiplyByTiles() {
  _tile_loadconfig(&kTiles);
  _tile_zero(0);
  _tile_loadd(1, a_tile, 64);
  _tile_loadd(2, b_tile, 64);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, c_tile, 64);
  _tile_release();
  for (const auto& row : c_tile) {
    for (const float value : row) {
      if (value != 32.0F * 2.0F * 0.5F) {
        return false;
      }
    }
  }
  return true;
}

bool Probe() {
  // The compiler's own check knows too few of these flags: leaf 7 has amx-bf16 and amx-tile in bits 22 and 24 of edx.
  uint32_t a = 7;
  uint32_t b = 0;
  uint32_t c = 0;
  uint32_t d = 0;
  __asm__("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr uint32_t kFlags = (1U << 22) | (1U << 24);
  if ((d & kFlags) != kFlags) {
    return false;
  }
  constexpr uint16_t kTwo = 0x4000;
  constexpr uint16_t kHalf = 0x3f00;
  std::fill_n(&a_tile[0][0], 16 * 32, kTwo);
  std::fill_n(&b_tile[0][0], 16 * 32, kHalf);
  return SucceedsInChild([] {
    constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM of asm/prctl.h
    constexpr long kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0 && MultiplyByTiles();
  });
}

#else

bool Probe() { return false; }

#endif

}  // namespace

bool SucceedsInChild(bool (*work)()) {
  const pid_t child = fork();
  if (child == 0) {
    for (const int fault : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP}) {
      std::signal(fault, SIG_DFL);  // UCX's handlers print, and may allocate
    }
    prctl(PR_SET_DUMPABLE, 0);
    _exit(work() ? 0 : 1);
  }
  int status = 0;
  pid_t ended = -1;
  do {
    ended = child < 0 ? -1 : waitpid(child, &status, 0);
  } while (ended < 0 && child > 0 && errno == EINTR);
  return ended == child && child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool AmxWorks() {
  static const bool works = Probe();
  return works;
}

}  // namespace geopipe::cpu
