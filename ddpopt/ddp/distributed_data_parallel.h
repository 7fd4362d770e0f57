#ifndef DDPOPT_DDP_DISTRIBUTED_DATA_PARALLEL_H_
#define DDPOPT_DDP_DISTRIBUTED_DATA_PARALLEL_H_

// DistributedDataParallel for LibTorch modules: the module's forward is captured as a graph, cut where gradient buckets end, and
// each bucket's all-reduce overlaps the rest of the backward.
//
//   auto pg  = ddpopt::InitProcessGroup();
//   auto ddp = ddpopt::DistributedDataParallel<Net>::Create(net, *pg);
//   auto loss = (*ddp)->forward(x, y);       // Net::forward's signature; its return type must be at::Tensor
//   loss.backward();
//   optimizer.step();                        // over net->parameters(): they are never replaced or copied
//
// `Net` is any ModuleHolder (TORCH_MODULE) or std::shared_ptr to a torch::nn::Module. One thread at a time.

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/ddp/ddp_core.h"
#include "ddpopt/distributed/process_group.h"
#include "torch/nn/module.h"

namespace ddpopt {

template <typename Net>
class DistributedDataParallel {
 public:
  // Collective: every rank must call it. Checks the module, compares parameters between ranks, and broadcasts rank 0's parameters and
  // buffers. Errors: InvalidArgument for options or a module that cannot be wrapped (null, no trainable, integer, meta or sparse
  // parameters, wrapped already), FailedPrecondition naming the ranks and the first difference when their models or caps differ, or the
  // rank that failed.
  static absl::StatusOr<std::unique_ptr<DistributedDataParallel>> Create(Net net, ProcessGroup group, DdpOptions options = {}) {
    auto core = DdpCore::Create(ModulePtr(net), std::move(group), std::move(options));
    if (!core.ok()) return core.status();
    return std::unique_ptr<DistributedDataParallel>(new DistributedDataParallel(std::move(net), *std::move(core)));
  }

  // The first call with gradients captures, splits and builds the Reducer (collective). Later ones must match its shapes, strides, dtypes,
  // devices, train/eval and requires_grad, and each needs one backward through its output. Under NoGradGuard the module runs as it is,
  // without synchronisation. Throws c10::Error.
  template <typename... Args>
  at::Tensor forward(Args&&... args) {
    static_assert((std::is_convertible_v<Args, at::Tensor> && ...), "DistributedDataParallel::forward takes tensors only, so far");
    static_assert(std::is_same_v<std::decay_t<decltype(net_->forward(at::Tensor(args)...))>, at::Tensor>,
                  "DistributedDataParallel: Net::forward must return one at::Tensor, so far");
    const std::vector<at::Tensor> inputs{at::Tensor(args)...};
    return core_->Forward(inputs,
                          [this](const std::vector<at::Tensor>& tensors) { return Call(tensors, std::index_sequence_for<Args...>{}); });
  }

  Net& module() { return net_; }
  const DdpCore& core() const { return *core_; }

 private:
  DistributedDataParallel(Net net, std::unique_ptr<DdpCore> core) : net_(std::move(net)), core_(std::move(core)) {}

  template <std::size_t... I>
  at::Tensor Call([[maybe_unused]] const std::vector<at::Tensor>& tensors, std::index_sequence<I...>) {
    return net_->forward(tensors[I]...);
  }
  static std::shared_ptr<torch::nn::Module> ModulePtr(Net& net) {
    if constexpr (requires { net.is_empty(); }) {
      if (net.is_empty()) return nullptr;
      return net.ptr();
    } else {
      return net;
    }
  }

  Net net_;
  std::unique_ptr<DdpCore> core_;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_DISTRIBUTED_DATA_PARALLEL_H_
