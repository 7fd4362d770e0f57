#include "ddpopt/ddp/frozen_reducer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ATen/core/ivalue.h"
#include "ATen/core/jit_type.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/graph_task.h"

namespace ddpopt {
namespace {

std::unordered_map<std::size_t, std::string> NamesByIndex(const std::vector<std::string>& names) {
  std::unordered_map<std::size_t, std::string> result;
  for (std::size_t i = 0; i < names.size(); ++i) result.emplace(i, names[i]);
  return result;
}

}  // namespace

class FrozenReducer::Communicator : public GradBucket::Communicator {
 public:
  Communicator(c10::intrusive_ptr<c10d::ProcessGroup> group, std::shared_ptr<Clock> clock)
      : group_(std::move(group)), clock_(std::move(clock)) {}

  CommFuture AllReduceSum(at::Tensor tensor) override {
    {
      std::lock_guard<std::mutex> lock(clock_->mutex);
      clock_->bytes += static_cast<int64_t>(tensor.nbytes());
    }
    std::vector<at::Tensor> tensors{tensor};
    return ThenCompute(group_->allreduce(tensors)->getFuture(), [tensor](const at::Tensor&) { return tensor; });
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::shared_ptr<Clock> clock_;
};

// Runs the user's hook on a bucket, and writes down when its reduction began and ended.
class FrozenReducer::TimedHook : public c10d::CommHookInterface {
 public:
  explicit TimedHook(FrozenReducer* reducer) : reducer_(reducer) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const std::size_t index = bucket.getIndex();
    const at::Tensor buffer = bucket.getBuffer();
    const std::shared_ptr<Clock>& clock = reducer_->clock_;
    uint64_t step;
    {
      std::lock_guard<std::mutex> lock(clock->mutex);
      step = clock->step;
      clock->times[index].launched = StreamStamp::Record(buffer.device());
    }
    const GradBucket ours(reducer_->layouts_[index], buffer, reducer_->divisor_, reducer_->communicator_.get());
    if (reducer_->check_finite_ && !at::isfinite(buffer).all().item().toBool()) {
      for (std::size_t i = 0; i < ours.num_gradients(); ++i) {
        if (!at::isfinite(ours.gradient(i)).all().item().toBool()) reducer_->not_finite_here_.push_back(ours.parameter(i));
      }
    }
    const CommFuture future = reducer_->skipped_buckets_[index] ? CompletedFuture(buffer) : reducer_->hook_->Run(ours);
    TORCH_CHECK(future != nullptr, "DistributedDataParallel: communication hook \"", reducer_->hook_->Name(), "\" returned no future");
    // The future's value is made by this callback, so whoever waits for it sees the finishing time too.
    return ThenCompute(future, [clock, buffer, index, step, hook = reducer_->hook_](const at::Tensor& result) {
      TORCH_CHECK(result.defined() && result.numel() == buffer.numel() && result.scalar_type() == buffer.scalar_type(),
                  "DistributedDataParallel: communication hook \"", hook->Name(), "\" made of bucket ", index, " (", buffer.numel(),
                  " elements of ", buffer.scalar_type(), ") something else");
      std::lock_guard<std::mutex> lock(clock->mutex);
      if (clock->step == step) clock->times[index].finished = StreamStamp::Record(buffer.device());
      return result;
    });
  }

  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  FrozenReducer* const reducer_;
};

// Sees each parameter's gradient just before it is accumulated.
class FrozenReducer::LayoutCheck : public torch::autograd::FunctionPreHook {
 public:
  LayoutCheck(FrozenReducer* reducer, std::size_t index) : reducer_(reducer), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    reducer_->OnGradient(index_, gradients.at(0));
    return gradients;
  }
  const FrozenReducer* reducer() const { return reducer_; }

 private:
  FrozenReducer* const reducer_;
  const std::size_t index_;
};

