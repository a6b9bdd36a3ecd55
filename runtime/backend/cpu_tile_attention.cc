// A product of tiles is C += A * B with A [16, 32] of bf16, B [32, 16] stored as 16 rows of pairs (elements 2r and
// 2r + 1 of a column side by side), and C [16, 16] of fp32. Products here are of two by two of them: 32 rows and 32
// columns, in tiles 0 to 3, from two tiles of A (4, 5) and two of B (6, 7).
//
// The backward pass computes scores transposed, [keys, queries]: they then are the first operand of the products that
// sum over queries as they are, and pairs of their rows the second of the one that sums over keys.
#include <immintrin.h>

#include <cstring>

#include "runtime/backend/cpu_room.h"

namespace geopipe::cpu {
namespace {

constexpr int64_t kTile = 16;           // rows, and columns of fp32
constexpr int64_t kDepth = 32;          // bf16 in a row of a tile
constexpr int64_t kTileElements = 512;  // of bf16
constexpr int64_t kRowBytes = 64;
constexpr int64_t kTileBytes = kTile * kRowBytes;
constexpr int64_t kPair = 2 * kTile;  // rows and columns of a product of two by two tiles

// Blocks of queries and keys, all multiples of kPair: what lies in the room fits the second cache.
constexpr int64_t kForwardQueries = 512;
constexpr int64_t kForwardKeys = 512;
constexpr int64_t kBackwardQueries = 256;
constexpr int64_t kBackwardKeys = 256;

constexpr float kHidden = 3.0e38F;  // the statistic of a query that does not exist: its probabilities are 0

struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t column_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileConfiguration kTiles;

// The thread's tiles, for as long as it lives.
class TilesInUse {
 public:
  TilesInUse() { _tile_loadconfig(&kTiles); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
  ~TilesInUse() { _tile_release(); }
};

// One operand of a product: its two tiles side by side, and how far apart their rows and the steps along the sum lie.
struct Operand {
  const void* first;
  const void* second;
  int64_t row_bytes;
  int64_t step_bytes;
};

GP_CPU_INLINE const void* At(const void* from, int64_t bytes) { return static_cast<const std::byte*>(from) + bytes; }

GP_CPU_INLINE void ZeroSums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

GP_CPU_INLINE void LoadSums(const float* from, int64_t stride) {
  _tile_loadd(0, from, stride * 4);
  _tile_loadd(1, from + kTile, stride * 4);
  _tile_loadd(2, from + kTile * stride, stride * 4);
  _tile_loadd(3, from + kTile * stride + kTile, stride * 4);
}

GP_CPU_INLINE void StoreSums(float* to, int64_t stride) {
  _tile_stored(0, to, stride * 4);
  _tile_stored(1, to + kTile, stride * 4);
  _tile_stored(2, to + kTile * stride, stride * 4);
  _tile_stored(3, to + kTile * stride + kTile, stride * 4);
}

GP_CPU_INLINE void Multiply(const Operand& a, const Operand& b, int64_t steps) {
  for (int64_t step = 0; step < steps; ++step) {
    _tile_loadd(4, At(a.first, step * a.step_bytes), a.row_bytes);
    _tile_loadd(6, At(b.first, step * b.step_bytes), b.row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, At(b.second, step * b.step_bytes), b.row_bytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, At(a.second, step * a.step_bytes), a.row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

// A first operand of kPair rows that lie `stride` elements apart.
GP_CPU_INLINE Operand RowsAsFirst(const BFloat16* rows, int64_t stride) {
  return {rows, rows + kTile * stride, stride * 2, kRowBytes};
}

// Transposes 16 rows of 16 dwords.
GP_CPU_INLINE void Transpose(__m512i (&rows)[kTile]) {
  FloatVector lanes[kTile];
  std::memcpy(lanes, rows, sizeof(lanes));
  cpu::Transpose(lanes);
  std::memcpy(rows, lanes, sizeof(lanes));
}

// Second operands whose columns are the rows of x, with zeros after the last, as tiles [row / 16][column / 32].
void PackAsColumns(const Rows<const BFloat16>& x, BFloat16* tiles) {
  for (int64_t row = 0; row < RoundUp(x.rows, kPair); row += kTile) {
    for (int64_t column = 0; column < x.columns; column += kDepth, tiles += kTileElements) {
      __m512i values[kTile];
      for (int64_t i = 0; i < kTile; ++i) {
        values[i] = row + i < x.rows ? _mm512_loadu_si512(x.Row(row + i) + column) : _mm512_setzero_si512();
      }
      Transpose(values);
      for (int64_t i = 0; i < kTile; ++i) {
        _mm512_store_si512(tiles + i * kDepth, values[i]);
      }
    }
  }
}

GP_CPU_INLINE __m512i Dwords(const BFloat16* from) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

// Rows 2 i and 2 i + 1 of x side by side, [i], for 32 rows and 16 columns from (row, column) on; zeros after the last.
GP_CPU_INLINE void PairRows(const Rows<const BFloat16>& x, int64_t row, int64_t column, __m512i (&pairs)[kTile]) {
  for (int64_t i = 0; i < kTile; ++i) {
    const int64_t even = row + 2 * i;
    const __m512i low = even < x.rows ? Dwords(x.Row(even) + column) : _mm512_setzero_si512();
    const __m512i high = even + 1 < x.rows ? Dwords(x.Row(even + 1) + column) : _mm512_setzero_si512();
    pairs[i] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
  }
}

// Second operands whose rows are those of x, as tiles [row / 32][column / 16].
void PackAsRows(const Rows<const BFloat16>& x, BFloat16* tiles) {
  for (int64_t row = 0; row < x.rows; row += kDepth) {
    for (int64_t column = 0; column < x.columns; column += kTile, tiles += kTileElements) {
      __m512i pairs[kTile];
      PairRows(x, row, column, pairs);
      for (int64_t i = 0; i < kTile; ++i) {
        _mm512_store_si512(tiles + i * kDepth, pairs[i]);
      }
    }
  }
}

// First operands whose rows are the columns of x, as tiles [column / 16][row / 32].
void PackTransposed(const Rows<const BFloat16>& x, BFloat16* tiles) {
  for (int64_t column = 0; column < x.columns; column += kTile) {
    for (int64_t row = 0; row < x.rows; row += kDepth, tiles += kTileElements) {
      __m512i pairs[kTile];
      PairRows(x, row, column, pairs);
      Transpose(pairs);
      for (int64_t i = 0; i < kTile; ++i) {
        _mm512_store_si512(tiles + i * kDepth, pairs[i]);
      }
    }
  }
}

// kPair rows from `first` on as a first operand: where they end early, a copy in `copy` with zeros after them.
Operand FirstOf(const Rows<const BFloat16>& x, int64_t first, BFloat16* copy) {
  if (first + kPair <= x.rows) {
    return RowsAsFirst(x.Row(first), x.stride);
  }
  std::memset(copy, 0, static_cast<size_t>(kPair * x.columns) * sizeof(BFloat16));
  for (int64_t i = 0; first + i < x.rows; ++i) {
    std::memcpy(copy + i * x.columns, x.Row(first + i), static_cast<size_t>(x.columns) * sizeof(BFloat16));
  }
  return RowsAsFirst(copy, x.columns);
}

struct ForwardRoom {
  ForwardRoom(RoomLine* room, int64_t head_dim) : parts(room), d(head_dim) {}

  Parts parts;
  int64_t d;
  BFloat16* keys = parts.Take<BFloat16>(kForwardKeys * d);
  BFloat16* values = parts.Take<BFloat16>(kForwardKeys * d);
  BFloat16* copy = parts.Take<BFloat16>(kPair * d);
  float* scores = parts.Take<float>(kPair * kForwardKeys);
  BFloat16* exponentials = parts.Take<BFloat16>(kPair * kForwardKeys);
  float* sums = parts.Take<float>(kForwardQueries * d);
  float* maxima = parts.Take<float>(kForwardQueries);
  float* totals = parts.Take<float>(kForwardQueries);
};

// Takes kPair queries from block row `row` on, `rows` of which exist, against the keys [seen, visible) of a block of
// packed keys and values; `first` when they saw none before.
void ForwardPair(const AttentionHead<BFloat16>& head, const ForwardRoom& room, int64_t first_query, int64_t row,
                 int64_t rows, int64_t first_key, int64_t seen, int64_t visible, bool first) {
  const int64_t d = room.d;
  const int64_t first_strip = seen / kPair;
  const int64_t strips = (visible + kPair - 1) / kPair;
  const Operand query = FirstOf(Block(head.query, 0, first_query + row + rows), first_query + row, room.copy);
  for (int64_t strip = first_strip; strip < strips; ++strip) {
    const BFloat16* const keys = room.keys + strip * kPair * d;
    ZeroSums();
    Multiply(query, {keys, keys + kTile * d, kRowBytes, kTileBytes}, d / kDepth);
    StoreSums(room.scores + strip * kPair, kForwardKeys);
  }
  AttentionKernels<BFloat16, Wide>::SoftmaxBlock(
      {room.scores, rows, strips * kPair, kForwardKeys}, {room.exponentials, rows, strips * kPair, kForwardKeys},
      first_query + row, first_key, head.starts == nullptr ? nullptr : head.starts + first_query + row, head.scale,
      room.maxima + row, room.totals + row, {room.sums + row * d, rows, d, d});
  const Operand exponentials = RowsAsFirst(room.exponentials + first_strip * kPair, kForwardKeys);
  for (int64_t column = 0; column < d; column += kPair) {
    float* const sums = room.sums + row * d + column;
    const BFloat16* const values = room.values + first_strip * kPair * d + column / kTile * kTileElements;
    if (first) {
      ZeroSums();
    } else {
      LoadSums(sums, d);
    }
    Multiply(exponentials, {values, values + kTileElements, kRowBytes, d / kTile * kTileBytes}, strips - first_strip);
    StoreSums(sums, d);
  }
}

struct BackwardRoom {
  BackwardRoom(RoomLine* room, int64_t head_dim) : parts(room), d(head_dim) {}

  Parts parts;
  int64_t d;
  // Parts of the queries: as columns and as rows of second operands, as the gradient of the output.
  BFloat16* query_columns = parts.Take<BFloat16>(kBackwardQueries * d);
  BFloat16* query_rows = parts.Take<BFloat16>(kBackwardQueries * d);
  BFloat16* grad_columns = parts.Take<BFloat16>(kBackwardQueries * d);
  BFloat16* grad_rows = parts.Take<BFloat16>(kBackwardQueries * d);
  float* statistics = parts.Take<float>(kBackwardQueries);
  int32_t* starts = parts.Take<int32_t>(kBackwardQueries);
  float* products = parts.Take<float>(kBackwardQueries);
  float* grad_query = parts.Take<float>(d * kBackwardQueries);  // transposed
  // Parts of the keys.
  BFloat16* keys = parts.Take<BFloat16>(kBackwardKeys * d);  // transposed
  BFloat16* key_copy = parts.Take<BFloat16>(kPair * d);
  BFloat16* value_copy = parts.Take<BFloat16>(kPair * d);
  float* sum_copy = parts.Take<float>(kPair * d);
  // Parts of both, transposed.
  float* scores = parts.Take<float>(kPair * kPair);
  float* grad_probabilities = parts.Take<float>(kPair * kPair);
  BFloat16* probabilities = parts.Take<BFloat16>(kPair * kBackwardQueries);
  BFloat16* grad_scores = parts.Take<BFloat16>(kPair * kBackwardQueries);
  BFloat16* grad_score_pairs = parts.Take<BFloat16>(kBackwardKeys * kBackwardQueries);
};

void PackQueries(const AttentionHead<BFloat16>& head, const AttentionHeadGrad<BFloat16>& grad, int64_t first,
                 int64_t rows, const BackwardRoom& room) {
  const Rows<const BFloat16> query = Block(head.query, first, rows);
  const Rows<const BFloat16> grad_out = Block(grad.grad_out, first, rows);
  PackAsColumns(query, room.query_columns);
  PackAsRows(query, room.query_rows);
  PackAsColumns(grad_out, room.grad_columns);
  PackAsRows(grad_out, room.grad_rows);
  AttentionKernels<BFloat16, Wide>::RowProducts(grad_out, Block(grad.out, first, rows), room.products);
  std::memcpy(room.statistics, grad.statistics + first, static_cast<size_t>(rows) * sizeof(float));
  for (int64_t i = 0; i < rows; ++i) {
    room.starts[i] = head.starts == nullptr ? 0 : head.starts[first + i];
  }
  for (int64_t i = rows; i < RoundUp(rows, kPair); ++i) {
    room.starts[i] = room.starts[rows - 1];
    room.statistics[i] = kHidden;
    room.products[i] = 0;
  }
  std::memset(room.grad_query, 0, static_cast<size_t>(room.d * kBackwardQueries) * sizeof(float));
}

GP_CPU_INLINE __m512 Widened(__m512i bits) { return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)); }

// Rounds to bf16; returns the bits in the lower halves of dwords.
GP_CPU_INLINE __m512i Rounded(__m512 x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)); }

GP_CPU_INLINE void StoreRounded(BFloat16* to, __m512i bits) {
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(bits));
}

// Turns kPair by kPair transposed scores and gradients of probabilities into probabilities and gradients of scores,
// which go to columns `row`, … of the room's; `pairs` is the first row of its pairs. `diagonal`: the queries are the
// keys, of which each sees those up to itself; of keys `first_key`, … in any case those from its start on.
GP_CPU_INLINE void ScoreGradients(const BackwardRoom& room, int64_t row, float scale, bool diagonal, int64_t first_key,
                                  BFloat16* pairs) {
  for (int64_t half = 0; half < kPair; half += kTile) {
    const F32 shift = Load(room.statistics + row + half);
    const F32 product = Load(room.products + row + half);
    const __m512i starts = _mm512_load_si512(room.starts + row + half);
    for (int64_t key = 0; key < kPair; key += 2) {
      __m512i gradients[2];
      for (int64_t i = 0; i < 2; ++i) {
        const int64_t hidden = diagonal ? AtMost(key + i - half < 0 ? 0 : key + i - half, kTile) : 0;
        const auto from_start =
            _mm512_cmple_epi32_mask(starts, _mm512_set1_epi32(static_cast<int>(first_key + key + i)));
        const auto seen = static_cast<__mmask16>((0xffffU << hidden) & from_start);
        const F32 exponentials = Exp(Load(room.scores + (key + i) * kPair + half) * scale - shift);
        const __m512i p = Rounded(_mm512_maskz_mov_ps(seen, (__m512)exponentials.part[0]));
        const F32 probabilities = {{(FloatVector)Widened(p)}};
        const F32 gradient =
            scale * probabilities * (Load(room.grad_probabilities + (key + i) * kPair + half) - product);
        gradients[i] = Rounded((__m512)gradient.part[0]);
        StoreRounded(room.probabilities + (key + i) * kBackwardQueries + row + half, p);
        StoreRounded(room.grad_scores + (key + i) * kBackwardQueries + row + half, gradients[i]);
      }
      _mm512_store_si512(pairs + (key / 2 * kBackwardQueries + row + half) * 2,
                         _mm512_or_si512(gradients[0], _mm512_slli_epi32(gradients[1], 16)));
    }
  }
}

// sums [kPair, d] += a * b, where a [kPair, queries from `from` on] lies in the room and b is packed by rows.
void AddOverQueries(const BFloat16* a, const BFloat16* b, int64_t from, int64_t rows, int64_t d, float* sums) {
  const int64_t steps = (rows - from + kDepth - 1) / kDepth;
  const Operand first = RowsAsFirst(a + from, kBackwardQueries);
  for (int64_t column = 0; column < d; column += kPair) {
    const BFloat16* const second = b + from * d + column / kTile * kTileElements;
    LoadSums(sums + column, d);
    Multiply(first, {second, second + kTileElements, kRowBytes, d / kTile * kTileBytes}, steps);
    StoreSums(sums + column, d);
  }
}

// The same for rows of sums of which `rows` exist.
void AddOverQueries(const BFloat16* a, const BFloat16* b, int64_t from, int64_t queries, const BackwardRoom& room,
                    int64_t rows, float* sums) {
  if (rows >= kPair) {
    AddOverQueries(a, b, from, queries, room.d, sums);
    return;
  }
  const auto bytes = static_cast<size_t>(rows * room.d) * sizeof(float);
  std::memcpy(room.sum_copy, sums, bytes);
  AddOverQueries(a, b, from, queries, room.d, room.sum_copy);
  std::memcpy(sums, room.sum_copy, bytes);
}

// Takes a block of packed queries against a block of keys. grad_key and grad_value are of all keys.
void BackwardBlock(const AttentionHead<BFloat16>& head, const BackwardRoom& room, int64_t first_query, int64_t queries,
                   int64_t first_key, int64_t keys, float* grad_key, float* grad_value) {
  const int64_t d = room.d;
  const Rows<const BFloat16> block = Block(head.key, first_key, keys);
  PackTransposed(block, room.keys);
  for (int64_t key = 0; key < keys; key += kPair) {
    const int64_t at = first_key + key;
    const int64_t from = at < first_query ? 0 : at - first_query;
    int64_t to = queries;  // of the queries that see any of the keys
    while (to > from && room.starts[(to - 1) / kPair * kPair] >= at + kPair) {
      to = (to - 1) / kPair * kPair;
    }
    const Operand key_rows = FirstOf(head.key, at, room.key_copy);
    const Operand value_rows = FirstOf(head.value, at, room.value_copy);
    for (int64_t row = from; row < to; row += kPair) {
      const BFloat16* const query = room.query_columns + row * d;
      const BFloat16* const grad = room.grad_columns + row * d;
      ZeroSums();
      Multiply(key_rows, {query, query + kTile * d, kRowBytes, kTileBytes}, d / kDepth);
      StoreSums(room.scores, kPair);
      ZeroSums();
      Multiply(value_rows, {grad, grad + kTile * d, kRowBytes, kTileBytes}, d / kDepth);
      StoreSums(room.grad_probabilities, kPair);
      ScoreGradients(room, row, head.scale, first_query + row == at, at,
                     room.grad_score_pairs + key * kBackwardQueries);
    }
    const int64_t rows = head.key.rows - at;
    if (to > from) {
      AddOverQueries(room.probabilities, room.grad_rows, from, to, room, rows, grad_value + at * d);
      AddOverQueries(room.grad_scores, room.query_rows, from, to, room, rows, grad_key + at * d);
    }
  }
  const int64_t key_steps = (keys + kDepth - 1) / kDepth;
  for (int64_t row = 0; row < queries; row += kPair) {
    const int64_t seen = room.starts[row] < first_key ? 0 : (room.starts[row] - first_key) / kDepth;
    const int64_t visible = (AtMost(first_query + row + kPair - first_key, keys) + kDepth - 1) / kDepth;
    if (visible <= seen) {
      continue;
    }
    const BFloat16* const pairs = room.grad_score_pairs + (seen * kTile * kBackwardQueries + row) * 2;
    const Operand gradients{pairs, pairs + kTile * 2, kBackwardQueries * 4, kTile * kBackwardQueries * 4};
    for (int64_t column = 0; column < d; column += kPair) {
      const BFloat16* const first = room.keys + (column / kTile * key_steps + seen) * kTileElements;
      float* const sums = room.grad_query + column * kBackwardQueries + row;
      LoadSums(sums, kBackwardQueries);
      Multiply({first, first + key_steps * kTileElements, kRowBytes, kTileBytes}, gradients, visible - seen);
      StoreSums(sums, kBackwardQueries);
    }
  }
}

// grad_query [rows, d] = the transposed sums of the room.
void StoreQueryGradients(const BackwardRoom& room, const Rows<BFloat16>& grad_query) {
  for (int64_t row = 0; row < grad_query.rows; row += kTile) {
    for (int64_t column = 0; column < grad_query.columns; column += kTile) {
      __m512i values[kTile];
      for (int64_t i = 0; i < kTile; ++i) {
        values[i] = _mm512_load_si512(room.grad_query + (column + i) * kBackwardQueries + row);
      }
      Transpose(values);
      for (int64_t i = 0; i < AtMost(kTile, grad_query.rows - row); ++i) {
        F32 value;
        std::memcpy(&value, &values[i], sizeof(value));
        Store(grad_query.Row(row + i) + column, value);
      }
    }
  }
}

}  // namespace

