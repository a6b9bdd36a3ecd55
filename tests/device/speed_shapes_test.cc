#include "tests/device/speed_shapes.h"

#include <catch2/catch.hpp>
#include <map>

#include "optimizer/model/memory_model.h"

namespace geopipe {
namespace {

std::vector<SpeedShape> AllShapes() {
  std::vector<SpeedShape> shapes = SpeedShapes(/*small=*/false);
  for (SpeedShape& small : SpeedShapes(/*small=*/true)) {
    shapes.push_back(std::move(small));
  }
  return shapes;
}

TEST_CASE("shapes are those of Llama 2, and may be trained") {
  const std::vector<SpeedShape> shapes = SpeedShapes(/*small=*/false);
  const std::vector<std::string> presets = {"llama-2-7b", "llama-2-13b", "llama-2-70b"};
  REQUIRE(shapes.size() == presets.size());
  for (size_t i = 0; i < shapes.size(); ++i) {
    INFO(shapes[i].name);
    const ModelSpec preset = *ModelPreset(presets[i]);
    const ModelSpec& model = shapes[i].model;
    CHECK(model.hidden_size == preset.hidden_size);
    CHECK(model.intermediate_size == preset.intermediate_size);
    CHECK(model.num_attention_heads == preset.num_attention_heads);
    CHECK(model.num_key_value_heads == preset.num_key_value_heads);
    CHECK(model.vocab_size == preset.vocab_size);
  }
  for (const SpeedShape& shape : AllShapes()) {
    INFO(shape.name);
    CHECK(ValidateModel(shape.model).ok());
  }
}

TEST_CASE("a layer's products, attention and kernels are all of the planner's work, in FLOPs and bytes") {
  for (const SpeedShape& shape : AllShapes()) {
    INFO(shape.name);
    std::map<Pass, Work> products;
    for (const ProductShape& product : LayerProducts(shape)) {
      products[product.pass].flops += product.flops();
      products[product.pass].bytes += product.bytes();
    }
    const KernelBytes kernels = BytesOfKernels(shape);
    const std::map<Pass, int64_t> streamed = {
        {Pass::kForward, 2 * kernels.rms_norm + kernels.rope + kernels.swiglu},
        {Pass::kInputGrad, 2 * kernels.rms_norm_grad + kernels.rope + kernels.swiglu_grad},
        {Pass::kWeightGrad, 0}};
    for (const Pass pass : kPasses) {
      INFO(PassName(pass));
      const Work layer = LayerWork(shape, pass);
      CHECK(products[pass].flops == layer.flops - layer.attention_flops);
      CHECK(products[pass].bytes == layer.bytes - layer.attention_bytes - layer.streamed_bytes);
      CHECK(streamed.at(pass) == layer.streamed_bytes);
    }
  }
}

TEST_CASE("the head's products and loss, and the embedding, are the planner's") {
  for (const SpeedShape& shape : AllShapes()) {
    INFO(shape.name);
    const PartWork head = HeadWork(shape.model, shape.execution());
    const KernelBytes kernels = BytesOfKernels(shape);
    const int64_t chunks = shape.tokens / LossRows(shape);
    const std::vector<ProductShape> products = HeadProducts(shape);
    REQUIRE(products.size() == 3);
    CHECK(chunks * products[0].flops() == head.forward.flops);
    CHECK(products[1].flops() == head.input_grad.flops);
    CHECK(products[2].flops() == head.weight_grad.flops);
    CHECK(products[2].bytes() == head.weight_grad.bytes);
    CHECK(chunks * (products[0].bytes() + kernels.cross_entropy) + kernels.rms_norm == head.forward.bytes);
    const PartWork embedding = EmbeddingWork(shape.model, shape.execution());
    CHECK(kernels.embedding == embedding.forward.bytes);
    CHECK(kernels.embedding_grad == embedding.weight_grad.bytes);
  }
}

TEST_CASE("a model's FLOPs are six a token and weight, and the half of attention's that the mask leaves") {
  for (const SpeedShape& shape : AllShapes()) {
    INFO(shape.name);
    const ModelSpec& model = shape.model;
    const int64_t layers = model.num_hidden_layers;
    const int64_t vectors = layers * 2 * model.hidden_size + model.hidden_size;
    const int64_t weights = ParameterCount(model) - vectors - model.vocab_size * model.hidden_size;
    const int64_t attention = 6 * shape.tokens * shape.tokens * model.query_width();
    CHECK(MicroBatchModelFlops(shape, layers) == 6 * shape.tokens * weights + layers * attention);
  }
}

TEST_CASE("attention of 4,096 tokens works on one matrix of scores at a time") {
  for (const SpeedShape& shape : SpeedShapes(/*small=*/false)) {
    INFO(shape.name);
    CHECK(SoftmaxMatrices(shape) == 1);
    // Half of the fp32 scores, all of the bf16 probabilities.
    CHECK(BytesOfKernels(shape).causal_softmax == 4 * (4096LL * 4097 / 2) + 2 * 4096LL * 4096);
  }
}

}  // namespace
}  // namespace geopipe
