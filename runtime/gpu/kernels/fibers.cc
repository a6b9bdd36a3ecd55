#include "runtime/gpu/kernels/fibers.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "optimizer/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace geopipe::gpu {

constinit thread_local dim3 threadIdx;
constinit thread_local dim3 blockIdx;
constinit thread_local dim3 blockDim;
constinit thread_local dim3 gridDim;

namespace emulation {
namespace {

constexpr unsigned kLanes = 32;  // of a warp
constexpr size_t kStackBytes = 64 << 10;
#if defined(__x86_64__)
constexpr size_t kReturnAddressBytes = 8;  // that a call leaves on the stack
#else
constexpr size_t kReturnAddressBytes = 0;
#endif

// A flow of control: a fiber's, with a stack of its own, or the calling thread's.
struct Context {
  // Frame pointer, where to go on, stack pointer: as __builtin_setjmp leaves them.
  void* registers[5] = {};
  std::unique_ptr<std::byte[]> stack;
  // The stack as AddressSanitizer knows it.
  const void* bottom = nullptr;
  size_t bytes = 0;
};

#if defined(__SANITIZE_ADDRESS__)
thread_local Context* last_left = nullptr;
#endif

// Tells AddressSanitizer that a context goes on, which has been left before or (fake_stack == nullptr) begins.
void Arrive([[maybe_unused]] void* fake_stack) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, &last_left->bottom, &last_left->bytes);
#endif
}

// Functions whose callers know nothing of them: other fibers change memory and registers meanwhile. AddressSanitizer
// would take a jump for a return from the frames that it leaves.
#if defined(__clang__)
#define GP_OPAQUE __attribute__((noinline, no_sanitize("address")))
#else
#define GP_OPAQUE __attribute__((noipa, no_sanitize("address")))
#endif

GP_OPAQUE void Jump(Context& to) { __builtin_longjmp(to.registers, 1); }

// Goes on with `to`, until somebody switches back.
GP_OPAQUE void Switch(Context& from, Context& to) {
  void* fake_stack = nullptr;
#if defined(__SANITIZE_ADDRESS__)
  last_left = &from;
  __sanitizer_start_switch_fiber(&fake_stack, to.bottom, to.bytes);
#endif
  if (__builtin_setjmp(from.registers) == 0) {
    Jump(to);
  }
  Arrive(fake_stack);
}

// SplitMix64.
struct Random {
  uint64_t state = 0;

  uint64_t Next() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
};

// Makes `values` the numbers from 0 to count - 1 in the settings' order.
void Arrange(unsigned count, Random& random, std::vector<unsigned>& values) {
  values.resize(count);
  std::iota(values.begin(), values.end(), 0U);
  const ThreadOrder order = TheSettings().order;
  if (order == ThreadOrder::kDescending) {
    std::ranges::reverse(values);
  } else if (order == ThreadOrder::kShuffled) {
    for (size_t i = count; i > 1; --i) {
      std::swap(values[i - 1], values[random.Next() % i]);
    }
  }
}

// A place in the source.
struct Place {
  std::string_view file;
  int line = 0;

  friend bool operator==(const Place&, const Place&) = default;
};

enum class State : uint8_t { kNew, kReady, kAtBarrier, kAtShuffle, kDone };

struct Thread {
  State state = State::kNew;
  Context* fiber = nullptr;  // once it has begun, until it returns
  int barriers = 0;          // reached so far
  Place place = {};
  int predicate = 0;
  unsigned mask = 0;
  unsigned source = 0;
  uint64_t word = 0;
  uint64_t received = 0;
};

struct SharedArray {
  const void* place;
  size_t bytes;
  std::unique_ptr<std::byte[]> memory;
  bool in_use = false;  // by the block
};

// The emulated device of one thread of the processor.
class Device {
 public:
  void Run(dim3 grid, unsigned threads, const std::function<void()>& body);
  int Barrier(int predicate, const Place& place);
  uint64_t Shuffle(unsigned mask, uint64_t word, unsigned source);
  std::byte* Shared(const void* place, size_t bytes);
  int barriers() const { return barriers_; }

 private:
  static void FiberMain();

  void RunBlock();
  // Runs the warp's threads until each has returned or waits at a barrier.
  void RunWarp(unsigned warp);
  // Makes the pass's next thread that can go on the current one. False: it has none.
  bool Advance();
  // Goes on with the current thread.
  void SwitchFrom(Context& from);
  // Gives their words to the lanes of a mask that all wait in a shuffle. False: no lane waits in one.
  bool FinishShuffles();
  // Opens the barrier that all threads wait at. False: all have returned.
  bool FinishBarrier();
  void WaitAs(State state);
  Context* TakeFiber();

