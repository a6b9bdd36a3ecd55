#include <cmath>
#include <cstring>

#include "runtime/backend/cpu_kernels.h"
#include "runtime/backend/cpu_parallel.h"
#include "runtime/backend/cpu_simd.h"

namespace geopipe::cpu {
namespace {

constexpr float kNothing = -3.0e38F;

template <class T>
void StoreZeros(T* row, int64_t begin, int64_t end) {
  if (begin < end) {
    std::memset(row + begin, 0, static_cast<size_t>(end - begin) * sizeof(T));
  }
}

// The columns [begin, end) of a block that a query sees: begin == end where there is none.
struct Seen {
  int64_t begin;
  int64_t end;
};

Seen SeenBy(int64_t query, const int32_t* start, int64_t first_key, int64_t columns) {
  const auto inside = [&](int64_t key) {
    const int64_t column = key - first_key;
    return column < 0 ? 0 : column < columns ? column : columns;
  };
  return {start == nullptr ? 0 : inside(*start), inside(query + 1)};
}

float RowMax(const float* row, int64_t count) {
  const int64_t whole = count / kLanes * kLanes;
  F32 maxima = whole == count ? Splat(kNothing) : LoadPartial(row + whole, count - whole, kNothing);
  for (int64_t j = 0; j < whole; j += kLanes) {
    maxima = Max(maxima, Load(row + j));
  }
  return Max(maxima);
}

// Writes exp(scale * row - shift) and returns its sum as it is before it is rounded.
template <class T>
float ExpRow(const float* row, T* exponentials, int64_t count, float scale, float shift) {
  const int64_t whole = count / kLanes * kLanes;
  F32 sums{};
  for (int64_t j = 0; j < whole; j += kLanes) {
    const F32 e = Exp(Load(row + j) * scale - shift);
    Store(exponentials + j, e);
    sums += e;
  }
  if (whole < count) {
    const int64_t rest = count - whole;
    const F32 e = Exp(LoadPartial(row + whole, rest, kNothing) * scale - shift);  // 0 in the lanes that don't exist
    StorePartial(exponentials + whole, e, rest);
    sums += e;
  }
  return Sum(sums);
}

}  // namespace

template <class T, class Width>
void AttentionKernels<T, Width>::Rope(int threads, const Rows<T>& x, const float* cosine, const float* sine,
                                      int64_t sequence, int64_t head_dim, float sign) {
  const int64_t half = head_dim / 2;
  ParallelFor(threads, x.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* c = cosine + i % sequence * half;
      const float* s = sine + i % sequence * half;
      for (T* first = x.Row(i); first < x.Row(i) + x.columns; first += head_dim) {
        T* second = first + half;
        ForLanes(0, half, [&](int64_t j, int64_t count) GP_CPU_BODY {
          const F32 a = LoadUpTo(first + j, count);
          const F32 b = LoadUpTo(second + j, count);
          const F32 level = LoadUpTo(c + j, count);
          const F32 turned = sign * LoadUpTo(s + j, count);
          StoreUpTo(first + j, count, a * level - b * turned);
          StoreUpTo(second + j, count, b * level + a * turned);
        });
      }
    }
  });
}

template <class T, class Width>
void AttentionKernels<T, Width>::SoftmaxBlock(const Rows<const float>& scores, const Rows<T>& exponentials,
                                              int64_t first_query, int64_t first_key, const int32_t* starts,
                                              float scale, float* maxima, float* totals, const Rows<float>& sums) {
  for (int64_t i = 0; i < scores.rows; ++i) {
    const Seen seen = SeenBy(first_query + i, starts == nullptr ? nullptr : starts + i, first_key, scores.columns);
    const int64_t count = seen.end - seen.begin;
    T* const row = exponentials.Row(i);
    StoreZeros(row, 0, seen.begin);
    StoreZeros(row, seen.end, scores.columns);
    if (count == 0) {
      continue;
    }
    const float* const score = scores.Row(i) + seen.begin;
    const float block_max = scale * RowMax(score, count);
    if (totals[i] == 0) {
      maxima[i] = block_max;
      totals[i] = ExpRow(score, row + seen.begin, count, scale, block_max);
      continue;
    }
    const float max = block_max > maxima[i] ? block_max : maxima[i];
    const float shrink = std::exp(maxima[i] - max);
    totals[i] = totals[i] * shrink + ExpRow(score, row + seen.begin, count, scale, max);
    maxima[i] = max;
    float* const sum = sums.Row(i);
    ForLanes(0, sums.columns, [&](int64_t j, int64_t count) GP_CPU_BODY {
      StoreUpTo(sum + j, count, LoadUpTo(sum + j, count) * shrink);
    });
  }
}

template <class T, class Width>
void AttentionKernels<T, Width>::EndSoftmax(const Rows<const float>& sums, const float* maxima, const float* totals,
                                            const Rows<T>& out, float* statistics) {
  for (int64_t i = 0; i < sums.rows; ++i) {
    const float inverse = 1.0F / totals[i];
    const float* const sum = sums.Row(i);
    T* const row = out.Row(i);
    ForLanes(0, sums.columns, [&](int64_t j, int64_t count) GP_CPU_BODY {
      StoreUpTo(row + j, count, LoadUpTo(sum + j, count) * inverse);
    });
    statistics[i] = maxima[i] + std::log(totals[i]);
  }
}

template <class T, class Width>
void AttentionKernels<T, Width>::RowProducts(const Rows<const T>& a, const Rows<const T>& b, float* products) {
  for (int64_t i = 0; i < a.rows; ++i) {
    const T* const left = a.Row(i);
    const T* const right = b.Row(i);
    F32 sums{};
    ForLanes(0, a.columns, [&](int64_t j, int64_t count) GP_CPU_BODY {
      sums += LoadUpTo(left + j, count) * LoadUpTo(right + j, count);
    });
    products[i] = Sum(sums);
  }
}

template struct AttentionKernels<float, CompiledWidth>;
template struct AttentionKernels<BFloat16, CompiledWidth>;

}  // namespace geopipe::cpu
