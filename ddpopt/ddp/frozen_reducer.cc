#include "ddpopt/ddp/frozen_reducer.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/core/ivalue.h"
#include "ATen/core/jit_type.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/sub.h"
#include "ATen/ops/zeros.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "torch/csrc/autograd/engine.h"
#include "torch/csrc/autograd/function_hook.h"
#include "torch/csrc/autograd/graph_task.h"

namespace ddpopt {
namespace {

std::unordered_map<std::size_t, std::string> NamesByIndex(const std::vector<std::string>& names) {
  std::unordered_map<std::size_t, std::string> result;
  for (std::size_t i = 0; i < names.size(); ++i) result.emplace(i, names[i]);
  return result;
}

// What a hook's future holds, as the base class takes it: it makes views of the parameters' shapes at offsets from the storage's beginning.
at::Tensor HookResult(const c10::IValue& value, const at::Tensor& buffer) {
  at::Tensor result;
  if (value.isTensor()) {
    result = value.toTensor();
  } else if (value.isTensorList() && value.toTensorVector().size() == 1) {
    result = value.toTensorVector()[0];
  } else {
    TORCH_CHECK(value.isNone(), "its future has a value that is not one tensor, but of kind ", value.tagKind());
  }
  TORCH_CHECK(result.defined(), "its future has no value");
  TORCH_CHECK(result.layout() == at::kStrided && result.device() == buffer.device() && result.numel() == buffer.numel() &&
                  result.scalar_type() == buffer.scalar_type(),
              "it made ", result.numel(), " elements of ", result.scalar_type(), " on ", result.device(), " of the bucket's ",
              buffer.numel(), " of ", buffer.scalar_type(), " on ", buffer.device());
  if (result.storage_offset() == 0 && result.is_contiguous()) return result.dim() == 1 ? result : result.view({-1});
  return result.reshape({-1}).clone();
}

std::string MessageOf(c10::ivalue::Future& failed) {
  std::string text = failed.tryRetrieveErrorMessage();
  if (const std::size_t end = text.find("\nException raised from"); end != std::string::npos) text.resize(end);
  return text;
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
    const CommFuture sum = group_->allreduce(tensors)->getFuture();
    {
      std::lock_guard<std::mutex> lock(clock_->mutex);
      ++clock_->outstanding;
    }
    CommFuture result = ThenCompute(sum, [tensor](const at::Tensor&) { return tensor; });
    // Called after what the hook does with the result, which may begin another one.
    sum->addCallback(
        [clock = clock_](c10::ivalue::Future&) {
          std::lock_guard<std::mutex> lock(clock->mutex);
          --clock->outstanding;
          clock->last_ended = std::chrono::steady_clock::now();
          clock->changed.notify_all();
        },
        /*uses_future=*/false);
    return result;
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
    if (reducer_->averaged_share_ != 1) reducer_->ShareAveraged(ours);
    const CommFuture future = reducer_->skipped_buckets_[index] ? CompletedFuture(buffer) : reducer_->RunHook(ours);
    // The future's value is made by this callback, so whoever waits for it sees the finishing time too.
    CommFuture timed = ThenCompute(future, [clock, buffer, index, step](const at::Tensor& result) {
      std::lock_guard<std::mutex> lock(clock->mutex);
      if (clock->step == step) clock->times[index].finished = StreamStamp::Record(buffer.device());
      return result;
    });
    reducer_->launched_.push_back({index, timed});
    // The base class, which waits without end, does so in a callback that it queues right after the last bucket, for the graph that runs
    // now. (It may be within another, as with a re-entrant checkpoint.) There it goes on to the next bucket with this one's result.
    if (reducer_->layouts_[index].is_last) {
      torch::autograd::Engine::get_default_engine().queue_callback([reducer = reducer_] { reducer->AwaitNext(); });
    }
    return timed;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    // Before the result is copied, while the buckets after the next one are still on their way.
    reducer_->AwaitNext();
    return result.toTensor();
  }

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
      averaged_(params_.size()),
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
  launched_.clear();
  awaited_ = 0;
  target_given_.assign(params_.size(), false);
  targets_given_ = 0;
  prepare_for_backward({});
  synchronising_ = true;
  if (!options_.MayLeaveOut()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  // The base class would walk the graph from forward's outputs. The engine has just walked the one that runs: parameters that only outputs
  // not in the loss depend on are known to be unused too.
  unused_parameters_.clear();
  if (options_.static_graph && !learnt_) {
    // Which parameters come, and how often, is known at the end only: graphs that run within this one (re-entrant checkpoints) bring theirs
    // too. Until then the base class is to ignore all; EndOfGraph gives it the parameters.
    expect_autograd_hooks_ = false;
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (arrivals_[i].accumulated && params_[i].grad().defined()) local_used_map_[static_cast<int64_t>(i)] = 1;
    }
    return;
  }
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
  CheckNotTooLate(index);
  if (keeps_averaged_ && !arrival.accumulated) {
    const at::Tensor& before = params_[index].grad();
    averaged_[index] = before.defined() ? before.detach().clone() : at::Tensor();
  }
  arrival.accumulated = true;
}

// Where a backward runs other backwards, the graph that began does not show what they bring.
void FrozenReducer::CheckNotTooLate(std::size_t index) const {
  if (!synchronising_) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (backward_stats_[index] == -1) return;
  }
  constexpr char kReentrant[] =
      "as by a checkpoint that computes forward again and calls backward within the backward (a re-entrant one)";
  const char* const remedy = options_.static_graph ? "" : ". Set static_graph, if all backwards are alike, or use another checkpoint";
  TORCH_CHECK(learnt_ || arrivals_[index].in_backward > 1, "DistributedDataParallel: parameter \"", names_[index],
              "\" got a gradient after it had been taken for unused, ", kReentrant, remedy);
  TORCH_CHECK(learnt_, "DistributedDataParallel: parameter \"", names_[index],
              "\" got another gradient after its bucket had been given one, ", kReentrant, remedy);
  TORCH_CHECK(false, "DistributedDataParallel: parameter \"", names_[index],
              "\" got more gradients in this backward than in the first synchronised one: the graph is not static", remedy);
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
  expect_autograd_hooks_ = true;
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

std::string FrozenReducer::HookOn(std::size_t bucket) const {
  std::vector<std::string> names;
  for (const GradBucket::Layout::Gradient& gradient : layouts_[bucket].gradients) names.push_back(gradient.parameter);
  return absl::StrCat("communication hook \"", hook_->Name(), "\" on bucket ", bucket, " (", absl::StrJoin(names, ", "), ")");
}

CommFuture FrozenReducer::RunHook(const GradBucket& bucket) const {
  const auto index = static_cast<std::size_t>(bucket.index());
  CommFuture future;
  try {
    future = hook_->Run(bucket);
  } catch (c10::Error& error) {
    error.add_context(absl::StrCat("in ", HookOn(index)));
    throw;
  } catch (const std::exception& error) {
    TORCH_CHECK(false, HookOn(index), " threw: ", error.what());
  }
  TORCH_CHECK(future != nullptr, HookOn(index), " returned no future");
  return future->then([buffer = bucket.buffer()](c10::ivalue::Future& done) -> c10::IValue { return HookResult(done.value(), buffer); },
                      c10::TensorType::get());
}

std::string FrozenReducer::Await(const Launched& launched, std::chrono::steady_clock::time_point begin) const {
  using SteadyClock = std::chrono::steady_clock;
  // Its collectives end by their own deadlines, with better words; should one not, this is the last resort.
  constexpr auto kGrace = std::chrono::seconds(30);
  const CommFuture& future = launched.future;
  if (!future->completed()) {
    future->addCallback(
        [clock = clock_](c10::ivalue::Future&) {
          std::lock_guard<std::mutex> lock(clock->mutex);
          clock->changed.notify_all();
        },
        /*uses_future=*/false);
    std::unique_lock<std::mutex> lock(clock_->mutex);
    while (!future->completed()) {
      const bool waits_for_others = clock_->outstanding > 0;
      const SteadyClock::time_point due =
          std::max(begin, clock_->last_ended) + options_.hook_timeout + (waits_for_others ? kGrace : std::chrono::seconds(0));
      if (SteadyClock::now() < due) {
        clock_->changed.wait_until(lock, due);
        continue;
      }
      return absl::StrFormat("%s has not completed its future within %g s%s", HookOn(launched.bucket),
                             static_cast<double>(options_.hook_timeout.count()) / 1000,
                             waits_for_others ? ", and an all-reduce of its has not ended" : " without an all-reduce of its running");
    }
  }
  return future->hasError() ? absl::StrCat(HookOn(launched.bucket), " failed: ", MessageOf(*future)) : "";
}

void FrozenReducer::AwaitNext() {
  if (awaited_ == launched_.size()) return;
  if (awaited_ == 0) await_begin_ = std::chrono::steady_clock::now();
  const std::string why = Await(launched_[awaited_++], await_begin_);
  if (awaited_ == launched_.size() || !why.empty()) {
    launched_.clear();
    awaited_ = 0;
  }
  if (why.empty()) return;
  if (on_failure_) on_failure_(why);
  TORCH_CHECK(false, "DistributedDataParallel: ", why);
}

void FrozenReducer::SetShares(int64_t divisor, int64_t active) {
  divisor_ = divisor;
  averaged_share_ = static_cast<double>(divisor) / static_cast<double>(active);
}

void FrozenReducer::LeaveJoin() {
  SetShares(process_group_->getSize(), process_group_->getSize());
  keeps_averaged_ = false;
  averaged_.assign(params_.size(), at::Tensor());
}

void FrozenReducer::ShareAveraged(const GradBucket& bucket) const {
  const std::vector<std::size_t>& indices = buckets_[static_cast<std::size_t>(bucket.index())].variable_indices;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::size_t index = indices[i];
    const at::Tensor averaged = arrivals_[index].accumulated ? averaged_[index] : params_[index].grad();
    if (averaged.defined()) bucket.gradient(i).add_(averaged.detach(), averaged_share_ - 1);
  }
}