  const std::function<void()>* body_ = nullptr;  // of the launch that runs
  Random random_;
  std::vector<Thread> threads_;
  unsigned current_ = 0;
  std::vector<unsigned> warp_order_;
  // A pass over a warp: its first thread, its lanes in order, and the next of them.
  unsigned first_ = 0;
  std::vector<unsigned> lane_order_;
  size_t next_lane_ = 0;
  int any_predicate_ = 0;  // at the barrier that was opened last
  int barriers_ = 0;       // that a block of the last launch reached, at most
  Context scheduler_;
  // Kept for later threads: a fiber whose thread has returned takes another.
  std::vector<std::unique_ptr<Context>> fibers_;
  std::vector<Context*> free_fibers_;
  std::vector<SharedArray> shared_;
};

Device& TheDevice() {
  static thread_local Device device;
  return device;
}

void Device::Run(dim3 grid, unsigned threads, const std::function<void()>& body) {
  GP_CHECK(body_ == nullptr, "a kernel launches a kernel");
  GP_CHECK(threads > 0 && threads <= 1024 && threads % kLanes == 0, "blocks of {} threads", threads);
  GP_CHECK(grid.y <= 65535 && grid.z <= 65535, "a grid of [{}, {}, {}] blocks", grid.x, grid.y, grid.z);
  body_ = &body;
  random_ = {TheSettings().seed};
  barriers_ = 0;
  threads_.resize(threads);
  gridDim = grid;
  blockDim = dim3(threads);
  std::vector<unsigned> blocks;
  Arrange(grid.x * grid.y * grid.z, random_, blocks);
  for (const unsigned block : blocks) {
    blockIdx = dim3(block % grid.x, block / grid.x % grid.y, block / grid.x / grid.y);
    RunBlock();
  }
  body_ = nullptr;
}

void Device::RunBlock() {
  std::ranges::fill(threads_, Thread());
  std::ranges::for_each(shared_, [](SharedArray& array) { array.in_use = false; });
  do {
    Arrange(static_cast<unsigned>(threads_.size()) / kLanes, random_, warp_order_);
    std::ranges::for_each(warp_order_, [&](unsigned warp) { RunWarp(warp); });
  } while (FinishBarrier());
  barriers_ = std::max(barriers_, std::ranges::max_element(threads_, {}, &Thread::barriers)->barriers);
}

void Device::RunWarp(unsigned warp) {
  first_ = warp * kLanes;
  do {
    Arrange(kLanes, random_, lane_order_);
    next_lane_ = 0;
    if (Advance()) {
      SwitchFrom(scheduler_);  // each thread goes on with the next, the last one with this
    }
  } while (FinishShuffles());
}

bool Device::Advance() {
  while (next_lane_ < kLanes) {
    const unsigned thread = first_ + lane_order_[next_lane_++];
    if (threads_[thread].state == State::kNew || threads_[thread].state == State::kReady) {
      current_ = thread;
      threadIdx = dim3(thread, 0, 0);
      return true;
    }
  }
  return false;
}

void Device::SwitchFrom(Context& from) {
  Thread& thread = threads_[current_];
  if (thread.fiber == nullptr) {
    thread.fiber = TakeFiber();
  }
  Switch(from, *thread.fiber);
}

void Device::FiberMain() {
  Arrive(nullptr);
  Device& device = TheDevice();
  Context* const self = device.threads_[device.current_].fiber;
  while (true) {
    device.threads_[device.current_].fiber = self;
    (*device.body_)();
    device.threads_[device.current_].state = State::kDone;
    device.threads_[device.current_].fiber = nullptr;
    const bool advanced = device.Advance();
    if (advanced && device.threads_[device.current_].state == State::kNew) {
      continue;  // which this fiber takes
    }
    device.free_fibers_.push_back(self);
    if (advanced) {
      device.SwitchFrom(*self);
    } else {
      Switch(*self, device.scheduler_);
    }
  }
}

Context* Device::TakeFiber() {
  if (free_fibers_.empty()) {
    Context& fiber = *fibers_.emplace_back(std::make_unique<Context>());
    fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
    fiber.bottom = fiber.stack.get();
    fiber.bytes = kStackBytes;
    // Begins with FiberMain, as if it had been called.
    fiber.registers[1] = reinterpret_cast<void*>(&FiberMain);
    fiber.registers[2] = fiber.stack.get() + kStackBytes - kReturnAddressBytes;
    free_fibers_.push_back(&fiber);
  }
  Context* const fiber = free_fibers_.back();
  free_fibers_.pop_back();
  return fiber;
}

void Device::WaitAs(State state) {
  Context& self = *threads_[current_].fiber;
  threads_[current_].state = state;
  if (Advance()) {
    SwitchFrom(self);
  } else {
    Switch(self, scheduler_);
  }
}

