#ifndef DDPOPT_CAPTURE_TRACER_TRACE_FORWARD_H_
#define DDPOPT_CAPTURE_TRACER_TRACE_FORWARD_H_

// The graph of any module's forward, or of any callable, for the arguments given: tensors, nested lists, tuples and optionals of them, and
// other values, which become part of the graph (values.h).
//
//   auto traced = TraceForward(net, mode, x, std::make_tuple(h, c), 3);   // net: a ModuleHolder or shared_ptr to a torch::nn::Module
//   auto traced = TraceFunction([](at::Tensor a, int n) { return a * n; }, mode, a, 2);

#include <memory>
#include <tuple>
#include <utility>

#include "ddpopt/capture/tracer/trace.h"
#include "ddpopt/capture/tracer/values.h"
#include "torch/nn/module.h"

namespace ddpopt {

namespace internal {

template <typename Fn, typename... Args>
absl::StatusOr<TracedModule> Trace(const torch::nn::Module* module, const std::shared_ptr<FakeTensorMode>& mode,
                                   const TraceOptions& options, Fn&& fn,
                                   const Args&... args) {
  using Tuple = std::tuple<std::decay_t<Args>...>;
  return TraceCall(
      module, ToValue(Tuple(args...)), mode,
      [&fn](const c10::IValue& arguments) -> c10::IValue {
        Tuple values = FromValue<Tuple>(arguments);
        return std::apply([&fn](auto&... value) { return ToValue(fn(value...)); }, values);
      },
      options);
}

template <typename Net>
const torch::nn::Module* ModuleOf(const Net& net) {
  if constexpr (requires { net.ptr(); }) {
    return net.ptr().get();
  } else {
    return net.get();
  }
}

}  // namespace internal

template <typename Net, typename... Args>
absl::StatusOr<TracedModule> TraceForward(Net& net, const std::shared_ptr<FakeTensorMode>& mode, const Args&... args) {
  return internal::Trace(internal::ModuleOf(net), mode, {}, [&net](auto&... value) { return net->forward(value...); }, args...);
}

template <typename Fn, typename... Args>
absl::StatusOr<TracedModule> TraceFunction(Fn&& fn, const std::shared_ptr<FakeTensorMode>& mode, const Args&... args) {
  return internal::Trace(nullptr, mode, {}, [&fn](auto&... value) { return fn(value...); }, args...);
}

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_TRACE_FORWARD_H_