FrozenReducer::FrozenReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names,
                             std::vector<std::vector<std::size_t>> buckets, c10::intrusive_ptr<c10d::ProcessGroup> group,
                             FrozenReducerOptions options, std::shared_ptr<CommHook> hook)
    // The caps only steer the rebuilding of buckets, which never happens here.
    : c10d::Reducer(parameters, std::move(buckets), group, std::vector<bool>(parameters.size(), false),
                    /*bucket_bytes_cap=*/c10d::kDefaultBucketBytesCap, options.MayLeaveOut(), options.gradient_as_bucket_view,
                    NamesByIndex(names),
                    /*first_bucket_bytes_cap=*/c10d::kDefaultFirstBucketBytes, /*skip_all_reduce_unused_params=*/false,
                    /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/{}),
      names_(std::move(names)),
      options_(options),
      hook_(std::move(hook)),
      clock_(std::make_shared<Clock>()),
      communicator_(std::make_unique<Communicator>(group, clock_)),
      divisor_(group->getSize()),
      arrivals_(params_.size()),
      used_here_(params_.size(), true),
      used_anywhere_(params_.size(), true),
      skipped_buckets_(buckets_.size(), false) {
  TORCH_CHECK(names_.size() == params_.size(), "FrozenReducer: ", params_.size(), " parameters, but ", names_.size(), " names");
  // Without this, every backward appends all parameters to the list for rebuilding, and a call of rebuild_buckets() would change the
  // buckets.
  has_rebuilt_bucket_ = true;
  // Else the base class writes to its logger, which only Python gives it, when the set of unused parameters changes.
  ddp_graph_static_ = false;
  clock_->times.resize(buckets_.size());
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    Bucket& bucket = buckets_[b];
    GradBucket::Layout layout{static_cast<int64_t>(b), b + 1 == buckets_.size(), {}};
    for (std::size_t i = 0; i < bucket.variable_indices.size(); ++i) {
      at::Tensor& view = bucket.bucket_views_in[i];
      const std::size_t index = bucket.variable_indices[i];
      layout.gradients.push_back({names_[index], static_cast<int64_t>(bucket.offsets[i]), view.sizes().vec(), view.strides().vec()});
      if (!options_.gradient_as_bucket_view) continue;
      // Gradients become these views. To autograd they shall be tensors like any other, which can be detached in place (zero_grad does).
      const at::Tensor plain = view.variable_data();
      at::Tensor& gradient = params_[index].mutable_grad();
      if (gradient.defined() && gradient.is_alias_of(view)) gradient = plain;
      view = plain;
    }
    if (options_.gradient_as_bucket_view) bucket.bucket_views_out = bucket.bucket_views_in;
    layouts_.push_back(std::move(layout));
  }
  for (std::size_t i = 0; i < grad_accumulators_.size(); ++i) {
    grad_accumulators_[i]->add_pre_hook(std::make_unique<LayoutCheck>(this, i));
  }
  for (std::size_t i = 0; i < params_.size(); ++i) index_of_.emplace(params_[i].unsafeGetTensorImpl(), i);
  target_given_.assign(params_.size(), false);
  register_comm_hook(std::make_unique<TimedHook>(this));
}

FrozenReducer::~FrozenReducer() {
  for (const auto& accumulator : grad_accumulators_) {
    auto& hooks = accumulator->pre_hooks();
    hooks.erase(std::remove_if(hooks.begin(), hooks.end(),
                               [this](const std::unique_ptr<torch::autograd::FunctionPreHook>& hook) {
                                 const auto* ours = dynamic_cast<const LayoutCheck*>(hook.get());
                                 return ours != nullptr && ours->reducer() == this;
                               }),
                hooks.end());
  }
}

void FrozenReducer::CountForward() {
  ++num_forwards_;
  prepare_for_forward();
}

bool FrozenReducer::TakesPartInBackward() const {
  const auto* wanted = torch::autograd::get_current_graph_task_exec_info();
  if (wanted == nullptr || wanted->empty()) return true;
  return std::any_of(grad_accumulators_.begin(), grad_accumulators_.end(), [&](const auto& accumulator) {
    const auto it = wanted->find(accumulator.get());
    return it != wanted->end() && it->second.needed_;
  });
}

