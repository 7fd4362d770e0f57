#ifndef DDPOPT_DDP_BUCKET_TARGETS_H_
#define DDPOPT_DDP_BUCKET_TARGETS_H_

// With gradient_as_bucket_view, compiled pieces may write gradients into the Reducer's buckets at once. Private to this package.
//
//   const auto targets = std::make_shared<BucketTargets>();
//   backend = GivingTargets(backend, targets);        // for pieces compiled from now on
//   targets->set_sync(sync);                          // once there is a Reducer

#include <memory>
#include <mutex>

#include "ATen/core/Tensor.h"
#include "ddpopt/aot/gradient_targets.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/ddp/backward_sync.h"

namespace ddpopt {

class BucketTargets : public GradientTargets {
 public:
  void set_sync(std::weak_ptr<BackwardSync> sync);
  // The place in its bucket, in a backward that is synchronised, once in each.
  at::Tensor TargetFor(const at::Tensor& parameter) const override;

 private:
  mutable std::mutex mutex_;
  std::weak_ptr<BackwardSync> sync_;
};

CompileFn GivingTargets(CompileFn backend, std::shared_ptr<const GradientTargets> targets);

}  // namespace ddpopt

#endif  // DDPOPT_DDP_BUCKET_TARGETS_H_