bool Device::FinishShuffles() {
  bool waits = false;
  bool finished = false;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const Thread& thread = threads_[first_ + lane];
    if (thread.state != State::kAtShuffle) {
      continue;
    }
    waits = true;
    const unsigned mask = thread.mask;
    const auto in_mask = [&](unsigned other) { return (mask >> other & 1) != 0; };
    bool complete = true;
    for (unsigned other = 0; other < kLanes; ++other) {
      const Thread& peer = threads_[first_ + other];
      complete = complete && (!in_mask(other) || (peer.state == State::kAtShuffle && peer.mask == mask));
    }
    for (unsigned other = 0; complete && other < kLanes; ++other) {
      Thread& peer = threads_[first_ + other];
      if (in_mask(other)) {
        GP_CHECK(peer.source < kLanes && in_mask(peer.source), "lane {} shuffles with lane {}, which mask {:#x} lacks",
                 other, peer.source, mask);
        peer.received = threads_[first_ + peer.source].word;
        peer.state = State::kReady;
      }
    }
    finished = finished || complete;
  }
  GP_CHECK(finished || !waits, "lanes of warp {} of block {} wait in a shuffle that others of its mask never reach",
           first_ / kLanes, blockIdx.x);
  return finished;
}

bool Device::FinishBarrier() {
  const auto waiting = std::ranges::find(threads_, State::kAtBarrier, &Thread::state);
  if (waiting == threads_.end()) {
    return false;
  }
  any_predicate_ = 0;
  for (const Thread& thread : threads_) {
    GP_CHECK(thread.state == State::kAtBarrier,
             "thread {} of block {} returned while thread {} waits at the barrier {}:{}", &thread - threads_.data(),
             blockIdx.x, waiting - threads_.begin(), waiting->place.file, waiting->place.line);
    GP_CHECK(thread.place == waiting->place, "threads of block {} wait at different barriers, {}:{} and {}:{}",
             blockIdx.x, thread.place.file, thread.place.line, waiting->place.file, waiting->place.line);
    any_predicate_ |= static_cast<int>(thread.predicate != 0);
  }
  std::ranges::for_each(threads_, [](Thread& thread) { thread.state = State::kReady; });
  return true;
}

int Device::Barrier(int predicate, const Place& place) {
  GP_CHECK(body_ != nullptr, "a barrier outside of a kernel");
  Thread& thread = threads_[current_];
  if (thread.barriers++ == TheSettings().ignored_barrier) {
    return predicate;
  }
  thread.place = place;
  thread.predicate = predicate;
  WaitAs(State::kAtBarrier);
  return any_predicate_;
}

uint64_t Device::Shuffle(unsigned mask, uint64_t word, unsigned source) {
  GP_CHECK(body_ != nullptr, "a shuffle outside of a kernel");
  Thread& thread = threads_[current_];
  GP_CHECK((mask >> current_ % kLanes & 1) != 0, "lane {} shuffles with mask {:#x}, which lacks it", current_ % kLanes,
           mask);
  thread.mask = mask;
  thread.source = source;
  thread.word = word;
  WaitAs(State::kAtShuffle);
  return thread.received;
}

std::byte* Device::Shared(const void* place, size_t bytes) {
  GP_CHECK(body_ != nullptr, "shared memory outside of a kernel");
  auto array = std::ranges::find(shared_, place, &SharedArray::place);
  if (array == shared_.end()) {
    shared_.push_back({.place = place, .bytes = bytes, .memory = std::make_unique<std::byte[]>(bytes)});
    array = shared_.end() - 1;
  }
  if (!array->in_use) {
    array->in_use = true;
    std::memset(array->memory.get(), 0xFF, bytes);
  }
  return array->memory.get();
}

}  // namespace

Settings& TheSettings() {
  static Settings settings;
  return settings;
}

int BarriersOfLastLaunch() { return TheDevice().barriers(); }

std::byte* SharedBytes(const void* place, size_t bytes) { return TheDevice().Shared(place, bytes); }

void CheckAligned(const void* address, size_t bytes) {
  GP_CHECK(reinterpret_cast<uintptr_t>(address) % bytes == 0,
           "thread {} of block {} accesses {} bytes at {}, which is no multiple of that", threadIdx.x, blockIdx.x,
           bytes, address);
}

uint64_t Shuffle(unsigned mask, uint64_t word, unsigned source) { return TheDevice().Shuffle(mask, word, source); }

void Run(dim3 grid, int threads, const std::function<void()>& body) {
  TheDevice().Run(grid, static_cast<unsigned>(threads), body);
}

int32_t Submit(void* stream, std::function<void()> work) {
  if (TheSettings().submit != nullptr) {
    return TheSettings().submit(stream, std::move(work));
  }
  work();
  return 0;
}

}  // namespace emulation

// NOLINTBEGIN(bugprone-reserved-identifier): CUDA's names.
void __syncthreads(const char* file, int line) { emulation::TheDevice().Barrier(0, {file, line}); }
int __syncthreads_or(int predicate, const char* file, int line) {
  return emulation::TheDevice().Barrier(predicate, {file, line});
}
// NOLINTEND(bugprone-reserved-identifier)

}  // namespace geopipe::gpu
