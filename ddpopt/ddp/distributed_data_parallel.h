#ifndef DDPOPT_DDP_DISTRIBUTED_DATA_PARALLEL_H_
#define DDPOPT_DDP_DISTRIBUTED_DATA_PARALLEL_H_

// DistributedDataParallel for LibTorch modules: the module's forward is captured as a graph, cut where gradient buckets end, and
// each bucket's all-reduce overlaps the rest of the backward.
//
//   auto pg  = ddpopt::InitProcessGroup();
//   auto ddp = ddpopt::DistributedDataParallel<Net>::Create(net, *pg);
//   auto loss = (*ddp)->forward(x, y);       // Net::forward's signature and return type
//   loss.backward();
//   optimizer.step();                        // over net->parameters(): they are never replaced or copied
//
// `Net` is any ModuleHolder (TORCH_MODULE) or std::shared_ptr to a torch::nn::Module. One thread at a time.

#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ddpopt/capture/tracer/values.h"
#include "ddpopt/ddp/ddp_core.h"
#include "ddpopt/distributed/process_group.h"
#include "torch/nn/module.h"

namespace ddpopt {

template <typename Net>
class DistributedDataParallel {
 public:
  // Collective: every rank must call it. Checks the module, compares parameters between ranks, and broadcasts rank 0's parameters and
  // buffers. Errors: InvalidArgument for options or a module that cannot be wrapped (null, no trainable parameters, complex or meta ones,
  // sparse gradients, wrapped already), FailedPrecondition naming the ranks and the first difference when their models or caps differ, or
  // the rank that failed.
  static absl::StatusOr<std::unique_ptr<DistributedDataParallel>> Create(Net net, ProcessGroup group, DdpOptions options = {}) {
    auto core = DdpCore::Create(ModulePtr(net), std::move(group), std::move(options));
    if (!core.ok()) return core.status();
    return std::unique_ptr<DistributedDataParallel>(new DistributedDataParallel(std::move(net), *std::move(core)));
  }

  // Arguments and result may be nested as ddpopt/capture/tracer/values.h says; what is no tensor is part of the captured graph. The first
  // call with gradients captures, splits and builds the Reducer (collective). Other shapes, strides, dtypes, devices, train/eval, values of
  // arguments are captured when they come, see DdpCore::explain. A backward through its result leaves gradients averaged over the ranks; as
  // in PyTorch all ranks call forward and backward alike. Under NoGradGuard the module runs as it is, without synchronisation. Throws
  // c10::Error.
  template <typename... Args>
  auto forward(Args&&... args) {
    using Arguments = std::tuple<std::decay_t<Args>...>;
    using Result = std::decay_t<decltype(net_->forward(std::declval<std::decay_t<Args>&>()...))>;
    const c10::IValue result = core_->Forward(ToValue(Arguments(std::forward<Args>(args)...)), [this](const c10::IValue& arguments) {
      Arguments values = FromValue<Arguments>(arguments);
      return std::apply([this](auto&... value) { return ToValue<Result>(net_->forward(value...)); }, values);
    });
    return FromValue<Result>(result);
  }

  // A scope in which forwards are not synchronised, to accumulate gradients: see no_sync_scope.h.
  NoSyncScope no_sync() { return core_->no_sync(); }
  // A scope for inputs of which ranks have different numbers: see join.h.
  absl::StatusOr<std::unique_ptr<JoinScope>> join(const JoinOptions& options = {}) { return core_->join(options); }
  // How gradients are reduced, if not averaged as they are: see comm_hook.h, DdpCore::RegisterCommHook.
  absl::Status RegisterCommHook(std::unique_ptr<CommHook> hook) { return core_->RegisterCommHook(std::move(hook)); }
  // A Chrome trace of the steps from now on, with the buckets' names: see step_trace.h.
  absl::StatusOr<std::unique_ptr<StepTrace>> Trace(const std::string& path) { return core_->Trace(path); }

  Net& module() { return net_; }
  const DdpCore& core() const { return *core_; }

 private:
  DistributedDataParallel(Net net, std::unique_ptr<DdpCore> core) : net_(std::move(net)), core_(std::move(core)) {}

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
