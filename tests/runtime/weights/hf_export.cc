#include "tests/runtime/weights/hf_export.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "optimizer/base/status_macros.h"
#include "optimizer/model/transformer.h"
#include "proto/manifest/hf_config.h"
#include "tests/runtime/weights/safetensors_writer.h"

namespace geopipe {
namespace {

absl::Status WriteWhole(const std::string& path, const std::string& content) {
  const std::string partial = path + ".partial";
  const int fd = open(partial.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool written = fd >= 0 && write(fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()) &&
                       fsync(fd) == 0 && rename(partial.c_str(), path.c_str()) == 0;
  const int error = errno;
  if (fd >= 0) {
    close(fd);
  }
  return written ? absl::OkStatus()
                 : absl::UnavailableError(fmt::format("{}: cannot be written: {}", path, std::strerror(error)));
}

}  // namespace

absl::Status ExportHf(const std::string& directory, const ModelSpec& model, DType dtype, const ReadTensor& read) {
  const LayerRange whole{.first = 0, .last = model.num_hidden_layers - 1, .has_embedding = true, .has_head = true};
  const std::vector<ParameterTensor> parameters = ParameterTensors(model, whole);
  std::vector<TensorInfo> tensors;
  tensors.reserve(parameters.size());
  for (const ParameterTensor& parameter : parameters) {
    tensors.push_back({parameter.name, parameter.shape});
  }
  GP_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsWriter> writer,
                      SafetensorsWriter::Create(directory + "/model.safetensors", dtype, std::move(tensors)));
  std::vector<float> values;
  for (const ParameterTensor& parameter : parameters) {
    values.resize(parameter.count());
    GP_RETURN_IF_ERROR(read(parameter.name, parameter.shape, values));
    GP_RETURN_IF_ERROR(writer->Append(values));
  }
  GP_RETURN_IF_ERROR(writer->Finish());
  return WriteWhole(directory + "/config.json", FormatHfConfig(model, dtype == DType::kBf16 ? "bfloat16" : "float32"));
}

}  // namespace geopipe
