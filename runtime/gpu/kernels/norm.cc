// RmsNorm and its gradients. A line, one group of a row, belongs to a team: a warp where it is short, else a block.
#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/kernels/reduce.h"
#include "runtime/gpu/kernels/rows.h"

namespace geopipe::gpu {
namespace {

// Teams and their share of a line: kChunks groups of kN columns for each thread. kChunks == 0: any number of them, read
// anew where the others keep them in registers.
template <int kTeamV, int kThreadsV, int kNV, int kChunksV>
struct Layout {
  static constexpr int kTeam = kTeamV;
  static constexpr int kThreads = kThreadsV;  // of a block
  static constexpr int kTeams = kThreads / kTeam;
  static constexpr int kBlocks = kThreads < 512 ? 2 : 1024 / kThreads;  // that an SM has registers for, at least
  static constexpr int kN = kNV;
  static constexpr int kChunks = kChunksV;
  static constexpr int kKept = kChunks > 0 ? kChunks : 1;
};
using WarpLines = Layout<kWarp, 256, 4, 4>;
using BlockLines = Layout<512, 512, 8, 1>;
using WideBlockLines = Layout<1024, 1024, 8, 1>;
using AnyLines = Layout<1024, 1024, 8, 0>;

// Greatest width of a line whose elements are kept.
template <class L>
constexpr int kMaxWidth = L::kTeam* L::kN* L::kChunks;

template <class L>
__device__ inline int ChunksOf(int width) {
  return L::kChunks > 0 ? L::kChunks : Parts(width, L::kTeam * L::kN);
}

// Place of a line's first column.
template <class T>
__device__ inline T* LineOf(const Rows<T>& rows, unsigned line, unsigned groups, int width) {
  return rows.At(line / groups) + static_cast<int64_t>(line % groups) * width;
}

template <class T, class L>
__global__ void __launch_bounds__(L::kThreads)
    RmsNormKernel(unsigned lines, unsigned groups, int width, Rows<const T> x, Rows<const float> weight, float eps,
                  Rows<T> y, float* inverse_rms) {
  const unsigned line = blockIdx.x * L::kTeams + threadIdx.x / L::kTeam;
  if (line >= lines) {
    return;
  }
  const T* const in = LineOf(x, line, groups, width);
  T* const out = LineOf(y, line, groups, width);
  const int first = static_cast<int>(threadIdx.x) % L::kTeam * L::kN;
  const int chunks = ChunksOf<L>(width);
  float kept[L::kKept][L::kN];
  float sum = 0;
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    float(&value)[L::kN] = kept[L::kChunks > 0 ? c : 0];
    const int j = first + c * L::kTeam * L::kN;
    Load(in + j, x.vector, width - j, value);
#pragma unroll
    for (int i = 0; i < L::kN; ++i) {
      sum += value[i] * value[i];
    }
  }
  sum = FoldTeam<L::kTeam>(sum, Add(), 0);
  const float scale = 1.0F / sqrtf(sum / static_cast<float>(width) + eps);
  if (threadIdx.x % L::kTeam == 0) {
    inverse_rms[line] = scale;
  }
#pragma unroll
  for (int c = 0; c < chunks; ++c) {
    float(&value)[L::kN] = kept[L::kChunks > 0 ? c : 0];
    const int j = first + c * L::kTeam * L::kN;
    if constexpr (L::kChunks == 0) {
      Load(in + j, x.vector, width - j, value);
    }
    float factor[L::kN];
    Load(weight.data + j, weight.vector, width - j, factor);
#pragma unroll
    for (int i = 0; i < L::kN; ++i) {
      value[i] = value[i] * scale * factor[i];
    }
    Store(out + j, y.vector, width - j, value);
  }
}

template <class T>
struct GradOperands {
  unsigned lines;
  unsigned groups;
  int width;
  unsigned lines_of_team;
  Rows<const T> x;
  Rows<const float> weight;
  const float* inverse_rms;
  Rows<const T> grad_y;
  Rows<const T> residual;  // data may be null
  Rows<T> grad_x;
  Rows<float> parts;  // [blocks, width]
};

#if !defined(__CUDACC__)
template <class T>
GradOperands<T> OnProcessor(GradOperands<T> o) {
  o.x = OnProcessor(o.x);
  o.weight = OnProcessor(o.weight);
  o.inverse_rms = emulation::OnProcessor(o.inverse_rms);
  o.grad_y = OnProcessor(o.grad_y);
  o.residual = OnProcessor(o.residual);
  o.grad_x = OnProcessor(o.grad_x);
  o.parts = OnProcessor(o.parts);
  return o;
}
#endif

// Adds the sums of the block's teams, in their order, and stores them as the block's part.
template <class L>
__device__ inline void StorePart(const float (&sums)[L::kKept][L::kN], int first, int width, float* part, bool vector) {
  if constexpr (L::kTeams == 1) {
#pragma unroll
    for (int c = 0; c < L::kChunks; ++c) {
      const int j = first + c * L::kTeam * L::kN;
      Store(part + j, vector, width - j, sums[c]);
    }
  } else {
    GP_SHARED(float, of_teams, L::kTeams* kMaxWidth<L>);
    float* const own = of_teams + threadIdx.x / L::kTeam * kMaxWidth<L>;
#pragma unroll
    for (int c = 0; c < L::kChunks; ++c) {
      const int j = first + c * L::kTeam * L::kN;
      if (j < width) {
        Store(own + j, true, L::kN, sums[c]);
      }
    }
    __syncthreads();
    for (int j = static_cast<int>(threadIdx.x); j < width; j += L::kThreads) {
      float sum = of_teams[j];
#pragma unroll
      for (int team = 1; team < L::kTeams; ++team) {
        sum += of_teams[team * kMaxWidth<L> + j];
      }
      part[j] = sum;
    }
  }
}

// With r = inverse_rms: d/dx of x r w is r (w dy) - x r^3 / width * sum(w dy x), and d/dw is the sum of dy x r. A team
// has lines_of_team consecutive lines.
template <class T, class L>
__global__ void __launch_bounds__(L::kThreads, L::kBlocks) RmsNormGradKernel(GradOperands<T> o) {
  const int width = o.width;
  const int first = static_cast<int>(threadIdx.x) % L::kTeam * L::kN;
  const int chunks = ChunksOf<L>(width);
  float* const part = o.parts.At(blockIdx.x);
  const unsigned begin = (blockIdx.x * L::kTeams + threadIdx.x / L::kTeam) * o.lines_of_team;
  const unsigned end = begin + o.lines_of_team < o.lines ? begin + o.lines_of_team : o.lines;
  float sums[L::kKept][L::kN] = {};
  for (unsigned line = begin; line < end; ++line) {
    const T* const in = LineOf(o.x, line, o.groups, width);
    const T* const dy = LineOf(o.grad_y, line, o.groups, width);
    const float r = o.inverse_rms[line];
    float dot = 0;
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int j = first + c * L::kTeam * L::kN;
      float value[L::kN];
      float gradient[L::kN];
      float factor[L::kN];
      Load(in + j, o.x.vector, width - j, value);
      Load(dy + j, o.grad_y.vector, width - j, gradient);
      Load(o.weight.data + j, o.weight.vector, width - j, factor);
      float(&sum)[L::kN] = sums[L::kChunks > 0 ? c : 0];
      if constexpr (L::kChunks == 0) {
        Load(part + j, o.parts.vector, line == begin ? 0 : width - j, sum);
      }
#pragma unroll
      for (int i = 0; i < L::kN; ++i) {
        dot += value[i] * gradient[i] * factor[i];
        sum[i] += gradient[i] * value[i] * r;
      }
      if constexpr (L::kChunks == 0) {
        Store(part + j, o.parts.vector, width - j, sum);
      }
    }
    dot = FoldTeam<L::kTeam>(dot, Add(), static_cast<int>(line % 2));
    const float projection = r * r * r * dot / static_cast<float>(width);
    T* const out = LineOf(o.grad_x, line, o.groups, width);
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      const int j = first + c * L::kTeam * L::kN;
      float value[L::kN];
      float gradient[L::kN];
      float factor[L::kN];
      float residual[L::kN] = {};
      Load(in + j, o.x.vector, width - j, value);
      Load(dy + j, o.grad_y.vector, width - j, gradient);
      Load(o.weight.data + j, o.weight.vector, width - j, factor);
      if (o.residual.data != nullptr) {
        Load(LineOf(o.residual, line, o.groups, width) + j, o.residual.vector, width - j, residual);
      }
#pragma unroll
      for (int i = 0; i < L::kN; ++i) {
        value[i] = residual[i] + (r * factor[i] * gradient[i] - projection * value[i]);
      }
      Store(out + j, o.grad_x.vector, width - j, value);
    }
  }
  if constexpr (L::kChunks > 0) {
    StorePart<L>(sums, first, width, part, o.parts.vector);
  }
}

