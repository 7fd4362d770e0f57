#include "ddpopt/ddp/captured_forward.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "ATen/record_function.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/progress.h"
#include "base/status.h"
#include "ddpopt/capture/tracer/compare_traces.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "interpreter/interpreter.h"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

// A piece that a profiler sees by its name.
class NamedPiece : public CompiledPiece {
 public:
  NamedPiece(std::shared_ptr<const CompiledPiece> piece, std::string name) : piece_(std::move(piece)), name_(std::move(name)) {}
  c10::IValue Call(std::vector<c10::IValue> args) const override {
    RECORD_USER_SCOPE(name_);
    return piece_->Call(std::move(args));
  }
  std::vector<absl::optional<OutputMeta>> output_meta() const override { return piece_->output_meta(); }
  bool interprets_graph() const override { return piece_->interprets_graph(); }

 private:
  const std::shared_ptr<const CompiledPiece> piece_;
  const std::string name_;
};

CompileFn NamingPieces(CompileFn backend) {
  if (backend == nullptr) return backend;
  return [backend = std::move(backend)](std::shared_ptr<const fx::GraphModule> piece, const std::vector<c10::IValue>& fake_inputs,
                                        const CompileContext& context) -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> {
    DDPOPT_ASSIGN_OR_RETURN(std::shared_ptr<const CompiledPiece> compiled, backend(std::move(piece), fake_inputs, context));
    if (compiled == nullptr) return compiled;
    return std::make_shared<const NamedPiece>(std::move(compiled), absl::StrCat("forward of ", context.name));
  };
}

}  // namespace

CapturedForward::CapturedForward(std::shared_ptr<torch::nn::Module> module, CapturedForwardOptions options)
    : module_(std::move(module)), options_(std::move(options)), fixed_buckets_(options_.buckets) {
  options_.backend = NamingPieces(std::move(options_.backend));
}

absl::Status CapturedForward::Compile(TracedModule traced, const Call& call, Graph* graph) const {
  // The trace's fakes are of a mode that is gone; the pieces get ones of their own.
  const auto mode = ModeOf(traced.fake_inputs.empty() ? at::Tensor() : traced.fake_inputs[0].toTensor());
  const std::shared_ptr<FakeTensorMode> fakes = mode != nullptr ? mode->shared_from_this() : FakeTensorMode::Create();
  absl::StatusOr<OptimizedModule> optimized = OptimizeDdp(traced.module, traced.fake_inputs, fakes, options_.backend, fixed_buckets_);
  if (!optimized.ok() && !fixed_buckets_.bucket_ends.empty() && options_.buckets.bucket_ends.empty()) {
    // Another branch of forward need not use the parameters at which the table's buckets end. Pieces then end elsewhere; what is reduced
    // together stays.
    optimized = OptimizeDdp(traced.module, traced.fake_inputs, fakes, options_.backend, options_.buckets);
  }
  if (!optimized.ok()) return optimized.status();
  graph->guards = std::make_unique<CallGuards>(call, *module_, options_.device);
  graph->traced = std::move(traced);
  graph->optimized = *std::move(optimized);
  graph->calls_since_trace = 0;
  graph->doubtful = false;
  return absl::OkStatus();
}

absl::Status CapturedForward::Capture(const c10::IValue& arguments, const Call& call, const ValueForward& forward, Graph* graph) const {
  const ProgressScope progress(options_.tells_progress, "capturing and compiling forward");
  DDPOPT_ASSIGN_OR_RETURN(TracedModule traced, TraceCall(module_.get(), arguments, FakeTensorMode::Create(), forward));
  return Compile(std::move(traced), call, graph);
}

absl::Status CapturedForward::TraceFirst(const c10::IValue& arguments, const ValueForward& forward) {
  return CatchAsStatus("", [&]() -> absl::Status {
    DDPOPT_ASSIGN_OR_RETURN(TracedModule traced, TraceCall(module_.get(), arguments, FakeTensorMode::Create(), forward));
    first_trace_ = std::make_unique<TracedModule>(std::move(traced));
    return absl::OkStatus();
  });
}