void FrozenReducer::EnterBackward() {
  in_backward_ = true;
  for (Arrival& arrival : arrivals_) arrival.in_backward = 0;
}

void FrozenReducer::Synchronise() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    // The base class writes here when a gradient comes; -1 stands for "not yet".
    std::fill(backward_stats_.begin(), backward_stats_.end(), -1);
  }
  {
    std::lock_guard<std::mutex> lock(clock_->mutex);
    ++clock_->step;
    clock_->bytes = 0;
    std::fill(clock_->times.begin(), clock_->times.end(), Times());
  }
  not_finite_here_.clear();
  target_given_.assign(params_.size(), false);
  targets_given_ = 0;
  prepare_for_backward({});
  synchronising_ = true;
  if (!options_.MayLeaveOut()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  // The base class would walk the graph from forward's outputs. The engine has just walked the one that runs: parameters that only outputs
  // not in the loss depend on are known to be unused too.
  unused_parameters_.clear();
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const bool unused = learnt_ ? !used_here_[i] : nodes != nullptr && nodes->count(grad_accumulators_[i].get()) == 0;
    if (unused) unused_parameters_.push_back(i);
    // What was accumulated before is synchronised now.
    if (!learnt_ && arrivals_[i].accumulated && params_[i].grad().defined()) local_used_map_[static_cast<int64_t>(i)] = 1;
  }
}

void FrozenReducer::OnGradient(std::size_t index, const at::Tensor& gradient) {
  if (!in_backward_ && on_unexpected_gradient_) on_unexpected_gradient_();
  Arrival& arrival = arrivals_[index];
  ++arrival.in_backward;
  if (!gradient.defined()) return;
  TORCH_CHECK(gradient.layout() == at::kStrided, "DistributedDataParallel: parameter \"", names_[index],
              "\" got a sparse gradient, which is not supported");
  // What a bucket gets is a copy without history, and without it each rank would have its own second derivatives, or none.
  TORCH_CHECK(!synchronising_ || !gradient.requires_grad(), "DistributedDataParallel: parameter \"", names_[index],
              "\" got a gradient with a history (create_graph), which is not supported where gradients are synchronised");
  TORCH_CHECK(used_here_[index], "DistributedDataParallel: parameter \"", names_[index],
              "\" got no gradient in the first synchronised backward, but gets one now: the graph is not static, as ",
              options_.static_graph ? "static_graph" : "skip_all_reduce_unused_params", " says");
  arrival.accumulated = true;
}

at::Tensor FrozenReducer::TargetFor(const at::Tensor& parameter) {
  if (!synchronising_ || !options_.gradient_as_bucket_view) return at::Tensor();
  const auto found = index_of_.find(parameter.unsafeGetTensorImpl());
  // What came in this backward already lies there, or will be added to.
  if (found == index_of_.end() || target_given_[found->second] || arrivals_[found->second].in_backward > 0) return at::Tensor();
  target_given_[found->second] = true;
  ++targets_given_;
  std::lock_guard<std::mutex> lock(mutex_);
  const VariableLocator& place = variable_locators_[found->second];
  const at::Tensor& view = buckets_[place.bucket_index].bucket_views_in[place.intra_bucket_index];
  return at::Tensor(view.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

void FrozenReducer::EndOfGraph() {
  if (!synchronising_) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (next_bucket_ == buckets_.size()) return;
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (backward_stats_[i] != -1) continue;
    const bool came = arrivals_[i].in_backward > 0;
    if (!came && !(options_.MayLeaveOut() && (!learnt_ || !used_here_[i]))) continue;
    if (came && options_.MayLeaveOut() && !learnt_ && params_[i].grad().defined()) local_used_map_[static_cast<int64_t>(i)] = 1;
    ready.push_back(i);
  }
  has_marked_unused_parameters_ = true;
  for (const std::size_t index : ready) mark_variable_ready(index);
}

bool FrozenReducer::Finished() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !expect_autograd_hooks_ && !require_finalize_ && next_bucket_ == buckets_.size();
}

