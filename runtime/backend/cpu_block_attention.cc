// Scores are computed transposed, [keys, queries]: the softmax then goes along lanes of queries, and the seven
// products of the two passes all have the form rows of numbers times rows of vectors.
#include <cstring>
#include <type_traits>

#include "runtime/backend/cpu_room.h"

namespace geopipe::cpu {
namespace {

// Queries and keys of a block. What lies in the room fits the second cache, and the vectors of a product the first.
constexpr int64_t kQueries = 128;
constexpr int64_t kKeys = 64;

// The part of a product whose sums stay in registers: so many rows by so many times kLanes columns.
constexpr int64_t kSumRows = 4;
constexpr int64_t kSumLanes = kVectors == 1 ? 4 : 1;

constexpr float kNothing = -3.0e38F;
constexpr float kHidden = 3.0e38F;  // the statistic of a query that does not exist: its probabilities are 0

// The part of x from (row, column) on, `rows` by `columns`.
GP_CPU_INLINE Rows<float> Part(const Rows<float>& x, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  return {x.Row(row) + column, rows, columns, x.stride};
}

// The first operand of a product: element (i, k) lies at data + i * row + k * step.
struct Factor {
  const float* data;
  int64_t row;
  int64_t step;

  GP_CPU_BODY Factor From(int64_t i) const { return {data + i * row, row, step}; }
};

// The factor that begins at (row, column) of x, and of x transposed.
GP_CPU_INLINE Factor FactorOf(const Rows<float>& x, int64_t row, int64_t column) {
  return {x.Row(row) + column, x.stride, 1};
}
GP_CPU_INLINE Factor TransposedFactorOf(const Rows<float>& x, int64_t row, int64_t column) {
  return {x.Row(row) + column, 1, x.stride};
}

enum class Begin { kZero, kSums, kScaledSums };

// sums = the sums before, if wanted, times scales [rows], plus numbers [rows, steps] * vectors [steps, columns], for
// the first kRows rows and kN * kLanes columns; `columns` of them exist, which may be fewer only where kN is 1.
template <int64_t kRows, int64_t kN, Begin kBegin>
GP_CPU_INLINE void AddUp(const Factor& numbers, const Rows<float>& vectors, const float* scales,
                         const Rows<float>& sums, int64_t columns) {
  F32 parts[kRows][kN];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int64_t n = 0; n < kN; ++n) {
      if constexpr (kBegin == Begin::kZero) {
        parts[i][n] = F32{};
      } else {
        parts[i][n] = LoadUpTo(sums.Row(i) + n * kLanes, kN == 1 ? columns : kLanes);
      }
      if constexpr (kBegin == Begin::kScaledSums) {
        parts[i][n] = parts[i][n] * scales[i];
      }
    }
  }
  for (int64_t step = 0; step < vectors.rows; ++step) {
    F32 vector[kN];
#pragma GCC unroll 8
    for (int64_t n = 0; n < kN; ++n) {
      vector[n] = Load(vectors.Row(step) + n * kLanes);
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
      const F32 number = Splat(numbers.data[i * numbers.row + step * numbers.step]);
#pragma GCC unroll 8
      for (int64_t n = 0; n < kN; ++n) {
        parts[i][n] = MultiplyAdd(number, vector[n], parts[i][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int64_t n = 0; n < kN; ++n) {
      StoreUpTo(sums.Row(i) + n * kLanes, kN == 1 ? columns : kLanes, parts[i][n]);
    }
  }
}

// The same for all columns of the sums; the vectors have whole lanes of them.
template <int64_t kRows, Begin kBegin>
void AddUpRows(const Factor& numbers, const Rows<float>& vectors, const float* scales, const Rows<float>& sums) {
  int64_t column = 0;
  const auto add_up = [&]<int64_t kN>(std::integral_constant<int64_t, kN> /*lanes*/) {
    for (; column + (kN == 1 ? 1 : kN * kLanes) <= sums.columns; column += kN * kLanes) {
      AddUp<kRows, kN, kBegin>(numbers, Part(vectors, 0, vectors.rows, column, kN * kLanes), scales,
                               Part(sums, 0, kRows, column, kN * kLanes), AtMost(sums.columns - column, kN * kLanes));
    }
  };
  if constexpr (kSumLanes == 4) {
    add_up(std::integral_constant<int64_t, 4>());
    add_up(std::integral_constant<int64_t, 2>());
  }
  add_up(std::integral_constant<int64_t, 1>());
}

// The same for all rows of the sums.
template <Begin kBegin>
void AddUpAll(const Factor& numbers, const Rows<float>& vectors, const Rows<float>& sums,
              const float* scales = nullptr) {
  const auto scales_from = [&](int64_t row) { return kBegin == Begin::kScaledSums ? scales + row : nullptr; };
  const int64_t whole = sums.rows / kSumRows * kSumRows;
  for (int64_t row = 0; row < whole; row += kSumRows) {
    AddUpRows<kSumRows, kBegin>(numbers.From(row), vectors, scales_from(row), Block(sums, row, sums.rows - row));
  }
  for (int64_t row = whole; row < sums.rows; ++row) {
    AddUpRows<1, kBegin>(numbers.From(row), vectors, scales_from(row), Block(sums, row, sums.rows - row));
  }
}

// Copies x in fp32, with zeros after its columns.
template <class T>
void Pack(const Rows<const T>& x, const Rows<float>& to) {
  for (int64_t i = 0; i < x.rows; ++i) {
    ForLanes(0, x.columns,
             [&](int64_t j, int64_t count) GP_CPU_BODY { Store(to.Row(i) + j, LoadUpTo(x.Row(i) + j, count)); });
  }
}

// Copies x transposed, with zeros for rows and columns that do not exist.
template <class T>
void PackTransposed(const Rows<const T>& x, const Rows<float>& to) {
  for (int64_t row = 0; row < to.columns; row += kVectorLanes) {
    for (int64_t column = 0; column < x.columns; column += kLanes) {
      F32 lanes[kVectorLanes];
      for (int64_t i = 0; i < kVectorLanes; ++i) {
        lanes[i] = row + i < x.rows ? LoadUpTo(x.Row(row + i) + column, AtMost(x.columns - column, kLanes)) : F32{};
      }
#pragma GCC unroll 2
      for (int64_t part = 0; part < kVectors; ++part) {
        FloatVector rows[kVectorLanes];
        for (int64_t i = 0; i < kVectorLanes; ++i) {
          rows[i] = lanes[i].part[part];
        }
        Transpose(rows);
        for (int64_t i = 0; i < kVectorLanes; ++i) {
          std::memcpy(to.Row(column + part * kVectorLanes + i) + row, &rows[i], kVectorBytes);
        }
      }
    }
  }
}

// Queries and keys that are taken together.
struct Pairs {
  int64_t first_query;
  int64_t queries;
  int64_t first_key;
  int64_t keys;
};

// Keys of a block that each query of a vector of queries sees.
struct Sight {
  Int32Vector last[kVectors];   // key that the query sees, counted from the block's first, as the others
  Int32Vector first[kVectors];  // that its document begins with
  int64_t visible;              // keys from here on no query sees
  int64_t whole;                // from 0 to here every query sees all
};

// The sight of a vector of queries from block row `row` on; starts: of all block rows, or null.
GP_CPU_INLINE Sight SightOf(const Pairs& pairs, int64_t row, const int32_t* starts) {
  Sight sight;
  const int64_t query = pairs.first_query + row - pairs.first_key;
  int64_t latest_start = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    const int64_t start = starts == nullptr ? 0 : AtLeast(starts[row + lane] - pairs.first_key, 0);
    sight.last[lane / kVectorLanes][lane % kVectorLanes] = static_cast<int32_t>(query + lane);
    sight.first[lane / kVectorLanes][lane % kVectorLanes] = static_cast<int32_t>(start);
    latest_start = AtLeast(start, latest_start);
  }
  sight.visible = AtLeast(AtMost(query + kLanes, pairs.keys), 0);
  sight.whole = latest_start > 0 ? 0 : AtLeast(AtMost(query + 1, pairs.keys), 0);
  return sight;
}

// x where the query sees the key, `fill` elsewhere.
GP_CPU_INLINE F32 IfSeen(const Sight& sight, int64_t key, F32 x, float fill) {
  return Each([&](int64_t i) GP_CPU_BODY {
    const Int32Vector at = Int32Vector{} + static_cast<int32_t>(key);
    return (at <= sight.last[i]) & (at >= sight.first[i]) ? x.part[i] : FloatVector{} + fill;
  });
}

// A part of a room for a matrix whose rows lie together.
GP_CPU_INLINE Rows<float> TakeRows(Parts& parts, int64_t rows, int64_t columns) {
  return {parts.Take<float>(rows * columns), rows, columns, columns};
}

// In the rooms, rows as long as the head end with zeros, up to whole lanes.
struct ForwardRoom {
  ForwardRoom(RoomLine* room, int64_t head_dim) : parts(room), width(RoundUp(head_dim, kLanes)) {}

  Parts parts;
  int64_t width;
  Rows<float> queries = TakeRows(parts, width, kQueries);  // transposed
  Rows<float> keys = TakeRows(parts, kKeys, width);
  Rows<float> values = TakeRows(parts, kKeys, width);
  Rows<float> scores = TakeRows(parts, kKeys, kQueries);
  Rows<float> sums = TakeRows(parts, kQueries, width);
  int32_t* starts = parts.Take<int32_t>(kQueries);
  float* maxima = parts.Take<float>(kQueries);
  float* totals = parts.Take<float>(kQueries);
  float* shrinks = parts.Take<float>(kQueries);
};

// Calls f(key, rows, row) for runs of `rows` keys from `key` on, which queries from block row `row` on may see.
template <class F>
GP_CPU_INLINE void ForKeys(const Pairs& pairs, const F& f) {
  for (int64_t key = 0; key < pairs.keys; key += kLanes) {
    f(key, AtMost(kLanes, pairs.keys - key), AtLeast(pairs.first_key + key - pairs.first_query, 0) / kLanes * kLanes);
  }
}

// products [keys, queries] = rows [keys, d] * columns [d, queries], where queries may see keys.
void MultiplySeen(const Pairs& pairs, int64_t d, const Rows<float>& rows, const Rows<float>& columns,
                  const Rows<float>& products) {
  const int64_t lanes = RoundUp(pairs.queries, kLanes);
  ForKeys(pairs, [&](int64_t key, int64_t count, int64_t row) GP_CPU_BODY {
    AddUpAll<Begin::kZero>(FactorOf(rows, key, 0), Part(columns, 0, d, row, lanes - row),
                           Part(products, key, count, row, lanes - row));
  });
}

// Takes the scores of a vector of queries, from block row `row` on, into their softmax.
GP_CPU_INLINE void SoftmaxLanes(const ForwardRoom& room, int64_t row, const Sight& sight, float scale) {
  const auto score = [&](int64_t key) GP_CPU_BODY { return room.scores.Row(key) + row; };
  F32 most = Splat(kNothing);
  for (int64_t key = 0; key < sight.whole; ++key) {
    most = Max(most, Load(score(key)));
  }
  for (int64_t key = sight.whole; key < sight.visible; ++key) {
    most = Max(most, IfSeen(sight, key, Load(score(key)), kNothing));
  }
  const F32 before = Load(room.maxima + row);
  const F32 maxima = Max(before, most * scale);
  const F32 shrinks = Exp(before - maxima);
  F32 totals = Load(room.totals + row) * shrinks;
  const auto exponential = [&](int64_t key) GP_CPU_BODY { return Exp(Load(score(key)) * scale - maxima); };
  for (int64_t key = 0; key < sight.whole; ++key) {
    const F32 e = exponential(key);
    Store(score(key), e);
    totals += e;
  }
  for (int64_t key = sight.whole; key < sight.visible; ++key) {
    const F32 e = IfSeen(sight, key, exponential(key), 0);
    Store(score(key), e);
    totals += e;
  }
  Store(room.maxima + row, maxima);
  Store(room.totals + row, totals);
  Store(room.shrinks + row, shrinks);
}

template <class T>
void ForwardBlock(const AttentionHead<T>& head, const ForwardRoom& room, const Pairs& pairs) {
  Pack(Block(head.key, pairs.first_key, pairs.keys), room.keys);
  Pack(Block(head.value, pairs.first_key, pairs.keys), room.values);
  MultiplySeen(pairs, head.query.columns, room.keys, room.queries, room.scores);
  for (int64_t row = 0; row < pairs.queries; row += kLanes) {
    const Sight sight = SightOf(pairs, row, head.starts == nullptr ? nullptr : room.starts);
    SoftmaxLanes(room, row, sight, head.scale);
    AddUpAll<Begin::kScaledSums>(TransposedFactorOf(room.scores, 0, row), Block(room.values, 0, sight.visible),
                                 Block(room.sums, row, kLanes), room.shrinks + row);
  }
}

struct BackwardRoom {
  BackwardRoom(RoomLine* room, int64_t head_dim) : parts(room), width(RoundUp(head_dim, kLanes)) {}

  Parts parts;
  int64_t width;
  Rows<float> queries = TakeRows(parts, kQueries, width);
  Rows<float> query_columns = TakeRows(parts, width, kQueries);  // transposed
  Rows<float> grads = TakeRows(parts, kQueries, width);          // of the output
  Rows<float> grad_columns = TakeRows(parts, width, kQueries);
  Rows<float> grad_queries = TakeRows(parts, kQueries, width);
  Rows<float> keys = TakeRows(parts, kKeys, width);
  Rows<float> values = TakeRows(parts, kKeys, width);
  Rows<float> scores = TakeRows(parts, kKeys, kQueries);  // then probabilities
  Rows<float> grad_scores = TakeRows(parts, kKeys, kQueries);
  int32_t* starts = parts.Take<int32_t>(kQueries);
  float* statistics = parts.Take<float>(kQueries);
  float* products = parts.Take<float>(kQueries);
};

// Turns the scores of a vector of queries and the gradients of their probabilities into probabilities and gradients of
// scores.
GP_CPU_INLINE void ScoreGradients(const BackwardRoom& room, int64_t row, const Sight& sight, float scale) {
  const F32 shift = Load(room.statistics + row);
  const F32 product = Load(room.products + row);
  const auto turn = [&](int64_t key, const auto& probability) GP_CPU_BODY {
    float* const score = room.scores.Row(key) + row;
    float* const grad = room.grad_scores.Row(key) + row;
    const F32 p = probability(Exp(Load(score) * scale - shift));
    Store(score, p);
    Store(grad, scale * p * (Load(grad) - product));
  };
  for (int64_t key = 0; key < sight.whole; ++key) {
    turn(key, [](F32 p) GP_CPU_BODY { return p; });
  }
  for (int64_t key = sight.whole; key < sight.visible; ++key) {
    turn(key, [&](F32 p) GP_CPU_BODY { return IfSeen(sight, key, p, 0); });
  }
}

template <class T>
void BackwardBlock(const AttentionHead<T>& head, const AttentionHeadGrad<T>& grad, const BackwardRoom& room,
                   const Pairs& pairs) {
  const int64_t d = head.query.columns;
  Pack(Block(head.key, pairs.first_key, pairs.keys), room.keys);
  Pack(Block(head.value, pairs.first_key, pairs.keys), room.values);
  MultiplySeen(pairs, d, room.keys, room.query_columns, room.scores);
  MultiplySeen(pairs, d, room.values, room.grad_columns, room.grad_scores);
  for (int64_t row = 0; row < pairs.queries; row += kLanes) {
    const Sight sight = SightOf(pairs, row, head.starts == nullptr ? nullptr : room.starts);
    ScoreGradients(room, row, sight, head.scale);
    AddUpAll<Begin::kSums>(TransposedFactorOf(room.grad_scores, 0, row), Block(room.keys, 0, sight.visible),
                           Block(room.grad_queries, row, kLanes));
  }
  ForKeys(pairs, [&](int64_t key, int64_t rows, int64_t row) GP_CPU_BODY {
    const int64_t at = (pairs.first_key + key) * d;
    AddUpAll<Begin::kSums>(FactorOf(room.scores, key, row), Block(room.grads, row, pairs.queries - row),
                           {grad.grad_value + at, rows, d, d});
    AddUpAll<Begin::kSums>(FactorOf(room.grad_scores, key, row), Block(room.queries, row, pairs.queries - row),
                           {grad.grad_key + at, rows, d, d});
  });
}

// Zeroes rows that lie together.
void Clear(const Rows<float>& x) { std::memset(x.data, 0, static_cast<size_t>(x.rows * x.columns) * sizeof(float)); }

void Fill(float* begin, const float* end, float value) {
  for (; begin < end; ++begin) {
    *begin = value;
  }
}

void PackStarts(const int32_t* starts, int64_t queries, int32_t* to) {
  for (int64_t i = 0; i < kQueries; ++i) {
    to[i] = starts == nullptr ? 0 : starts[AtMost(i, queries - 1)];
  }
}

}  // namespace

template <class T, class Width>
int64_t BlockAttention<T, Width>::RoomLines(int64_t head_dim) {
  return AtLeast(ForwardRoom(nullptr, head_dim).parts.lines(), BackwardRoom(nullptr, head_dim).parts.lines());
}

template <class T, class Width>
void BlockAttention<T, Width>::Forward(const AttentionHead<T>& head, const Rows<T>& out, float* statistics,
                                       RoomLine* lines) {
  const ForwardRoom room(lines, head.query.columns);
  const int64_t s = head.query.rows;
  for (int64_t first = 0; first < s; first += kQueries) {
    const int64_t queries = AtMost(kQueries, s - first);
    PackTransposed(Block(head.query, first, queries), room.queries);
    PackStarts(head.starts == nullptr ? nullptr : head.starts + first, queries, room.starts);
    Clear(room.sums);
    Fill(room.totals, room.totals + kQueries, 0);
    Fill(room.maxima, room.maxima + kQueries, kNothing);
    for (int64_t first_key = FirstSeen(head, first) / kKeys * kKeys; first_key < first + queries; first_key += kKeys) {
      ForwardBlock(head, room, {first, queries, first_key, AtMost(kKeys, first + queries - first_key)});
    }
    AttentionKernels<T, CompiledWidth>::EndSoftmax({room.sums.data, queries, head.query.columns, room.width},
                                                   room.maxima, room.totals, Block(out, first, queries),
                                                   statistics + first);
  }
}

template <class T, class Width>
void BlockAttention<T, Width>::Backward(const AttentionHead<T>& head, const AttentionHeadGrad<T>& grad,
                                        RoomLine* lines) {
  const int64_t d = head.query.columns;
  const BackwardRoom room(lines, d);
  const int64_t s = head.query.rows;
  for (int64_t first = 0; first < s; first += kQueries) {
    const int64_t queries = AtMost(kQueries, s - first);
    const Rows<const T> query = Block(head.query, first, queries);
    const Rows<const T> grad_out = Block(grad.grad_out, first, queries);
    Pack(query, room.queries);
    PackTransposed(query, room.query_columns);
    Pack(grad_out, room.grads);
    PackTransposed(grad_out, room.grad_columns);
    PackStarts(head.starts == nullptr ? nullptr : head.starts + first, queries, room.starts);
    AttentionKernels<T, CompiledWidth>::RowProducts(grad_out, Block(grad.out, first, queries), room.products);
    std::memcpy(room.statistics, grad.statistics + first, static_cast<size_t>(queries) * sizeof(float));
    Fill(room.statistics + queries, room.statistics + kQueries, kHidden);
    Fill(room.products + queries, room.products + kQueries, 0);
    Clear(room.grad_queries);
    for (int64_t first_key = FirstSeen(head, first) / kKeys * kKeys; first_key < first + queries; first_key += kKeys) {
      BackwardBlock(head, grad, room, {first, queries, first_key, AtMost(kKeys, first + queries - first_key)});
    }
    for (int64_t i = 0; i < queries; ++i) {
      T* const to = grad.grad_query.Row(first + i);
      ForLanes(0, d, [&](int64_t j, int64_t count) GP_CPU_BODY {
        StoreUpTo(to + j, count, Load(room.grad_queries.Row(i) + j));
      });
    }
  }
}

template struct BlockAttention<float, CompiledWidth>;
template struct BlockAttention<BFloat16, CompiledWidth>;

}  // namespace geopipe::cpu
