#ifndef DDPOPT_CAPTURE_TRACER_TRACE_H_
#define DDPOPT_CAPTURE_TRACER_TRACE_H_

// A C++ module's forward as a graph, without running it on data.
//
//   auto traced = TraceModule(*net, {x, y}, mode, [&](const std::vector<at::Tensor>& in) { return net->forward(in[0], in[1]); });
//   traced->module->graph().ToString();

#include <functional>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/graph_module.h"

namespace torch::nn {
class Module;
}

namespace ddpopt {

struct TraceOptions {
  bool canonicalize = true;  // CanonicalizeModuleForms: the forms of torch.export
};

struct TracedModule {
  std::shared_ptr<fx::GraphModule> module;  // parameters and buffers under their qualified names, shared with the nn::Module
  std::vector<c10::IValue> fake_inputs;     // of `mode`, one per placeholder
};

// Calls forward once on fakes of the inputs, under `mode`, and records every ATen operator above autograd. Nothing real changes: no parameter, buffer,
// .grad or generator. Each node's meta().val is its fake value. A tensor that forward uses and that is no parameter, buffer, input or traced value becomes a
// constant of the graph. The graph has one output: forward's tensor.
// Errors: Unimplemented/Internal naming the operator that has no fake rule, or that reads data (item()).
absl::StatusOr<TracedModule> TraceModule(const torch::nn::Module& module, const std::vector<at::Tensor>& inputs, const std::shared_ptr<FakeTensorMode>& mode,
                                         const std::function<at::Tensor(const std::vector<at::Tensor>&)>& forward,
                                         const TraceOptions& options = {});

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_TRACE_H_
