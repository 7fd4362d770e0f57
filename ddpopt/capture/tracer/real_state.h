#ifndef DDPOPT_CAPTURE_TRACER_REAL_STATE_H_
#define DDPOPT_CAPTURE_TRACER_REAL_STATE_H_

// What a capture must leave as it is: the module's parameters and buffers, the inputs, the default generator. Private to this package.
//
//   RealState state(module, inputs);
//   ... forward is called on fakes ...
//   if (std::string what = state.Difference(); !what.empty()) ...      // what forward changed past the operators that the tracer sees

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"

namespace torch::nn {
class Module;
}

namespace ddpopt {

class RealState {
 public:
  // `module` may be null; else it must outlive this.
  RealState(const torch::nn::Module* module, const std::vector<at::Tensor>& inputs);
  // Puts back what forward has changed and can be put back: the data, requires_grad and hooks of the tensors. (Fakes that it has put into
  // members of its own can't be seen.)
  ~RealState();
  RealState(const RealState&) = delete;
  RealState& operator=(const RealState&) = delete;

  // What has changed; empty if nothing has.
  std::string Difference() const;

 private:
  struct State {
    std::string name;
    at::Tensor tensor;
    at::Tensor data;  // shares its memory
    const c10::StorageImpl* storage;
    std::vector<int64_t> sizes;
    std::optional<std::uint32_t> version;
    bool requires_grad;
    std::size_t hooks;
  };

  std::vector<std::pair<std::string, at::Tensor>> Attributes() const;
  static State Look(std::string name, const at::Tensor& tensor);
  static void Restore(const State& before);

  const torch::nn::Module* module_;
  std::vector<State> tensors_;
  std::size_t num_attributes_ = 0;
  at::Tensor generator_;
};

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_REAL_STATE_H_
