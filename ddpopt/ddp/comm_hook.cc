#include "ddpopt/ddp/comm_hook.h"

#include <utility>

#include "ATen/core/jit_type.h"

namespace ddpopt {
namespace {

class AllReduce : public CommHook {
 public:
  std::string Name() const override { return "all-reduce"; }
  CommFuture Run(const GradBucket& bucket) override {
    at::Tensor buffer = bucket.buffer();
    buffer.div_(bucket.divisor());
    return bucket.AllReduceSum(std::move(buffer));
  }
};

class Compress : public CommHook {
 public:
  Compress(at::ScalarType dtype, std::string name) : dtype_(dtype), name_(std::move(name)) {}
  std::string Name() const override { return name_; }
  CommFuture Run(const GradBucket& bucket) override {
    const at::Tensor& buffer = bucket.buffer();
    if (buffer.element_size() <= static_cast<int64_t>(c10::elementSize(dtype_))) {
      at::Tensor own = buffer;
      own.div_(bucket.divisor());
      return bucket.AllReduceSum(std::move(own));
    }
    // Divided in full precision. The result goes back into the bucket's own memory, where gradients may be views.
    return ThenCompute(bucket.AllReduceSum(buffer.div(bucket.divisor()).to(dtype_)),
                       [buffer](const at::Tensor& sum) { return buffer.copy_(sum); });
  }

 private:
  const at::ScalarType dtype_;
  const std::string name_;
};

class Noop : public CommHook {
 public:
  std::string Name() const override { return "no-op"; }
  CommFuture Run(const GradBucket& bucket) override { return CompletedFuture(bucket.buffer()); }
  bool Synchronises() const override { return false; }
};

}  // namespace

at::Tensor GradBucket::gradient(std::size_t i) const {
  const Layout::Gradient& gradient = layout_.gradients[i];
  return buffer_.as_strided(gradient.sizes, gradient.strides, buffer_.storage_offset() + gradient.offset);
}

CommFuture CompletedFuture(at::Tensor value) {
  std::vector<c10::Device> devices;
  if (!value.device().is_cpu()) devices.push_back(value.device());
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get(), std::move(devices));
  future->markCompleted(c10::IValue(std::move(value)));
  return future;
}

CommFuture ThenCompute(const CommFuture& future, std::function<at::Tensor(const at::Tensor&)> then) {
  return future->then(
      [then = std::move(then)](c10::ivalue::Future& done) -> c10::IValue {
        const c10::IValue value = done.value();  // Throws what went wrong.
        // A collective's own future holds the list of its tensors.
        return then(value.isTensor() ? value.toTensor() : value.toTensorVector().at(0));
      },
      c10::TensorType::get());
}

std::unique_ptr<CommHook> AllReduceHook() { return std::make_unique<AllReduce>(); }
std::unique_ptr<CommHook> Fp16CompressHook() { return std::make_unique<Compress>(at::kHalf, "fp16 compression"); }
std::unique_ptr<CommHook> Bf16CompressHook() { return std::make_unique<Compress>(at::kBFloat16, "bf16 compression"); }
std::unique_ptr<CommHook> NoopHook() { return std::make_unique<Noop>(); }

}  // namespace ddpopt