int64_t TileAttention::RoomLines(int64_t head_dim) {
  return AtLeast(ForwardRoom(nullptr, head_dim).parts.lines(), BackwardRoom(nullptr, head_dim).parts.lines());
}

void TileAttention::Forward(const AttentionHead<BFloat16>& head, const Rows<BFloat16>& out, float* statistics,
                            RoomLine* lines) {
  const TilesInUse tiles;
  const ForwardRoom room(lines, head.query.columns);
  const int64_t s = head.query.rows;
  for (int64_t first = 0; first < s; first += kForwardQueries) {
    const int64_t queries = AtMost(kForwardQueries, s - first);
    std::memset(room.totals, 0, static_cast<size_t>(queries) * sizeof(float));
    for (int64_t first_key = FirstSeen(head, first) / kForwardKeys * kForwardKeys; first_key < first + queries;
         first_key += kForwardKeys) {
      const int64_t keys = AtMost(kForwardKeys, first + queries - first_key);
      PackAsColumns(Block(head.key, first_key, keys), room.keys);
      PackAsRows(Block(head.value, first_key, keys), room.values);
      for (int64_t row = 0; row < queries; row += kPair) {
        const int64_t seen = FirstSeen(head, first + row) - first_key;
        const int64_t visible = AtMost(first + row + kPair - first_key, keys);
        if (visible > 0 && seen < keys) {
          ForwardPair(head, room, first, row, AtMost(kPair, queries - row), first_key, seen < 0 ? 0 : seen, visible,
                      seen >= 0);
        }
      }
    }
    AttentionKernels<BFloat16, Wide>::EndSoftmax({room.sums, queries, room.d, room.d}, room.maxima, room.totals,
                                                 Block(out, first, queries), statistics + first);
  }
}

void TileAttention::Backward(const AttentionHead<BFloat16>& head, const AttentionHeadGrad<BFloat16>& grad,
                             RoomLine* lines) {
  const TilesInUse tiles;
  const BackwardRoom room(lines, head.query.columns);
  const int64_t s = head.query.rows;
  for (int64_t first = 0; first < s; first += kBackwardQueries) {
    const int64_t queries = AtMost(kBackwardQueries, s - first);
    PackQueries(head, grad, first, queries, room);
    for (int64_t first_key = FirstSeen(head, first) / kBackwardKeys * kBackwardKeys; first_key < first + queries;
         first_key += kBackwardKeys) {
      const int64_t keys = AtMost(kBackwardKeys, first + queries - first_key);
      BackwardBlock(head, room, first, queries, first_key, keys, grad.grad_key, grad.grad_value);
    }
    StoreQueryGradients(room, Block(grad.grad_query, first, queries));
  }
}

}  // namespace geopipe::cpu
