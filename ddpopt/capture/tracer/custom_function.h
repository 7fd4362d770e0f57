#ifndef DDPOPT_CAPTURE_TRACER_CUSTOM_FUNCTION_H_
#define DDPOPT_CAPTURE_TRACER_CUSTOM_FUNCTION_H_

// A torch::autograd::Function of the user's in a graph. Private to this package.
//
// What its forward computes is operators like any others, traced without gradients. What then gives its outputs their history is a call of a
// CustomFunction, whose node in autograd calls the user's own backward:
//
//   %sin = call_function[target=torch.ops.aten.sin.default](args = (%x,))                       # forward, within no_grad
//   %custom_function_0 = call_module[target=custom_function_0](args = ([%sin], [%x], [%x], "Scale", {factor: 2}))
//   %getitem = call_function[target=operator.getitem](args = (%custom_function_0, 0))            # has a history
//
// Arguments: the differentiable outputs; the inputs that have gradients, None for others; what backward looks at: what forward saved, then
// tensors in saved_data; the function's name and the rest of saved_data, which are there to be compared. So backward is traced, compiled and
// run with whatever tensors the graph is run with.

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "base/autograd_node.h"
#include "fx_graph/graph_module.h"
#include "torch/csrc/autograd/function.h"

namespace ddpopt {

// The T of a torch::autograd::Function<T> whose forward gave the tensor; empty if there is none.
std::string CustomFunctionOf(const at::Tensor& tensor);

class CustomFunction : public fx::Callable, public std::enable_shared_from_this<CustomFunction> {
 public:
  // Of an output of such a function, on fakes. Takes the tensors that it saved out of its node: backward can't be called there any more.
  // Throws c10::Error for tensors in lists and objects in saved_data.
  explicit CustomFunction(const at::Tensor& output);

  const std::string& name() const { return name_; }
  // As they were when this was made: one for each next edge of its node; an invalid edge for an input without gradients.
  const std::vector<torch::autograd::Edge>& inputs() const { return inputs_; }
  const std::vector<at::Tensor>& saved() const { return saved_; }
  // saved_data without its tensors: sorted keys, and values.
  const std::vector<std::pair<std::string, c10::IValue>>& data() const { return data_; }
  // Lets go of all tensors above.
  void Release();

  // The outputs that the arguments hold, with history; see above. Thread-safe. Fakes and functionalisation's wrappers will do. Without grad
  // mode, or if no input requires grad, the outputs are left as they are.
  void set_output_numbers(std::vector<std::uint32_t> numbers) { output_numbers_ = std::move(numbers); }
  c10::IValue Call(std::vector<c10::IValue> args) const override;

  // The user's backward.
  torch::autograd::variable_list Backward(torch::autograd::variable_list grads, const std::vector<at::Tensor>& saved,
                                          const std::vector<torch::autograd::Edge>& edges) const;

 private:
  using AnyNode = std::decay_t<decltype(std::declval<const at::Tensor&>().grad_fn())>;

  std::string name_;
  AnyNode node_;  // the user's, with its context
  std::vector<torch::autograd::Edge> inputs_;
  std::vector<at::Tensor> saved_;
  std::size_t num_saved_variables_ = 0;
  std::vector<std::string> tensor_keys_;  // of saved_data
  std::vector<std::pair<std::string, c10::IValue>> data_;
  std::uint32_t num_outputs_ = 0;
  std::vector<std::uint32_t> output_numbers_;  // of the differentiable outputs among all
  mutable std::recursive_mutex mutex_;         // over the context, which holds one run's tensors at a time
};

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_CUSTOM_FUNCTION_H_
