#ifndef DDPOPT_DDP_CALL_GUARDS_H_
#define DDPOPT_DDP_CALL_GUARDS_H_

// What a captured graph holds for: the kind of call that it was captured with.
//
//   const CallGuards guards(Call(arguments), *module, device);
//   std::vector<at::Tensor> tensors;
//   if (guards.Holds(later, &tensors)) return Run(tensors);
//   if (std::string why = guards.Mismatch(Call(later)); !why.empty()) ...    // "input 0 was captured with shape [3, 4], and has shape ..."
//
// Guarded: everything in the arguments that is no tensor, by value; of each tensor its shape, strides (where they count: not of dimensions
// of one element or less, nor of empty tensors), dtype, device, requires_grad, whether it is a leaf, an inference tensor, lazily conjugate
// or negative, and whether it is, or shares memory with, an earlier input or a parameter or buffer; train or eval of each submodule; grad
// and inference mode; autocast of the CPU and of the device; the default dtype; deterministic algorithms, oneDNN and the kernels that
// attention may choose, on or off. Private to this package.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "absl/container/flat_hash_map.h"

namespace torch::nn {
class Module;
}

namespace ddpopt {

// Arguments of a forward, taken apart.
struct Call {
  explicit Call(const c10::IValue& arguments);
  std::vector<at::Tensor> tensors;
  std::string arguments;  // see FlattenValue
  c10::IValue value;      // as they came
};

class CallGuards {
 public:
  // Keeps a reference: `module` must outlive this.
  CallGuards(const Call& call, const torch::nn::Module& module, at::Device device);

  // Whether the graph holds, found out without a word; true exactly where Mismatch is empty. Gives the tensors among the arguments, as Call does.
  bool Holds(const c10::IValue& arguments, std::vector<at::Tensor>* tensors) const;
  // The first thing that is different now; empty if the graph holds.
  std::string Mismatch(const Call& call) const;
  // All that is guarded, a line each.
  std::string ToString() const;

 private:
  struct Input {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    at::ScalarType dtype;
    at::Device device;
    bool requires_grad;
    std::uint8_t traits;  // leaf, inference tensor, conjugate, negative
    std::string shares;   // what it is or shares memory with
    int same = -1;       // the earlier input that is the same tensor
    int shared = -1;     // the first earlier input in the same memory, be it the same tensor or not
    const void* attribute = nullptr;  // the storage of a parameter or buffer that it lies in

    bool StridesMatch(const at::Tensor& tensor) const;
    bool Matches(const at::Tensor& tensor) const;
  };
  struct Mode {
    std::string name;
    std::shared_ptr<torch::nn::Module> module;
    bool training;
  };
  // What holds for the whole thread or process.
  struct Modes {
    bool grad, inference;
    std::vector<std::uint8_t> autocast;  // of the CPU and of the device: on, and its dtype
    at::ScalarType default_dtype;
    std::uint32_t switches;
    bool operator==(const Modes&) const = default;
  };
  std::string SharedWith(const Call& call, std::size_t i) const;
  Modes CurrentModes() const;
  std::string TextOf(const Modes& modes) const;
  // Fills in what `shares` says in words.
  void FindSharing(const Call& call, std::size_t i, Input* input) const;

  at::Device device_;
  std::string arguments_;
  c10::IValue pattern_;  // the arguments with undefined tensors in the place of tensors; None if they can't be compared so
  absl::flat_hash_map<const void*, std::string> attributes_;  // storages of parameters and buffers
  std::vector<Input> inputs_;
  const torch::nn::Module* module_ = nullptr;
  bool own_training_ = false;
  std::vector<Mode> training_;
  Modes modes_;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_CALL_GUARDS_H_
