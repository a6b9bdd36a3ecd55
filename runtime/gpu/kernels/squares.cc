#include "runtime/gpu/kernels/launchers.h"
#include "runtime/gpu/kernels/reduce.h"
#include "runtime/gpu/kernels/rows.h"

namespace geopipe::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kN = 8;
constexpr int64_t kChunk = kGpSquaresChunk;
constexpr int kMaxRuns = 64;  // of a launch

// Some runs, and the chunks that come before each of them.
struct RunTable {
  int count;
  GpRun runs[kMaxRuns];
  unsigned first_chunk[kMaxRuns + 1];
};

// A block adds up a chunk.
template <class T>
__global__ void __launch_bounds__(kThreads) ChunkSumsKernel(RunTable table, const T* values, double* sums) {
  int run = 0;
  while (table.first_chunk[run + 1] <= blockIdx.x) {
    ++run;
  }
  const int64_t begin = table.runs[run].begin + (blockIdx.x - table.first_chunk[run]) * kChunk;
  const int64_t rest = table.runs[run].end - begin;
  const int count = static_cast<int>(rest < kChunk ? rest : kChunk);
  const T* const chunk = values + begin;
  const bool vector = reinterpret_cast<uintptr_t>(chunk) % kVectorBytes == 0;
  double of_place[kN] = {};
  for (int j = static_cast<int>(threadIdx.x) * kN; j < count; j += kThreads * kN) {
    float value[kN];
    Load(chunk + j, vector, count - j, value);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      of_place[i] += static_cast<double>(value[i]) * value[i];
    }
  }
  double sum = of_place[0];
#pragma unroll
  for (int i = 1; i < kN; ++i) {
    sum += of_place[i];
  }
  sum = FoldTeam<kThreads>(sum, Add(), 0);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
  }
}

// A block adds up the chunks of a run.
__global__ void __launch_bounds__(kThreads) RunSumsKernel(RunTable table, const double* chunk_sums, double* sums) {
  const unsigned run = blockIdx.x;
  double sum = 0;
  for (unsigned i = table.first_chunk[run] + threadIdx.x; i < table.first_chunk[run + 1]; i += kThreads) {
    sum += chunk_sums[i];
  }
  sum = FoldTeam<kThreads>(sum, Add(), 0);
  if (threadIdx.x == 0) {
    sums[run] = sum;
  }
}

int32_t SumsOfTable(const GpSumsOfSquares& args, const RunTable& table, double* sums, void* stream) {
  const unsigned chunks = table.first_chunk[table.count];
  const int32_t error = chunks == 0 ? 0 : WithType(args.dtype, [&]<class T>(T) {
    return Launch(stream, dim3(chunks), kThreads, ChunkSumsKernel<T>, table, static_cast<const T*>(args.values),
                  args.workspace);
  });
  return error != 0 ? error
                    : Launch(stream, dim3(static_cast<unsigned>(table.count)), kThreads, RunSumsKernel, table,
                             args.workspace, sums);
}

}  // namespace

int32_t SumsOfSquares(const GpSumsOfSquares* args, void* stream) {
  for (int64_t first = 0; first < args->run_count; first += kMaxRuns) {
    RunTable table = {};
    table.count = static_cast<int>(args->run_count - first < kMaxRuns ? args->run_count - first : kMaxRuns);
    for (int i = 0; i < table.count; ++i) {
      table.runs[i] = args->runs[first + i];
      table.first_chunk[i + 1] = table.first_chunk[i] + static_cast<unsigned>(GpSumsOfSquaresChunks(table.runs[i]));
    }
    // The launches of a stream follow each other: they share the workspace.
    const int32_t error = SumsOfTable(*args, table, args->sums + first, stream);
    if (error != 0) {
      return error;
    }
  }
  return 0;
}

}  // namespace geopipe::gpu
