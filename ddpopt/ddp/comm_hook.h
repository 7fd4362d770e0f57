#ifndef DDPOPT_DDP_COMM_HOOK_H_
#define DDPOPT_DDP_COMM_HOOK_H_

// How a full gradient bucket becomes what all ranks go on with. The default averages it over the ranks; others are given here, or yours:
//
//   class Clipped : public ddpopt::CommHook {
//    public:
//     std::string Name() const override { return "clipped"; }
//     ddpopt::CommFuture Run(const ddpopt::GradBucket& bucket) override {
//       bucket.buffer().clamp_(-1, 1).div_(bucket.divisor());
//       return bucket.AllReduceSum(bucket.buffer());
//     }
//   };
//   auto status = ddp->RegisterCommHook(std::make_unique<Clipped>());   // once, before the first forward with gradients
//
// The ranks' hooks must have the same name, and start the same collectives on tensors of the same sizes.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"

namespace ddpopt {

// Of a tensor that is still being computed or communicated; never null. Waiting for it throws what went wrong.
using CommFuture = c10::intrusive_ptr<c10::ivalue::Future>;

CommFuture CompletedFuture(at::Tensor value);
// What `then` makes of the tensor, once it is there. On a GPU `then` is called when the tensor has been given to the device, with a current
// stream that waits for it.
CommFuture ThenCompute(const CommFuture& future, std::function<at::Tensor(const at::Tensor&)> then);

// A bucket whose gradients are all computed.
class GradBucket {
 public:
  // Communication that the wrapper provides.
  class Communicator {
   public:
    virtual ~Communicator() = default;
    virtual CommFuture AllReduceSum(at::Tensor tensor) = 0;
  };
  // What is the same in every step.
  struct Layout {
    struct Gradient {
      std::string parameter;
      int64_t offset;
      std::vector<int64_t> sizes, strides;
    };
    int64_t index;
    bool is_last;
    std::vector<Gradient> gradients;
  };
  GradBucket(const Layout& layout, at::Tensor buffer, int64_t divisor, Communicator* communicator)
      : layout_(layout), buffer_(std::move(buffer)), divisor_(divisor), communicator_(communicator) {}

  int64_t index() const { return layout_.index; }  // in order of reduction, from 0
  bool is_last() const { return layout_.is_last; }
  // All gradients, flat, this rank's own: not divided yet. The hook may write to it.
  const at::Tensor& buffer() const { return buffer_; }
  std::size_t num_gradients() const { return layout_.gradients.size(); }
  const std::string& parameter(std::size_t i) const { return layout_.gradients[i].parameter; }
  // A view into the buffer, in the parameter's shape.
  at::Tensor gradient(std::size_t i) const;
  // By what sums are divided for the mean: the number of ranks, in Join that of those which still train, if so asked.
  int64_t divisor() const { return divisor_; }
  // Starts the sum of a tensor over the ranks, in place; it is the future's value. Counted in the step's bytes.
  CommFuture AllReduceSum(at::Tensor tensor) const { return communicator_->AllReduceSum(std::move(tensor)); }

 private:
  const Layout& layout_;
  at::Tensor buffer_;
  int64_t divisor_;
  Communicator* communicator_;
};

class CommHook {
 public:
  virtual ~CommHook() = default;
  // For errors; compared between ranks.
  virtual std::string Name() const = 0;
  // Called for each bucket in order (the bucket is valid during the call), on the thread of the backward, which waits for the futures at
  // its end only. The future's value is the result: as many elements of the same dtype as buffer(), laid out like it. What this throws ends
  // the backward.
  virtual CommFuture Run(const GradBucket& bucket) = 0;
  // False if ranks go on with gradients of their own.
  virtual bool Synchronises() const { return true; }
};

// The mean over the ranks: divided first, which keeps sums of low-precision gradients in range, then added up. The default.
std::unique_ptr<CommHook> AllReduceHook();
// The mean in half, or bfloat16, precision: half the bytes on the wire for float gradients. Gradients that are no wider are averaged as
// they are. A gradient beyond half's range (65504) becomes infinite; check_gradients_finite tells of it.
std::unique_ptr<CommHook> Fp16CompressHook();
std::unique_ptr<CommHook> Bf16CompressHook();
// Sends nothing and leaves each rank its own gradients: to measure what steps cost without communication, not to train.
std::unique_ptr<CommHook> NoopHook();

}  // namespace ddpopt

#endif  // DDPOPT_DDP_COMM_HOOK_H_
