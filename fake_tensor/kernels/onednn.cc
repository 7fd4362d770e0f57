#include "fake_tensor/kernels/onednn.h"

#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"

namespace ddpopt::kernels {
namespace {

// LibTorch's own question to oneDNN.
bool Ask(const char* op) {
  const auto handle = c10::Dispatcher::singleton().findSchema({op, ""});
  if (!handle.has_value()) return false;  // a LibTorch without oneDNN
  torch::jit::Stack stack;
  handle->callBoxed(&stack);
  return stack.back().toBool();
}

}  // namespace

bool OneDnnComputes(c10::ScalarType dtype) {
  static const bool bfloat16 = Ask("mkldnn::_is_mkldnn_bf16_supported");
  static const bool half = Ask("mkldnn::_is_mkldnn_fp16_supported");
  if (dtype == c10::ScalarType::BFloat16) return bfloat16;
  if (dtype == c10::ScalarType::Half) return half;
  return dtype == c10::ScalarType::Float;
}

}  // namespace ddpopt::kernels
