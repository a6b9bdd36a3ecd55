// Work on all processors of this host.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace geopipe {

// Calls work(i) for each i in [0, count), `grain` of them one after another, of which some run at once.
template <class Work>
void OnAllProcessors(int64_t count, int64_t grain, const Work& work) {
  const int64_t threads = std::min<int64_t>((count + grain - 1) / grain, std::thread::hardware_concurrency());
  std::atomic<int64_t> next = 0;
  const auto run = [&] {
    for (int64_t i = next.fetch_add(grain); i < count; i = next.fetch_add(grain)) {
      for (int64_t j = i; j < std::min(count, i + grain); ++j) {
        work(j);
      }
    }
  };
  std::vector<std::thread> others;
  for (int64_t t = 1; t < threads; ++t) {
    others.emplace_back(run);
  }
  run();
  for (std::thread& thread : others) {
    thread.join();
  }
}

}  // namespace geopipe