absl::Status CapturedForward::CaptureFirst(const c10::IValue& arguments, const ValueForward& forward) {
  return CatchAsStatus("", [&]() -> absl::Status {
    auto graph = std::make_unique<Graph>();
    if (first_trace_ != nullptr) {
      const std::unique_ptr<TracedModule> traced = std::move(first_trace_);
      DDPOPT_RETURN_IF_ERROR(Compile(std::move(*traced), Call(arguments), graph.get()));
    } else {
      DDPOPT_RETURN_IF_ERROR(Capture(arguments, Call(arguments), forward, graph.get()));
    }
    first_.traced = graph->traced;
    first_.optimized = graph->optimized;
    // In forward order each bucket but the last ends where its last parameter counts.
    const std::vector<Bucket>& buckets = assignment().buckets;
    std::vector<std::string> ends;
    for (std::size_t i = 0; i + 1 < buckets.size(); ++i) {
      if (!buckets[i].parameters.empty()) ends.push_back(absl::StrCat("parameter:", buckets[i].parameters.front()));
    }
    if (!ends.empty() && options_.buckets.bucket_ends.empty()) {
      fixed_buckets_.bucket_cap_bytes.reset();
      fixed_buckets_.first_bucket_cap_bytes.reset();
      fixed_buckets_.bucket_cap_bytes_list.clear();
      fixed_buckets_.bucket_ends = std::move(ends);
    }
    graphs_.push_back(std::move(graph));
    TrainingChanged();
    return absl::OkStatus();
  });
}

void CapturedForward::RunEagerly(std::string reason) {
  eager_ = true;
  eager_reason_ = std::move(reason);
  graphs_.clear();
  eager_kinds_.clear();
  last_ = nullptr;
}

void CapturedForward::GiveUp(std::string reason) {
  RunEagerly(std::move(reason));
  LOG(WARNING) << options_.who << "forward runs eagerly from now on, with the same gradient buckets: " << eager_reason_;
}

bool CapturedForward::TrainingChanged() {
  std::vector<bool> now;
  for (const auto& module : module_->modules(/*include_self=*/true)) now.push_back(module->is_training());
  const bool changed = !training_.empty() && now != training_;
  training_ = std::move(now);
  return changed;
}

void CapturedForward::Retrace(Graph* graph, const c10::IValue& arguments, const Call& call, const ValueForward& forward) {
  ++retraces_;
  absl::StatusOr<TracedModule> traced = TraceCall(module_.get(), arguments, FakeTensorMode::Create(), forward);
  if (!traced.ok()) {
    GiveUp(absl::StrCat("it can't be captured any more: ", std::string(traced.status().message())));
    return;
  }
  const std::optional<TraceDifference> difference = CompareTraces(graph->traced, *traced);
  graph->calls_since_trace = 0;
  graph->doubtful = false;
  if (!difference.has_value()) return;
  if (++differences_ > 1 || recompiles() >= kMaxRecompiles) {
    GiveUp(absl::StrCat("what it reads of the host (a member, a counter, a random number) has changed again: ", difference->what));
    return;
  }
  recompile_reasons_.push_back(absl::StrCat("host state has changed: ", difference->what));
  LOG(WARNING) << options_.who
               << "what forward reads of the host (a member, a counter, a random number) has changed since it was captured: "
               << difference->what << ". It is captured again; the calls since then were made with the old value";
  if (const absl::Status status = Compile(*std::move(traced), call, graph); !status.ok()) GiveUp(std::string(status.message()));
  for (const auto& other : graphs_) other->doubtful = other.get() != graph;
}

CapturedForward::Graph* CapturedForward::GraphFor(const c10::IValue& arguments, const ValueForward& forward,
                                                  std::vector<at::Tensor>* tensors) {
  if (eager_) return nullptr;
  // Most calls are of the last one's kind, train or eval included.
  if (last_ != nullptr && last_ == graphs_.front().get() && last_->calls > 1 && !last_->doubtful &&
      (options_.retrace_every == 0 || last_->calls_since_trace + 1 < options_.retrace_every) && last_->guards->Holds(arguments, tensors)) {
    ++last_->calls;
    ++last_->calls_since_trace;
    return last_;
  }
  const Call call(arguments);
  *tensors = call.tensors;
  const bool training_changed = TrainingChanged();
  std::string why;
  std::size_t index = 0;
  for (; index < graphs_.size(); ++index) {
    std::string mismatch = graphs_[index]->guards->Mismatch(call);
    if (mismatch.empty()) break;
    if (index == 0) why = std::move(mismatch);
  }
  if (index == graphs_.size()) {
    for (EagerKind& kind : eager_kinds_) {
      if (!kind.guards.Mismatch(call).empty()) continue;
      ++kind.calls;
      return nullptr;
    }
    if (recompiles() >= kMaxRecompiles) {
      GiveUp(absl::StrCat("it was captured again ", recompiles(), " times, and would be once more: ", why));
      return nullptr;
    }
    auto graph = std::make_unique<Graph>();
    const absl::Status status = CatchAsStatus("", [&] { return Capture(arguments, call, forward, graph.get()); });
    if (!status.ok()) {
      cannot_capture_ = absl::StrCat("a kind of call (", why, ") can't be captured: ", std::string(status.message()));
      return nullptr;
    }
    recompile_reasons_.push_back(why);
    graphs_.push_back(std::move(graph));
  }
  std::rotate(graphs_.begin(), graphs_.begin() + static_cast<std::ptrdiff_t>(index),
              graphs_.begin() + static_cast<std::ptrdiff_t>(index) + 1);
  Graph* graph = graphs_.front().get();
  ++graph->calls;
  ++graph->calls_since_trace;
  const bool first_call = graph->calls == 1;
  const bool due = options_.retrace_every > 0 && !first_call &&
                   (graph->calls == 2 || training_changed || graph->doubtful || graph->calls_since_trace >= options_.retrace_every);
  if (due) Retrace(graph, arguments, call, forward);
  return eager_ ? nullptr : graph;
}

