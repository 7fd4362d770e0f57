#ifndef DDPOPT_CAPTURE_TRACER_TRACE_H_
#define DDPOPT_CAPTURE_TRACER_TRACE_H_

// A C++ module's forward as a graph, without running it on data. trace_forward.h has the form for any forward of C++ values; this is what
// is behind it.
//
//   auto traced = TraceModule(*net, {x, y}, mode, [&](const std::vector<at::Tensor>& in) { return net->forward(in[0], in[1]); });
//   traced->module->graph().ToString();

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
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
  std::vector<c10::IValue> fake_inputs;     // of `mode`, one per placeholder: the arguments' tensors, left to right
  std::string arguments;                    // the arguments as FlattenValue describes them: what is no tensor is part of the graph
  std::vector<std::pair<std::string, std::string>> ties;  // another name of a parameter or buffer, and the path that it has in the graph
  std::vector<std::string> own_constants;   // paths of constants that are copies of tensors made in forward
};

// In the error of a forward that keeps what it computes: what its members hold now has no data.
inline constexpr char kKeepsTensors[] = "forward keeps a tensor that it computes";

// Calls forward once on the arguments with fakes for tensors, under `mode`, and records every ATen operator above autograd and autocast.
// Nothing real changes: no parameter, buffer, .grad or generator. Each node's meta().val is its fake value; nodes whose value nobody uses
// are dropped. `arguments` is a tuple, nested as values.h describes; forward gets one of the same form and returns any such value. `module`
// may be null: then there are no parameters.
//
// Grad-mode, inference-mode and autocast regions become nodes that set these modes. Tensors that forward makes of numbers become factory
// calls or constants; a tensor that it uses and that is no parameter, buffer, input or traced value becomes a constant, shared with its
// owner unless the memory is foreign (from_blob). What docs/capture.md lists is refused, with an error that names the operator and the
// reason: Unimplemented, Internal. InvalidArgument: an input that is a parameter.
using ValueForward = std::function<c10::IValue(const c10::IValue& arguments)>;
absl::StatusOr<TracedModule> TraceCall(const torch::nn::Module* module, const c10::IValue& arguments,
                                       const std::shared_ptr<FakeTensorMode>& mode,
                                       const ValueForward& forward, const TraceOptions& options = {});

// The same for a forward of tensors alone that returns one.
absl::StatusOr<TracedModule> TraceModule(const torch::nn::Module& module, const std::vector<at::Tensor>& inputs,
                                         const std::shared_ptr<FakeTensorMode>& mode,
                                         const std::function<at::Tensor(const std::vector<at::Tensor>&)>& forward,
                                         const TraceOptions& options = {});

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_TRACE_H_
