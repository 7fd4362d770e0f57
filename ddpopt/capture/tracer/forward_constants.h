#ifndef DDPOPT_CAPTURE_TRACER_FORWARD_CONSTANTS_H_
#define DDPOPT_CAPTURE_TRACER_FORWARD_CONSTANTS_H_

// Tensors that a forward makes of nothing but numbers. Private to this package.
//
// LibTorch fills some of these from the host, past the dispatcher: torch::tensor(a_vector) allocates an empty tensor and copies into it,
// torch::tensor({1, 2, 3}) fills element by element, a mask may be written through an accessor. So they are real while forward makes them,
// together with what is computed from them alone, and are written down when they first meet another tensor: as the calls that made them
// (zeros, arange), or, where the host or a fill took part, as a constant.
//
//   if (constants.IsFactory(op, args)) constants.Run(op, stack);
//   ...
//   ForwardConstants::Taken taken = constants.Take(tensor);       // what is to be written down now
//
// A taken tensor keeps its data, which a module may have kept it for, until the graph writes to it (Spoil): then reading it on the host is
// an error.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/dispatch/Dispatcher.h"
#include "ATen/core/stack.h"
#include "absl/container/flat_hash_map.h"

namespace ddpopt {

class ForwardConstants {
 public:
  struct Call {
    c10::OperatorHandle op;
    std::vector<c10::IValue> args;
    std::vector<c10::IValue> results;
  };
  struct Constant {
    at::Tensor made;   // as forward has it
    at::Tensor value;  // a copy
  };
  struct Taken {
    std::vector<Constant> constants;
    std::vector<Call> calls;  // in order
  };

  // Whether the call makes a small tensor on the CPU of numbers alone, and the same one each time.
  static bool IsFactory(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args);
  // Whether all tensors among the arguments are kept here, at least one, and the call can be made for real.
  bool CanRun(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> args) const;
  bool Has(const at::Tensor& tensor) const;
  // Calls the operator on real tensors and remembers it.
  void Run(const c10::OperatorHandle& op, torch::jit::Stack* stack);
  // Takes out the tensor's memory and all that is connected with it by calls.
  Taken Take(const at::Tensor& tensor);
  // A tensor that hasn't been taken yet.
  std::optional<at::Tensor> Any() const;

  // The graph writes to a taken tensor's memory.
  void Spoil(const at::Tensor& tensor);
  // Whether the host has written to a tensor after it was taken.
  bool ChangedByHost() const;

 private:
  struct Memory {
    at::Tensor made;     // the first tensor over it
    bool empty = false;  // allocated without values
    bool filled = false;  // by operators
    std::size_t order = 0;
    std::vector<char> seen;
  };
  struct TakenMemory {
    at::Tensor made;
    std::vector<char> seen;
  };
  void Look(const at::Tensor& tensor, bool empty);

  absl::flat_hash_map<const c10::StorageImpl*, Memory> memories_;
  std::vector<Call> calls_;
  std::vector<TakenMemory> taken_;
  std::size_t num_memories_ = 0;
};

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_FORWARD_CONSTANTS_H_