constexpr int kPartRuns = 8;

// grad_weight += the parts: each warp adds up a run of them, then the runs are added in their order.
__global__ void __launch_bounds__(kPartRuns* kWarp)
    AddPartsKernel(const float* parts, int count, int width, float* grad_weight) {
  const int j = static_cast<int>(blockIdx.x * kWarp + threadIdx.x % kWarp);
  const int run = static_cast<int>(threadIdx.x) / kWarp;
  const int runs_length = Parts(count, kPartRuns);
  const int begin = run * runs_length;
  const int end = begin + runs_length < count ? begin + runs_length : count;
  float sum = 0;
  if (j < width) {
#pragma unroll 8
    for (int i = begin; i < end; ++i) {
      sum += parts[static_cast<int64_t>(i) * width + j];
    }
  }
  GP_SHARED(float, of_runs, kPartRuns* kWarp);
  of_runs[threadIdx.x] = sum;
  __syncthreads();
  if (run == 0 && j < width) {
    for (int other = 1; other < kPartRuns; ++other) {
      sum += of_runs[other * kWarp + threadIdx.x];
    }
    grad_weight[j] += sum;
  }
}

// Calls f(L()) with the layout for lines of the width.
template <class F>
int32_t WithLayout(int64_t width, const F& f) {
  if (width <= kMaxWidth<WarpLines>) {
    return f(WarpLines());
  }
  if (width <= kMaxWidth<BlockLines>) {
    return f(BlockLines());
  }
  return width <= kMaxWidth<WideBlockLines> ? f(WideBlockLines()) : f(AnyLines());
}

