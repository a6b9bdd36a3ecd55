// Checks of the kernels that work on rows: embeddings, norms, rotations, SwiGLU.
#include <algorithm>
#include <cmath>

#include "optimizer/base/status_macros.h"
#include "tests/device/kernel_checks.h"

namespace geopipe {

using Place = GpuTrial::Place;

absl::Status CheckEmbeddings(KernelChecks& checks, DType dtype) {
  const int64_t tokens = checks.Extent(60, 900, 4096);
  const int64_t columns = checks.Extent(120, 5000, 4096);
  const int64_t vocabulary = 1 + checks.Extent(30, 3000, 32000);
  const int64_t first_row = checks.Draw(vocabulary);
  const int64_t table_rows = 1 + checks.Draw(std::min<int64_t>(vocabulary - first_row, 8000));
  checks.Begin(fmt::format("embedding {}, {} tokens x {}, rows {} to {} of {}", NameOf(dtype), tokens, columns,
                           first_row, first_row + table_rows, vocabulary));
  GpuTrial& trial = checks.trial();
  const VectorView<int32_t> ids = trial.Integers(tokens, [&](int64_t) { return checks.Draw(vocabulary); });
  const MatrixView table = checks.Normal(dtype, table_rows, columns);
  const MatrixView out = checks.Empty(dtype, tokens, columns);
  const MatrixView grad_out = checks.Normal(dtype, tokens, columns);
  const MatrixView grad_table = checks.Normal(DType::kFp32, table_rows, columns);
  GP_RETURN_IF_ERROR(checks.Run(
      [&](Backend& backend, const Place& at) {
        GP_RETURN_IF_ERROR(backend.Embedding(at(ids), at(table), first_row, at(out)));
        return backend.EmbeddingGrad(at(ids), at(grad_out), first_row, at(grad_table));
      },
      /*on_processor=*/true));
  checks.CompareBits("rows", out);
  checks.CompareBits("gradient", grad_table);
  checks.End();
  return absl::OkStatus();
}

absl::Status CheckNorms(KernelChecks& checks, DType dtype) {
  constexpr double kEps = 1e-5;
  const int64_t rows = checks.Extent(40, 300, 4096);
  const int64_t groups = checks.Extent(4, 4, 1);
  const int64_t width = checks.Extent(600, 9000, 4096);
  const bool adds = checks.Draw(2) == 0;
  checks.Begin(fmt::format("norm {}, {} x {} x {}{}", NameOf(dtype), rows, groups, width, adds ? ", residual" : ""));
  GpuTrial& trial = checks.trial();
  const MatrixView x = checks.Normal(dtype, rows, groups * width, 2);
  const VectorView<float> weight = trial.Floats(width);
  const MatrixView y = checks.Empty(dtype, rows, groups * width);
  const VectorView<float> inverse_rms = trial.EmptyFloats(rows * groups);
  const MatrixView grad_y = checks.Normal(dtype, rows, groups * width);
  const MatrixView residual = adds ? checks.Normal(dtype, rows, groups * width) : MatrixView{};
  const MatrixView grad_x = checks.Empty(dtype, rows, groups * width);
  const VectorView<float> grad_weight = trial.Floats(width);
  const std::vector<float> before(grad_weight.data, grad_weight.data + width);
  GP_RETURN_IF_ERROR(checks.Run([&](Backend& backend, const Place& at) {
    GP_RETURN_IF_ERROR(backend.RmsNorm(at(x), at(weight), kEps, at(y), at(inverse_rms)));
    return backend.RmsNormGrad(at(x), at(weight), at(inverse_rms), at(grad_y), at(residual), at(grad_x),
                               at(grad_weight));
  }));
  const std::vector<float> xs = GpuTrial::ValuesOf(x);
  const std::vector<float> grads = GpuTrial::ValuesOf(grad_y);
  const std::vector<float> added = GpuTrial::ValuesOf(residual);
  const auto line = [&](int64_t i) {
    const auto of = [&](const std::vector<float>& values) {
      return Floats(values).subspan(static_cast<size_t>(i * width), static_cast<size_t>(width));
    };
    return NormLineOf(of(xs), Floats(weight.data, static_cast<size_t>(width)), of(grads), kEps);
  };
  // A row's lines, one after the other.
  const auto row = [&](int64_t i, std::vector<Expected> NormLine::*part) {
    std::vector<Expected> expected;
    for (int64_t group = 0; group < groups; ++group) {
      const std::vector<Expected> of_line = line(i * groups + group).*part;
      expected.insert(expected.end(), of_line.begin(), of_line.end());
    }
    return expected;
  };
  checks.CompareRows("y", y, [&](int64_t i) { return row(i, &NormLine::y); });
  checks.CompareRows("gradient of x", grad_x, [&](int64_t i) {
    std::vector<Expected> expected = row(i, &NormLine::grad_x);
    for (size_t j = 0; adds && j < expected.size(); ++j) {
      expected[j] += added[static_cast<size_t>(i) * expected.size() + j];
    }
    return expected;
  });
  std::vector<Expected> of_weight(before.size());
  std::vector<Expected> of_rms;
  for (size_t j = 0; j < before.size(); ++j) {
    of_weight[j] += before[j];
  }
  for (int64_t i = 0; i < rows * groups; ++i) {
    const NormLine of_line = line(i);
    of_rms.push_back({.value = of_line.inverse_rms, .terms = of_line.inverse_rms});
    for (size_t j = 0; j < before.size(); ++j) {
      of_weight[j].Add(of_line.grad_weight[j], 1);
    }
  }
  checks.Compare("inverse root mean squares", inverse_rms, of_rms);
  checks.Compare("gradient of the weight", grad_weight, of_weight);
  checks.End();
  return absl::OkStatus();
}

absl::Status CheckRope(KernelChecks& checks, DType dtype) {
  const int64_t samples = checks.Extent(3, 3, 1);
  const int64_t sequence = checks.Extent(12, 300, 4096);
  const int64_t heads = checks.Extent(4, 9, 32);
  const int64_t half = checks.Extent(16, 64, 64);
  const int64_t columns = heads * 2 * half;
  checks.Begin(fmt::format("rope {}, {} x {} x {} heads of {}", NameOf(dtype), samples, sequence, heads, 2 * half));
  GpuTrial& trial = checks.trial();
  const MatrixView there = checks.Normal(dtype, samples * sequence, columns);
  const MatrixView back = checks.Normal(dtype, samples * sequence, columns);
  const VectorView<float> cosine = trial.Floats(sequence * half);
  const VectorView<float> sine = trial.Floats(sequence * half);
  for (int64_t i = 0; i < cosine.size; ++i) {
    const double angle = 3 * static_cast<double>(sine.data[i]);
    cosine.data[i] = static_cast<float>(std::cos(angle));
    sine.data[i] = static_cast<float>(std::sin(angle));
  }
  const std::vector<float> xs = GpuTrial::ValuesOf(there);
  const std::vector<float> ys = GpuTrial::ValuesOf(back);
  GP_RETURN_IF_ERROR(checks.Run(
      [&](Backend& backend, const Place& at) {
        const RopeTable table = {.cosine = at(cosine), .sine = at(sine)};
        GP_RETURN_IF_ERROR(backend.Rope(at(there), table, sequence, 2 * half, RopeDirection::kForward));
        return backend.Rope(at(back), table, sequence, 2 * half, RopeDirection::kBackward);
      },
      /*on_processor=*/true));
  const auto turned = [&](const std::vector<float>& values, RopeDirection direction, int64_t i, int64_t j) {
    const auto of_position = [&](VectorView<float> all) {
      return Floats(all.data + i % sequence * half, static_cast<size_t>(half));
    };
    const float* head = values.data() + i * columns + j / (2 * half) * (2 * half);
    return RopeOf(Floats(head, static_cast<size_t>(2 * half)), j % (2 * half), of_position(cosine), of_position(sine),
                  direction);
  };
  checks.CompareElements("there", there,
                         [&](int64_t i, int64_t j) { return turned(xs, RopeDirection::kForward, i, j); });
  checks.CompareElements("back", back,
                         [&](int64_t i, int64_t j) { return turned(ys, RopeDirection::kBackward, i, j); });
  checks.CompareBits("there", there);
  checks.CompareBits("back", back);
  checks.End();
  return absl::OkStatus();
}

absl::Status CheckSwiGlu(KernelChecks& checks, DType dtype) {
  const int64_t rows = checks.Extent(30, 700, 4096);
  const int64_t columns = checks.Extent(300, 5000, 11008);
  checks.Begin(fmt::format("swiglu {}, {} x {}", NameOf(dtype), rows, columns));
  const MatrixView both = checks.Normal(dtype, rows, 2 * columns, 3);
  const MatrixView gate = ColumnsOf(both, 0, columns);
  const MatrixView up = ColumnsOf(both, columns, columns);
  const MatrixView out = checks.Empty(dtype, rows, columns);
  const MatrixView grad_out = checks.Normal(dtype, rows, columns);
  const std::vector<float> g = GpuTrial::ValuesOf(gate);
  const std::vector<float> u = GpuTrial::ValuesOf(up);
  const std::vector<float> d = GpuTrial::ValuesOf(grad_out);
  GP_RETURN_IF_ERROR(checks.Run([&](Backend& backend, const Place& at) {
    GP_RETURN_IF_ERROR(backend.SwiGlu(at(gate), at(up), at(out)));
    return backend.SwiGluGrad(at(gate), at(up), at(grad_out), at(gate), at(up));
  }));
  const auto grads = [&](int64_t i, int64_t j) {
    const auto at = static_cast<size_t>(i * columns + j);
    return SwiGluGradsOf(g[at], u[at], d[at]);
  };
  checks.CompareElements("result", out, [&](int64_t i, int64_t j) {
    return SwiGluOf(g[static_cast<size_t>(i * columns + j)], u[static_cast<size_t>(i * columns + j)]);
  });
  checks.CompareElements("gradient of the gate", gate, [&](int64_t i, int64_t j) { return grads(i, j).gate; });
  checks.CompareElements("gradient of up", up, [&](int64_t i, int64_t j) { return grads(i, j).up; });
  checks.End();
  return absl::OkStatus();
}

}  // namespace geopipe