void CapturedForward::RememberEagerKind(CallGuards guards) {
  std::string why = std::exchange(cannot_capture_, "");
  // What such a capture has left in a member would be in the way of the other kinds too.
  if (absl::StrContains(why, kKeepsTensors)) return GiveUp(std::move(why));
  if (eager_kinds_.size() == kMaxEagerKinds) {
    return GiveUp(absl::StrCat("it has met ", kMaxEagerKinds, " kinds of call that can't be captured, and one more: ", why));
  }
  LOG(WARNING) << options_.who << "forward runs eagerly for one kind of call, with the same gradient buckets: " << why;
  eager_kinds_.push_back({std::move(guards), std::move(why), 1});
}

c10::IValue CapturedForward::Run(const c10::IValue& arguments, const ValueForward& forward) {
  cannot_capture_.clear();
  std::vector<at::Tensor> tensors;
  Graph* graph = GraphFor(arguments, forward, &tensors);
  last_ = graph;
  if (graph == nullptr) {
    // Of the call as it comes: forward may change its arguments.
    std::optional<CallGuards> guards;
    if (!cannot_capture_.empty()) guards.emplace(Call(arguments), *module_, options_.device);
    c10::IValue result;
    try {
      result = forward(arguments);
    } catch (c10::Error& error) {
      // The failed capture may be the cause, by what it left in a member; another one would do the same.
      const std::string why = cannot_capture_.empty() ? eager_reason_ : cannot_capture_;
      if (absl::StrContains(why, kKeepsTensors)) {
        if (!cannot_capture_.empty()) GiveUp(std::exchange(cannot_capture_, ""));
        error.add_context(absl::StrCat("forward runs eagerly, since ", why));
      }
      throw;
    }
    // A call that forward refuses itself changes nothing.
    if (!cannot_capture_.empty()) RememberEagerKind(*std::move(guards));
    return result;
  }
  return CallGraphModule(*graph->optimized.module,
                         std::vector<c10::IValue>(std::make_move_iterator(tensors.begin()), std::make_move_iterator(tensors.end())));
}

std::string CapturedForward::Explain() const {
  std::string text;
  if (eager_) {
    absl::StrAppend(&text, "forward runs eagerly: ", eager_reason_, "\n");
  } else {
    absl::StrAppend(&text, "forward runs as ", graphs_.size(), graphs_.size() == 1 ? " graph" : " graphs", "\n");
  }
  for (const auto& graph : graphs_) {
    absl::StrAppend(&text, "graph of ", graph->traced.module->graph().size(), " nodes in ", graph->optimized.assignment.buckets.size(),
                    " pieces, called ", graph->calls, " times, for calls with\n", graph->guards->ToString());
  }
  for (const EagerKind& kind : eager_kinds_) {
    absl::StrAppend(&text, "eagerly, ", kind.calls, " times, for calls with\n", kind.guards.ToString(), "  because ", kind.why, "\n");
  }
  absl::StrAppend(&text, "captured again ", recompiles(), " times of at most ", kMaxRecompiles, "\n");
  for (const std::string& reason : recompile_reasons_) absl::StrAppend(&text, "  because ", reason, "\n");
  if (options_.retrace_every > 0) {
    absl::StrAppend(&text, "compared with a new trace ", retraces_, " times: at the second call, after train() or eval(), and every ",
                    options_.retrace_every, " calls; what the host changes in between and changes back is not seen\n");
  } else {
    absl::StrAppend(&text, "never compared with a new trace (retrace_every is 0): what forward reads of the host is not seen to change\n");
  }
  return text;
}

}  // namespace ddpopt
