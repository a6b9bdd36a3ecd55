#include "runtime/backend/cpu_matmul.h"

#include <fmt/format.h>
#include <omp.h>

#include <array>
#include <dnnl.hpp>
#include <limits>
#include <unordered_map>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"

namespace geopipe::cpu {
namespace {

// Everything that a primitive depends on: product, m, n, k, strides of a, b and c, accumulate.
using Key = std::array<int64_t, 8>;

struct KeyHash {
  size_t operator()(const Key& key) const {
    uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
    for (const int64_t part : key) {
      hash = (hash ^ static_cast<uint64_t>(part)) * 0x100000001b3ULL;
    }
    return hash;
  }
};

struct Entry {
  dnnl::matmul primitive;
  dnnl::memory a;
  dnnl::memory b;
  dnnl::memory c;
  dnnl::memory scratchpad;
  std::unordered_map<int, dnnl::memory> arguments;  // handles to the four above
  int64_t scratchpad_bytes = 0;
};

dnnl::memory::desc Describe(int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
  return {{rows, columns}, dnnl::memory::data_type::f32, {row_stride, column_stride}};
}

Entry MakeEntry(const dnnl::engine& engine, const Key& key) {
  const auto [product, m, n, k, a_stride, b_stride, c_stride, accumulate] = key;
  const auto kind = static_cast<Product>(product);
  const dnnl::memory::desc a = kind == Product::kTN ? Describe(m, k, 1, a_stride) : Describe(m, k, a_stride, 1);
  const dnnl::memory::desc b = kind == Product::kNT ? Describe(k, n, 1, b_stride) : Describe(k, n, b_stride, 1);
  const dnnl::memory::desc c = Describe(m, n, c_stride, 1);

  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (accumulate != 0) {
    dnnl::post_ops post_ops;
    post_ops.append_sum(1.0F);
    attributes.set_post_ops(post_ops);
  }
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), attributes, engine);
  Entry entry;
  entry.primitive = dnnl::matmul(description);
  entry.a = dnnl::memory(a, engine, nullptr);
  entry.b = dnnl::memory(b, engine, nullptr);
  entry.c = dnnl::memory(c, engine, nullptr);
  entry.scratchpad = dnnl::memory(description.scratchpad_desc(), engine, nullptr);
  entry.scratchpad_bytes = static_cast<int64_t>(description.scratchpad_desc().get_size());
  entry.arguments = {{DNNL_ARG_SRC, entry.a},
                     {DNNL_ARG_WEIGHTS, entry.b},
                     {DNNL_ARG_DST, entry.c},
                     {DNNL_ARG_SCRATCHPAD, entry.scratchpad}};
  return entry;
}

}  // namespace

struct MatMulCache::State {
  explicit State(int thread_count) : threads(thread_count), engine(dnnl::engine::kind::cpu, 0), stream(engine) {}

  int threads;
  Allocator library_memory{std::numeric_limits<int64_t>::max()};
  dnnl::engine engine;
  dnnl::stream stream;
  std::unordered_map<Key, Entry, KeyHash> entries;
  Buffer scratchpad;
};

MatMulCache::MatMulCache(std::unique_ptr<State> state) : state_(std::move(state)) {}

MatMulCache::~MatMulCache() = default;

absl::StatusOr<std::unique_ptr<MatMulCache>> MatMulCache::Create(int threads) {
  try {
    return std::unique_ptr<MatMulCache>(new MatMulCache(std::make_unique<State>(threads)));
  } catch (const dnnl::error& error) {
    return absl::InternalError(fmt::format("oneDNN does not start on this processor: {}", error.what()));
  }
}

absl::Status MatMulCache::Run(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const MatrixView& c,
                              bool accumulate) {
  const int64_t m = product == Product::kTN ? a.columns : a.rows;
  const int64_t k = product == Product::kTN ? a.rows : a.columns;
  const int64_t n = product == Product::kNT ? b.rows : b.columns;
  const int64_t b_k = product == Product::kNT ? b.columns : b.rows;
  GP_CHECK(c.rows == m && c.columns == n && b_k == k, "[{}, {}] = [{}, {}] * [{}, {}]", c.rows, c.columns, m, k, b_k,
           n);
  // Per thread, hence for the calling one each time; oneDNN partitions a primitive by the count when it is made.
  omp_set_num_threads(state_->threads);
  try {
    const Key key{static_cast<int64_t>(product), m, n, k, a.stride, b.stride, c.stride, accumulate ? 1 : 0};
    auto entry = state_->entries.find(key);
    if (entry == state_->entries.end()) {
      entry = state_->entries.emplace(key, MakeEntry(state_->engine, key)).first;
    }
    Entry& e = entry->second;
    if (e.scratchpad_bytes > state_->scratchpad.size()) {
      state_->scratchpad = Buffer();
      GP_ASSIGN_OR_RETURN(state_->scratchpad,
                          state_->library_memory.Allocate(e.scratchpad_bytes, MemoryCategory::kWorkspace));
    }
    // oneDNN's handles are not const; it reads a and b only.
    e.a.set_data_handle(const_cast<std::byte*>(a.data));
    e.b.set_data_handle(const_cast<std::byte*>(b.data));
    e.c.set_data_handle(c.data);
    e.scratchpad.set_data_handle(state_->scratchpad.data());
    e.primitive.execute(state_->stream, e.arguments);
    state_->stream.wait();
  } catch (const dnnl::error& error) {
    return absl::InternalError(
        fmt::format("oneDNN could not multiply [{}, {}] by [{}, {}]: {}", m, k, k, n, error.what()));
  }
  return absl::OkStatus();
}

}  // namespace geopipe::cpu
