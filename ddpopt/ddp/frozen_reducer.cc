#include "ddpopt/ddp/frozen_reducer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ATen/core/ivalue.h"
#include "ATen/core/jit_type.h"
#include "c10/util/Exception.h"

namespace ddpopt {
namespace {

std::unordered_map<std::size_t, std::string> NamesByIndex(const std::vector<std::string>& names) {
  std::unordered_map<std::size_t, std::string> result;
  for (std::size_t i = 0; i < names.size(); ++i) result.emplace(i, names[i]);
  return result;
}

// Averages a bucket over the group, and writes down when that began and ended.
class TimedAllReduce : public c10d::CommHookInterface {
 public:
  TimedAllReduce(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<FrozenReducer::Clock> clock)
      : group_(std::move(group)), clock_(std::move(clock)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const std::size_t index = bucket.getIndex();
    at::Tensor buffer = bucket.getBufferRef();
    uint64_t step;
    {
      std::lock_guard<std::mutex> lock(clock_->mutex);
      step = clock_->step;
      if (clock_->times.size() <= index) clock_->times.resize(index + 1);
      clock_->times[index].launched = StreamStamp::Record(buffer.device());
    }
    // With a hook, the base class leaves the division by the number of ranks to the hook. Dividing first keeps sums of low-precision
    // gradients in range.
    buffer.div_(group_->getSize());
    std::vector<at::Tensor> tensors{buffer};
    auto work = group_->allreduce(tensors);
    // The future's value is made by this callback, so whoever waits for it sees the finishing time too. Where an all-reduce is work of a
    // device, the callback runs when it has been given to it, with a current stream that waits for it.
    return work->getFuture()->then(
        [clock = clock_, buffer, index, step](c10::ivalue::Future& done) -> c10::IValue {
          done.value();  // Throws what went wrong in the collective.
          std::lock_guard<std::mutex> lock(clock->mutex);
          if (clock->step == step) clock->times[index].finished = StreamStamp::Record(buffer.device());
          return buffer;
        },
        c10::TensorType::get());
  }

  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<FrozenReducer::Clock> clock_;
};

}  // namespace

FrozenReducer::FrozenReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                             std::vector<std::vector<std::size_t>> buckets, c10::intrusive_ptr<c10d::ProcessGroup> group,
                             bool find_unused_parameters)
    // The caps only steer the rebuilding of buckets, which never happens here.
    : c10d::Reducer(parameters, std::move(buckets), group, std::vector<bool>(parameters.size(), false),
                    /*bucket_bytes_cap=*/c10d::kDefaultBucketBytesCap, find_unused_parameters,
                    /*gradient_as_bucket_view=*/false, NamesByIndex(names),
                    /*first_bucket_bytes_cap=*/c10d::kDefaultFirstBucketBytes, /*skip_all_reduce_unused_params=*/false,
                    /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/{}),
      names_(std::move(names)),
      find_unused_(find_unused_parameters),
      clock_(std::make_shared<Clock>()) {
  TORCH_CHECK(names_.size() == params_.size(), "FrozenReducer: ", params_.size(), " parameters, but ", names_.size(), " names");
  // Without this, every backward appends all parameters to the list for rebuilding, and a call of rebuild_buckets() would change the
  // buckets.
  has_rebuilt_bucket_ = true;
  clock_->times.resize(buckets_.size());
  register_comm_hook(std::make_unique<TimedAllReduce>(std::move(group), clock_));
}

void FrozenReducer::PrepareBackward(const std::vector<at::Tensor>& outputs) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The base class writes here when a gradient comes; -1 stands for "not yet".
    std::fill(backward_stats_.begin(), backward_stats_.end(), -1);
  }
  {
    std::lock_guard<std::mutex> lock(clock_->mutex);
    ++clock_->step;
    std::fill(clock_->times.begin(), clock_->times.end(), Times());
  }
  prepare_for_backward(find_unused_ ? outputs : std::vector<at::Tensor>());
}

bool FrozenReducer::Finished() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !expect_autograd_hooks_ && !require_finalize_ && next_bucket_ == buckets_.size();
}

std::vector<std::string> FrozenReducer::UnreadyParameters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> result;
  for (std::size_t i = 0; i < backward_stats_.size(); ++i) {
    if (backward_stats_[i] == -1) result.push_back(names_[i]);
  }
  return result;
}

std::vector<FrozenReducer::BucketContent> FrozenReducer::Buckets() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<BucketContent> result;
  for (const Bucket& bucket : buckets_) {
    int64_t bytes = 0;
    for (const std::size_t index : bucket.variable_indices) bytes += params_[index].numel() * params_[index].element_size();
    result.push_back({bytes, bucket.variable_indices});
  }
  return result;
}

int64_t FrozenReducer::NumPreparedForwards() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_iterations_;
}

std::size_t FrozenReducer::RebuildListSize() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return rebuilt_params_.size();
}

std::vector<FrozenReducer::Times> FrozenReducer::BucketTimes() const {
  std::lock_guard<std::mutex> lock(clock_->mutex);
  return clock_->times;
}

}  // namespace ddpopt
