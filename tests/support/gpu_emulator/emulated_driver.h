// The driver of the emulated GPU: the process's devices, their memory and streams, faults and counters. The port's
// functions (emulated_runtime.cc, emulated_products.cc) are written on it.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "tests/support/gpu_emulator/emulator_settings.h"
#include "tests/support/gpu_emulator/gpu_emulator.h"
#include "tests/support/seeded_queues.h"

namespace geopipe::emulator {

// Added to addresses of device memory. No process has memory there.
inline constexpr uintptr_t kForeign = uintptr_t{1} << 54;
// The processor's address of device memory; others stay as they are.
template <class T>
T* Real(T* address) {
  const auto value = reinterpret_cast<uintptr_t>(address);
  return reinterpret_cast<T*>((value & kForeign) != 0 ? value - kForeign : value);
}

// Keeps the sentence as this thread's last error.
GpResult Fail(GpResult result, std::string message);
const char* LastError();

// Number of a CUDA error, which launchers return.
enum CudaError : int32_t {
  kInvalidValue = 1,
  kInvalidHandle = 400,
  kIllegalAddress = 700,
  kUnknown = 999,  // of a device off the bus
};
GpResult ResultOf(int32_t error);

// One device. Thread-safe.
class Device {
 public:
  static constexpr int kStreams = 32;

  Device(int ordinal, uint64_t seed) : ordinal_(ordinal), queues_(seed, kStreams) {}
  ~Device() { Lose(kUnknown); }  // work still queued is dropped

  int ordinal() const { return ordinal_; }

  // The error that ended the device, or 0.
  int32_t lost() const { return lost_; }
  void Lose(int32_t error) { lost_ = error; }

  // A line of the queues for a stream; -1: all are in use.
  int OpenLine();
  void CloseLine(int line);

  // Append to a line: work, which is dropped once the device is lost; a wait for an event; a stop for ever.
  void Enqueue(int line, std::function<void()> work, int64_t duration_ns);
  void WaitFor(int line, SeededQueues::EventPtr event);
  void Hold(int line);
  bool is_stuck() const { return is_stuck_; }
  SeededQueues::EventPtr Record(int line) { return queues_.Record(line); }

  // True when nothing is left to do in the line.
  bool IsIdle(int line);
  // Block until the event has happened, a line is idle, all open lines are.
  void Await(const SeededQueues::EventPtr& event);
  void Synchronize(int line) { Await(Record(line)); }
  void SynchronizeAll();

 private:
  struct Line {
    bool is_open = false;
    bool has_more = false;       // behind `end`
    SeededQueues::EventPtr end;  // null: nothing was ever looked for
  };

  void NoteMore(int line);

  const int ordinal_;
  std::atomic<int32_t> lost_ = 0;
  std::atomic<bool> is_stuck_ = false;
  std::mutex mutex_;
  std::array<Line, kStreams> lines_ = {};
  SeededQueues queues_;  // goes first: its thread uses the rest
};

struct Stream {
  Device* device = nullptr;
  int line = 0;
};

struct Event {
  Device* device = nullptr;
  bool is_timed = false;
  SeededQueues::EventPtr last;  // null: never recorded
};

enum class Counted : uint8_t {
  kDeviceAllocation,
  kDeviceFree,
  kHostAllocation,
  kHostFree,
  kRegistration,
  kWait,
  kPlan,
  kLaunch,
  kProduct,
  kCopy,
  kCopiedByte,
  kFill,
  kHostCall,
};
inline constexpr size_t kCounted = 13;

// The process's driver. Thread-safe but for Restart.
class Driver {
 public:
  // Stays until the process exits, when threads may still wait for work; what is queued then is dropped, but exit()
  // waits for a kernel that is stuck.
  static Driver& Get();

  // See GpEmulator.
  GpResult Restart(const char* settings);
  // The reason why the settings cannot be read; empty when they can.
  const std::string& settings_error() const { return settings_error_; }
  const Settings& settings() const { return settings_; }

  // The device, or null when there is no such one.
  Device* DeviceOf(int32_t ordinal);
  // The calling thread's; null before UseDevice.
  Device* Current();
  void Use(Device& device);
  // Calls a host function, which may not call the port.
  static void CallHost(GpHostFunction function, void* data);
  static bool IsInHostFunction();

  // Adds to a counter and returns its new value.
  int64_t Count(Counted what, int64_t by = 1) { return counters_[static_cast<size_t>(what)] += by; }
  GpEmulatorCounters Counters();
  // True when the fault planted at call or launch `at` of its kind happens at this one, `number`.
  bool Strikes(int64_t number, int64_t at);

  // Memory is filled with NaNs before it is given out and before it is freed. Null: there is too little.
  void* AllocateDevice(Device& device, int64_t bytes);
  bool FreeDevice(const Device& device, void* memory);
  void* AllocateHost(int64_t bytes);
  bool FreeHost(void* memory);
  // False: part of it is pinned already; none of it is.
  bool Register(void* memory, int64_t bytes);
  bool Unregister(void* memory);
  int64_t AllocatedBytes(const Device& device);

  // True when all bytes are of one block of the device's memory; of one block of pinned or registered memory.
  bool IsDeviceMemory(const Device& device, const void* memory, int64_t bytes);
  bool IsPinned(const void* memory, int64_t bytes);
  // True of the first byte behind a block too, where matrices without rows may begin.
  bool IsAnyDeviceMemory(const void* address);

  Stream* OpenStream(Device& device);
  // Null when the handle is none of an open stream, or of another device.
  Stream* StreamOf(const Device& device, GpStream stream);
  void CloseStream(Stream* stream);
  Event* OpenEvent(Device& device, bool is_timed);
  bool CloseEvent(const Device& device, GpEvent event);
  // The event's last record. False: no such event of the device.
  bool LastRecord(const Device& device, GpEvent event, SeededQueues::EventPtr* last, bool* is_timed);
  bool Record(const Device& device, GpEvent event, const Stream& stream);

  // Enqueues a kernel or a product, or the fault that is planted there. Returns a CudaError or 0.
  int32_t Launch(GpStream stream, std::function<void()> work, int64_t duration_ns);

 private:
  struct Block {
    void* real = nullptr;  // the processor's address
    int64_t bytes = 0;
    int32_t ordinal = -1;        // of the device; pinned memory is of all
    bool is_registered = false;  // the caller's memory
  };
  using Blocks = std::map<uintptr_t, Block>;

  static const Block* BlockOf(const Blocks& blocks, const void* memory, int64_t bytes);
  void End();
  void Clear();

  std::mutex mutex_;
  Settings settings_;
  std::string settings_error_;
  int64_t generation_ = 0;  // number of restarts
  std::map<int32_t, std::unique_ptr<Device>> devices_;
  Blocks device_blocks_;
  Blocks host_blocks_;
  std::map<int32_t, int64_t> allocated_bytes_;
  int64_t peak_bytes_ = 0;
  std::map<GpStream, std::unique_ptr<Stream>> streams_;
  std::map<GpEvent, std::unique_ptr<Event>> events_;
  std::array<std::atomic<int64_t>, kCounted> counters_ = {};
  bool made_once_file_ = false;
};

}  // namespace geopipe::emulator