// Rows whose lines a kernel accesses in groups of kN columns.
template <class L, class T, class Void>
Rows<T> LinesOf(Void* data, int64_t stride, int64_t groups, int64_t width) {
  Rows<T> rows = RowsOf<T>(data, stride, L::kN);
  rows.vector = rows.vector && (groups == 1 || RowsOf<T>(data, width, L::kN).vector);
  return rows;
}

constexpr int64_t kMaxExtent = int64_t{1} << 30;  // of what the kernels count in 32 bits

}  // namespace

int32_t RmsNorm(const GpRmsNorm* args, void* stream) {
  const int64_t lines = args->rows * args->groups;
  const int64_t width = args->width;
  if (lines == 0 || width == 0) {
    return 0;
  }
  if (lines > kMaxExtent || width > kMaxExtent) {
    return kInvalidValue;
  }
  return WithType(args->dtype, [&]<class T>(T) {
    return WithLayout(width, [&]<class L>(L) {
      return Launch(stream, dim3(static_cast<unsigned>(Parts(lines, int64_t{L::kTeams}))), L::kThreads,
                    RmsNormKernel<T, L>, lines, args->groups, width,
                    LinesOf<L, const T>(args->x, args->x_stride, args->groups, width),
                    RowsOf<const float>(args->weight, 0, L::kN), args->eps,
                    LinesOf<L, T>(args->y, args->y_stride, args->groups, width), args->inverse_rms);
    });
  });
}

int32_t RmsNormGrad(const GpRmsNormGrad* args, void* stream) {
  const int64_t lines = args->rows * args->groups;
  const int64_t width = args->width;
  if (lines == 0 || width == 0) {
    return 0;
  }
  if (lines > kMaxExtent || width > kMaxExtent) {
    return kInvalidValue;
  }
  int64_t parts = 0;
  const int32_t error = WithType(args->dtype, [&]<class T>(T) {
    return WithLayout(width, [&]<class L>(L) {
      const int64_t lines_of_team = Parts(lines, int64_t{kGpRmsNormGradParts} * L::kTeams);
      parts = Parts(lines, lines_of_team * L::kTeams);
      const auto matrix = [&]<class E>(E* data, int64_t stride) {
        return LinesOf<L, E>(data, stride, args->groups, width);
      };
      const GradOperands<T> operands = {
          .lines = static_cast<unsigned>(lines),
          .groups = static_cast<unsigned>(args->groups),
          .width = static_cast<int>(width),
          .lines_of_team = static_cast<unsigned>(lines_of_team),
          .x = matrix(static_cast<const T*>(args->x), args->x_stride),
          .weight = RowsOf<const float>(args->weight, 0, L::kN),
          .inverse_rms = args->inverse_rms,
          .grad_y = matrix(static_cast<const T*>(args->grad_y), args->grad_y_stride),
          .residual = matrix(static_cast<const T*>(args->residual), args->residual_stride),
          .grad_x = matrix(static_cast<T*>(args->grad_x), args->grad_x_stride),
          .parts = RowsOf<float>(args->workspace, width, L::kN)};
      return Launch(stream, dim3(static_cast<unsigned>(parts)), L::kThreads, RmsNormGradKernel<T, L>, operands);
    });
  });
  if (error != 0) {
    return error;
  }
  return Launch(stream, dim3(static_cast<unsigned>(Parts(width, int64_t{kWarp}))), kPartRuns * kWarp, AddPartsKernel,
                args->workspace, parts, width, args->grad_weight);
}

}  // namespace geopipe::gpu