std::vector<std::string> FrozenReducer::MissingParameters() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> result;
  for (std::size_t i = 0; i < backward_stats_.size(); ++i) {
    if (backward_stats_[i] == -1) result.push_back(names_[i]);
  }
  return result;
}

std::string FrozenReducer::EndBackward() {
  in_backward_ = false;
  if (!synchronising_) {
    for (std::size_t i = 0; learnt_ && i < params_.size(); ++i) {
      if (used_here_[i] && arrivals_[i].in_backward == 0) {
        return absl::StrCat("parameter \"", names_[i], "\" got no gradient, but did in the first synchronised backward: the graph is not ",
                            "static");
      }
    }
    return "";
  }
  synchronising_ = false;
  for (Arrival& arrival : arrivals_) arrival.accumulated = false;
  return options_.Learns() && !learnt_ ? Learn() : "";
}

std::string FrozenReducer::Learn() {
  std::lock_guard<std::mutex> lock(mutex_);
  const at::Tensor counts = local_used_map_dev_.cpu();  // on how many ranks each is used
  const int world_size = process_group_->getSize();
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const int count = counts.const_data_ptr<int>()[i];
    if (options_.skip_all_reduce_unused_params && count != 0 && count != world_size) {
      return absl::StrCat("parameter \"", names_[i], "\" got a gradient on ", count, " of ", world_size,
                          " ranks; skip_all_reduce_unused_params is for parameters that are unused on all ranks or on none");
    }
    used_anywhere_[i] = count != 0;
    used_here_[i] = arrivals_[i].in_backward > 0;
    numGradHooksTriggeredMap_[i] = static_cast<int>(arrivals_[i].in_backward);
  }
  if (options_.skip_all_reduce_unused_params) {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      const auto& indices = buckets_[b].variable_indices;
      skipped_buckets_[b] = std::none_of(indices.begin(), indices.end(), [&](std::size_t i) { return bool(used_anywhere_[i]); });
    }
  }
  // From now on the base class takes the graph for a static one whose first iteration is over: it expects each parameter as often as it
  // came, and takes this for what is used anywhere, without asking the other ranks.
  local_used_map_.copy_(counts.clamp_max(1));
  local_used_map_reduced_ = true;
  num_iterations_ = std::max<long>(num_iterations_, 2);
  static_graph_ = true;
  learnt_ = true;
  return "";
}

void FrozenReducer::Shadow() {
  std::vector<CommFuture> futures;
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (skipped_buckets_[b]) continue;
    const GradBucket bucket(layouts_[b], at::zeros_like(buckets_[b].gradients), divisor_, communicator_.get());
    futures.push_back(hook_->Run(bucket));
  }
  if (options_.MayLeaveOut() && !learnt_) {
    std::vector<at::Tensor> used{at::zeros_like(local_used_map_dev_)};
    process_group_->allreduce(used)->wait();
  }
  for (const CommFuture& future : futures) {
    future->wait();
    if (future->hasError()) std::rethrow_exception(future->exception_ptr());
  }
}

std::vector<FrozenReducer::BucketContent> FrozenReducer::Buckets() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<BucketContent> result;
  for (const Bucket& bucket : buckets_) {
    BucketContent content{0, bucket.variable_indices, {}};
    for (const std::size_t index : bucket.variable_indices) {
      content.bytes += params_[index].numel() * params_[index].element_size();
      content.names.push_back(names_[index]);
    }
    result.push_back(std::move(content));
  }
  return result;
}

std::vector<std::string> FrozenReducer::NotFinite() const {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor& gradient = params_[i].grad();
    if (gradient.defined() && !at::isfinite(gradient).all().item().toBool()) result.push_back(names_[i]);
  }
  return result;
}

std::size_t FrozenReducer::RebuildListSize() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return rebuilt_params_.size();
}

std::vector<FrozenReducer::Times> FrozenReducer::BucketTimes() const {
  std::lock_guard<std::mutex> lock(clock_->mutex);
  return clock_->times;
}

int64_t FrozenReducer::BytesSent() const {
  std::lock_guard<std::mutex> lock(clock_->mutex);
  return clock_->bytes;
}

}  // namespace ddpopt