std::string FrozenReducer::Shadow() {
  const at::NoGradGuard no_grad;
  std::vector<Launched> launched;
  at::Tensor used = at::zeros({static_cast<int64_t>(params_.size())}, at::kInt);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    if (skipped_buckets_[b]) continue;
    const GradBucket bucket(layouts_[b], at::zeros_like(buckets_[b].gradients), divisor_, communicator_.get());
    for (std::size_t i = 0; i < bucket.num_gradients(); ++i) {
      const std::size_t index = buckets_[b].variable_indices[i];
      const at::Tensor& gradient = params_[index].grad();
      if (!std::exchange(arrivals_[index].accumulated, false) || !gradient.defined()) continue;
      bucket.gradient(i).copy_(averaged_[index].defined() ? at::sub(gradient, averaged_[index]) : gradient);
      used[static_cast<int64_t>(index)] = 1;
    }
    launched.push_back({b, RunHook(bucket)});
  }
  if (options_.MayLeaveOut() && !learnt_) {
    std::vector<at::Tensor> tensors{used.to(local_used_map_dev_.device())};
    process_group_->allreduce(tensors)->wait();
  }
  const auto begin = std::chrono::steady_clock::now();
  for (const Launched& each : launched) {
    if (std::string why = Await(each, begin); !why.empty()) return why;
  }
  return "";
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
