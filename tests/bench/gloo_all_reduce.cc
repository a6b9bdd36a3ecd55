#include "tests/bench/gloo_all_reduce.h"

#include <memory>

#ifdef GEOPIPE_HAS_GLOO
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#endif

namespace geopipe {

#ifdef GEOPIPE_HAS_GLOO

std::function<void(float* data, int64_t count)> ConnectGloo(const std::string& folder, int32_t rank, int32_t size) {
  gloo::transport::tcp::attr attr;
  attr.hostname = "127.0.0.1";
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attr);
  gloo::rendezvous::FileStore store(folder);
  const auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->connectFullMesh(store, device);
  return [context, tag = uint32_t{0}](float* data, int64_t count) mutable {
    gloo::AllreduceOptions options(context);
    options.setOutput(data, static_cast<size_t>(count));
    void (*sum)(void*, const void*, const void*, size_t) = &gloo::sum<float>;
    options.setReduceFunction(sum);
    options.setTag(tag++);
    gloo::allreduce(options);
  };
}

#else

std::function<void(float* data, int64_t count)> ConnectGloo(const std::string& /*folder*/, int32_t /*rank*/,
                                                            int32_t /*size*/) {
  return nullptr;
}

#endif

}  // namespace geopipe
