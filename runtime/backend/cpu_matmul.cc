#include "runtime/backend/cpu_matmul.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "optimizer/base/check.h"
#include "optimizer/base/status_macros.h"
#include "runtime/backend/cpu_amx.h"
#include "runtime/backend/cpu_views.h"

namespace geopipe::cpu {
namespace {

// Extents of a tile, so large that conversion adds little: a product takes 2 to 18 % longer than one of fp32 matrices.
constexpr int64_t kTile = 512;

struct Extents {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
};

Extents ExtentsOf(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const ConstMatrixView& c) {
  const int64_t m = product == Product::kTN ? a.columns : a.rows;
  const int64_t k = product == Product::kTN ? a.rows : a.columns;
  const int64_t n = product == Product::kNT ? b.rows : b.columns;
  const int64_t b_k = product == Product::kNT ? b.columns : b.rows;
  GP_CHECK(c.rows == m && c.columns == n && b_k == k, "[{}, {}] = [{}, {}] * [{}, {}]", c.rows, c.columns, m, k, b_k,
           n);
  return {m, n, k};
}

// Place where a primitive finds the matrix that it adds.
enum class AddsMatrix : uint8_t { kNone, kInPlace, kElsewhere };

AddsMatrix HowAdded(const ConstMatrixView& addend, const MatrixView& c) {
  return addend.data == nullptr  ? AddsMatrix::kNone
         : addend.data == c.data ? AddsMatrix::kInPlace
                                 : AddsMatrix::kElsewhere;
}

// A primitive's parameters: product, m, n, k, strides of a, b and c, types of a (and b) and c, AddsMatrix, whether it
// adds a row.
using Key = std::array<int64_t, 11>;

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
  dnnl::memory addend;
  dnnl::memory row;
  std::unordered_map<int, dnnl::memory> arguments;  // handles to those above that it has
  int64_t scratchpad_bytes = 0;
};

// A matrix as the product sees it: `transposed` when it is stored as [columns, rows].
dnnl::memory::desc Describe(int64_t dtype, int64_t rows, int64_t columns, int64_t stride, bool transposed) {
  using DataType = dnnl::memory::data_type;
  const dnnl::memory::dims strides{transposed ? 1 : stride, transposed ? stride : 1};
  return {{rows, columns}, static_cast<DType>(dtype) == DType::kBf16 ? DataType::bf16 : DataType::f32, strides};
}

Entry MakeEntry(const dnnl::engine& engine, const Key& key) {
  // oneDNN shares its primitives among all threads of the process. It locks them itself, which ThreadSanitizer cannot
  // see.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const auto [product, m, n, k, a_stride, b_stride, c_stride, operands, result, adds, adds_row] = key;
  const auto kind = static_cast<Product>(product);
  const dnnl::memory::desc a = Describe(operands, m, k, a_stride, kind == Product::kTN);
  const dnnl::memory::desc b = Describe(operands, k, n, b_stride, kind == Product::kNT);
  const dnnl::memory::desc c = Describe(result, m, n, c_stride, false);
  const dnnl::memory::desc row({1, n}, dnnl::memory::data_type::f32, dnnl::memory::dims{n, 1});

  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops post_ops;
  if (static_cast<AddsMatrix>(adds) == AddsMatrix::kInPlace) {
    post_ops.append_sum(1.0F);
  } else if (static_cast<AddsMatrix>(adds) == AddsMatrix::kElsewhere) {
    post_ops.append_binary(dnnl::algorithm::binary_add, c);
  }
  attributes.set_post_ops(post_ops);
  const dnnl::matmul::primitive_desc description(
      adds_row != 0 ? dnnl::matmul::desc(a, b, row, c) : dnnl::matmul::desc(a, b, c), attributes, engine);
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
  if (static_cast<AddsMatrix>(adds) == AddsMatrix::kElsewhere) {
    entry.addend = dnnl::memory(c, engine, nullptr);
    entry.arguments.emplace(DNNL_ARG_ATTR_MULTIPLE_POST_OP(0) | DNNL_ARG_SRC_1, entry.addend);
  }
  if (adds_row != 0) {
    entry.row = dnnl::memory(row, engine, nullptr);
    entry.arguments.emplace(DNNL_ARG_BIAS, entry.row);
  }
  return entry;
}

// True when oneDNN's primitives use the instructions. Their bits include those of the sets that they contain.
bool Has(dnnl::cpu_isa instructions) {
  const auto needed = static_cast<unsigned>(instructions);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & needed) == needed;
}

}  // namespace

struct MatMulCache::State {
  State(int thread_count, Bf16Products products)
      : threads(thread_count), bf16_products(products), engine(dnnl::engine::kind::cpu, 0), stream(engine) {}

  int threads;
  Bf16Products bf16_products;
  bool dry = false;
  bool uses_amx = Has(dnnl::cpu_isa::avx512_core_amx);
  Allocator library_memory{std::numeric_limits<int64_t>::max()};
  dnnl::engine engine;
  dnnl::stream stream;
  std::unordered_map<Key, Entry, KeyHash> entries;
  Buffer scratchpad;
  Buffer tiles;
};

