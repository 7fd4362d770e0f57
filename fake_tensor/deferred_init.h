#ifndef DDPOPT_FAKE_TENSOR_DEFERRED_INIT_H_
#define DDPOPT_FAKE_TENSOR_DEFERRED_INIT_H_

// Modules that are constructed without memory, and get it later: their parameters and buffers are fakes first, and the operators that fill
// them are recorded and run for real when asked for.
//
//   DeferredInit deferred;
//   auto net = deferred.Record([] { return Net(options); });      // no memory, no random numbers
//   net->to(at::kHalf);                                           // conversions are recorded as well, in Record() or not
//   deferred.MaterializeModule(*net);                             // real halves now, as if net had been made and converted for real
//
// The tensors become real in place: a parameter is the same object before and after, so that members, optimizers and other references to it
// need nothing, and tied parameters stay tied. Views and detached tensors that aren't asked for stay fakes until they are; they share
// memory with what became real of the same storage.
//
// Random numbers come from the generators as they are when the operators run, not when they are recorded. All that draw run in the order in
// which they were recorded, also those before that nobody needs yet: after the same seed, values are those of a module that is constructed
// for real, in whatever order its tensors are made real. Memory that operators needed on the way is freed with this object.
//
// Not for several threads at once.

#include <memory>
#include <source_location>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "interpreter/mode_stack.h"

namespace ddpopt {

class DeferredInit {
 public:
  explicit DeferredInit(std::source_location made_at = std::source_location::current());
  // What isn't real by then stays fake.
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

  // Runs fn; every tensor that it makes is a fake of mode(). Returns what fn returns. Throws what fn throws, and fake_errors.h's where fn
  // needs data (item(), real tensors).
  template <typename Fn>
  auto Record(Fn&& fn) {
    const ModeGuard on(mode_);
    return std::forward<Fn>(fn)();
  }

  // Whether the tensor is one of this object's that isn't real yet.
  bool IsDeferred(const at::Tensor& tensor) const { return ModeOf(tensor) == mode_.get(); }

  // Makes the tensors real, in place, with their gradients and the bases of views; those that are real already stay as they are. Runs the
  // operators that they need, and earlier ones that draw random numbers, in the order in which they were recorded. Throws NotOurFake for
  // another mode's fake, and c10::Error that names the operator or tensor: for a tensor with history, for memory that wasn't made under
  // Record(), for an operator that fails or gives another result now, for one that reads what was written to after it had become real
  // (as far as versions tell: writes through .data() or pointers count none).
  void Materialize(const std::vector<at::Tensor>& tensors);

  // All parameters and buffers of a torch::nn::Module.
  template <typename Module>
  void MaterializeModule(const Module& module) {
    std::vector<at::Tensor> tensors = module.parameters();
    for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
    Materialize(tensors);
  }

  const std::shared_ptr<FakeTensorMode>& mode() const { return mode_; }

 private:
  class Tape;

  std::shared_ptr<FakeTensorMode> mode_;
  std::shared_ptr<Tape> tape_;
};

}  // namespace ddpopt

#endif  // DDPOPT_FAKE_TENSOR_DEFERRED_INIT_H_
