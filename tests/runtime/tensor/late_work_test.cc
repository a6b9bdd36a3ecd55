#include "runtime/tensor/late_work.h"

#include <catch2/catch.hpp>
#include <future>
#include <thread>
#include <vector>

namespace geopipe {
namespace {

TEST_CASE("late work is done in order, on a thread of its own, and its caller does not wait") {
  std::promise<void> gate;
  std::promise<void> done;
  std::vector<int> order;
  std::thread::id where;
  LateWork late;
  const auto first = late.Later([&] {
    gate.get_future().wait();
    order.push_back(1);
    where = std::this_thread::get_id();
  });
  const auto second = late.Later([&] {
    order.push_back(2);
    done.set_value();
  });
  first();
  second();
  gate.set_value();
  done.get_future().wait();
  CHECK(order == std::vector<int>{1, 2});
  CHECK(where != std::this_thread::get_id());
}

TEST_CASE("late work under way is waited for, and what has not begun is dropped with its owner") {
  std::promise<void> begun;
  std::promise<void> gate;
  bool ended = false;
  bool dropped = true;
  std::function<void()> later;
  std::thread opens;
  {
    const LateWork late;
    later = late.Later([&] { dropped = false; });
    late.Later([&] {
      begun.set_value();
      gate.get_future().wait();
      ended = true;
    })();
    begun.get_future().wait();
    opens = std::thread([&] { gate.set_value(); });
  }
  CHECK(ended);
  later();
  opens.join();
  CHECK(dropped);
}

}  // namespace
}  // namespace geopipe