namespace {

// Keeps oneDNN from AMX where that does not work: version 2.6 uses it wherever the processor's flags show it. A user's
// ONEDNN_MAX_CPU_ISA stays. Takes effect before the first primitive alone.
void LimitInstructions() {
  static const bool limited = [] {
    if (std::getenv("ONEDNN_MAX_CPU_ISA") == nullptr) {
      dnnl::set_max_cpu_isa(AmxWorks() ? dnnl::cpu_isa::avx512_core_amx : dnnl::cpu_isa::avx512_core_bf16);
    }
    return true;
  }();
  (void)limited;
}

}  // namespace

Bf16Products BestBf16Products() {
  LimitInstructions();
  return Has(dnnl::cpu_isa::avx512_core_bf16) ? Bf16Products::kNative : Bf16Products::kConverted;
}

std::string_view ProductInstructions() {
  LimitInstructions();
  constexpr std::pair<dnnl::cpu_isa, std::string_view> kNames[] = {
      {dnnl::cpu_isa::avx512_core_amx, "AMX"},           {dnnl::cpu_isa::avx512_core_bf16, "AVX-512 BF16"},
      {dnnl::cpu_isa::avx512_core_vnni, "AVX-512 VNNI"}, {dnnl::cpu_isa::avx512_core, "AVX-512"},
      {dnnl::cpu_isa::avx2_vnni, "AVX2 VNNI"},           {dnnl::cpu_isa::avx2, "AVX2"}};
  const auto* const found = std::ranges::find_if(kNames, [](const auto& name) { return Has(name.first); });
  return found == std::end(kNames) ? "generic" : found->second;
}

MatMulCache::MatMulCache(std::unique_ptr<State> state) : state_(std::move(state)) {}

MatMulCache::~MatMulCache() = default;

absl::StatusOr<std::unique_ptr<MatMulCache>> MatMulCache::Create(int threads, Bf16Products bf16_products) {
  LimitInstructions();
  try {
    return std::unique_ptr<MatMulCache>(new MatMulCache(std::make_unique<State>(threads, bf16_products)));
  } catch (const dnnl::error& error) {
    return absl::InternalError(fmt::format("oneDNN does not start on this processor: {}", error.what()));
  }
}

void MatMulCache::RunDry(bool on) { state_->dry = on; }

int64_t MatMulCache::primitives() const { return std::ssize(state_->entries); }

bool MatMulCache::UsesAmx() const { return state_->uses_amx && state_->bf16_products == Bf16Products::kNative; }

absl::Status MatMulCache::Run(Product product, const ConstMatrixView& a, const ConstMatrixView& b, const Addend& addend,
                              const MatrixView& c) {
  const Extents extents = ExtentsOf(product, a, b, c);
  GP_RETURN_IF_ERROR(WithElements(a.dtype, [](auto, auto) {}));
  GP_CHECK(a.dtype == b.dtype && (c.dtype == a.dtype || c.dtype == DType::kFp32), "{} * {} to {}", DTypeName(a.dtype),
           DTypeName(b.dtype), DTypeName(c.dtype));
  GP_CHECK(addend.row.data == nullptr || addend.row.size == c.columns, "a row of {} to {} columns", addend.row.size,
           c.columns);
  if (extents.m == 0 || extents.n == 0) {
    return absl::OkStatus();
  }
  const AddsMatrix adds = HowAdded(addend.matrix, c);
  if (adds != AddsMatrix::kNone) {
    GP_CHECK(addend.matrix.dtype == c.dtype && addend.matrix.rows == c.rows && addend.matrix.columns == c.columns,
             "an addend of another type or shape");
  }
  if (extents.k == 0) {
    return NoProduct(addend, c);
  }
  if (adds == AddsMatrix::kElsewhere && addend.matrix.stride != c.stride) {  // which oneDNN adds slowly
    GP_RETURN_IF_ERROR(Convert(addend.matrix, c));
    return Run(product, a, b, {.matrix = c, .row = addend.row}, c);
  }
  // oneDNN 2.6's product by AMX tiles faults on many an odd k (63, 2751).
  const bool can_be_native = !state_->uses_amx || extents.k % 2 == 0;
  const bool native = state_->bf16_products == Bf16Products::kNative && can_be_native;
  return a.dtype == DType::kFp32 || native ? RunPrimitive(product, a, b, addend, c)
                                           : RunTiles(product, a, b, addend, c);
}

