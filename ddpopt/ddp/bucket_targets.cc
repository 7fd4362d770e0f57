#include "ddpopt/ddp/bucket_targets.h"

#include <utility>
#include <vector>

namespace ddpopt {

void BucketTargets::set_sync(std::weak_ptr<BackwardSync> sync) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sync_ = std::move(sync);
}

at::Tensor BucketTargets::TargetFor(const at::Tensor& parameter) const {
  std::shared_ptr<BackwardSync> sync;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sync = sync_.lock();
  }
  return sync == nullptr || sync->reducer() == nullptr ? at::Tensor() : sync->reducer()->TargetFor(parameter);
}

CompileFn GivingTargets(CompileFn backend, std::shared_ptr<const GradientTargets> targets) {
  return [backend = std::move(backend), targets = std::move(targets)](std::shared_ptr<const fx::GraphModule> piece,
                                                                      const std::vector<c10::IValue>& fake_inputs,
                                                                      const CompileContext& context) {
    CompileContext with_targets = context;
    with_targets.gradient_targets = targets;
    return backend(std::move(piece), fake_inputs, with_targets);
  };
}

}  // namespace ddpopt