absl::Status MatMulCache::RunTiles(Product product, const ConstMatrixView& a, const ConstMatrixView& b,
                                   const Addend& addend, const MatrixView& c) {
  const auto [m, n, k] = ExtentsOf(product, a, b, c);
  if (state_->tiles.empty()) {
    GP_ASSIGN_OR_RETURN(state_->tiles,
                        state_->library_memory.Allocate(3 * kTile * kTile * 4, MemoryCategory::kWorkspace));
  }
  float* const memory = reinterpret_cast<float*>(state_->tiles.data());
  // Returns, in fp32, the tile that begins at (row, column) of a matrix, which may be stored transposed.
  const auto fp32 = [&](const ConstMatrixView& matrix, bool transposed, int64_t row, int64_t rows, int64_t column,
                        int64_t columns, float* converted) -> absl::StatusOr<ConstMatrixView> {
    const ConstMatrixView tile =
        transposed ? Sub(matrix, column, columns, row, rows) : Sub(matrix, row, rows, column, columns);
    const MatrixView to = Fp32View(converted, tile.rows, tile.columns);
    GP_RETURN_IF_ERROR(Convert(tile, to));
    return to;
  };
  const AddsMatrix adds = HowAdded(addend.matrix, c);
  for (int64_t i = 0; i < m; i += kTile) {
    const int64_t rows = std::min(kTile, m - i);
    for (int64_t j = 0; j < n; j += kTile) {
      const int64_t columns = std::min(kTile, n - j);
      const MatrixView c_tile = Sub(c, i, rows, j, columns);
      const bool in_place = c.dtype == DType::kFp32;
      const MatrixView sum = in_place ? c_tile : Fp32View(memory, rows, columns);
      if (adds == AddsMatrix::kElsewhere || (adds == AddsMatrix::kInPlace && !in_place)) {
        GP_RETURN_IF_ERROR(Convert(Sub(addend.matrix, i, rows, j, columns), sum));
      }
      Addend added = adds == AddsMatrix::kNone ? Addend::None() : Addend{.matrix = sum};
      if (addend.row.data != nullptr) {
        added.row = {addend.row.data + j, columns};
      }
      for (int64_t l = 0; l < k; l += kTile) {
        const int64_t depth = std::min(kTile, k - l);
        GP_ASSIGN_OR_RETURN(const ConstMatrixView a_tile,
                            fp32(a, product == Product::kTN, i, rows, l, depth, memory + kTile * kTile));
        GP_ASSIGN_OR_RETURN(const ConstMatrixView b_tile,
                            fp32(b, product == Product::kNT, l, depth, j, columns, memory + 2 * kTile * kTile));
        GP_RETURN_IF_ERROR(RunPrimitive(product, a_tile, b_tile, added, sum));
        added = {.matrix = sum};
      }
      if (!in_place) {
        GP_RETURN_IF_ERROR(Convert(sum, c_tile));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status MatMulCache::Convert(const ConstMatrixView& from, const MatrixView& to) const {
  return state_->dry ? absl::OkStatus() : ConvertRows(state_->threads, from, to);
}

// A product without a sum.
absl::Status MatMulCache::NoProduct(const Addend& addend, const MatrixView& c) {
  if (addend.matrix.data == nullptr) {
    for (int64_t i = 0; i < c.rows && !state_->dry; ++i) {
      std::memset(Sub(c, i, 1, 0, c.columns).data, 0, static_cast<size_t>(c.columns * ByteSize(c.dtype)));
    }
  } else if (addend.matrix.data != c.data) {
    GP_RETURN_IF_ERROR(Convert(addend.matrix, c));
  }
  GP_CHECK(addend.row.data == nullptr, "a row is added to no product");
  return absl::OkStatus();
}

absl::Status MatMulCache::RunPrimitive(Product product, const ConstMatrixView& a, const ConstMatrixView& b,
                                       const Addend& addend, const MatrixView& c) {
  const auto [m, n, k] = ExtentsOf(product, a, b, c);
  const bool adds_row = addend.row.data != nullptr;
  // The setting is per thread, so it is made on each call; oneDNN partitions a primitive by the count when it makes it.
  omp_set_num_threads(state_->threads);
  try {
    const Key key{static_cast<int64_t>(product),
                  m,
                  n,
                  k,
                  a.stride,
                  b.stride,
                  c.stride,
                  static_cast<int64_t>(a.dtype),
                  static_cast<int64_t>(c.dtype),
                  static_cast<int64_t>(HowAdded(addend.matrix, c)),
                  adds_row ? 1 : 0};
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
    // oneDNN's handles are not const; it reads what is const here.
    e.a.set_data_handle(const_cast<std::byte*>(a.data));
    e.b.set_data_handle(const_cast<std::byte*>(b.data));
    e.c.set_data_handle(c.data);
    e.scratchpad.set_data_handle(state_->scratchpad.data());
    if (HowAdded(addend.matrix, c) == AddsMatrix::kElsewhere) {
      e.addend.set_data_handle(const_cast<std::byte*>(addend.matrix.data));
    }
    if (adds_row) {
      e.row.set_data_handle(const_cast<float*>(addend.row.data));
    }
    if (!state_->dry) {
      e.primitive.execute(state_->stream, e.arguments);
      state_->stream.wait();
    }
  } catch (const dnnl::error& error) {
    return absl::InternalError(
        fmt::format("oneDNN could not multiply [{}, {}] by [{}, {}]: {}", m, k, k, n, error.what()));
  }
  return absl::OkStatus();
}

}  // namespace geopipe::cpu
