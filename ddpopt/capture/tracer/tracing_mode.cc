#include "ddpopt/capture/tracer/tracing_mode.h"

#include <algorithm>

#include "ATen/autocast_mode.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/clone.h"
#include "ATen/ops/equal.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "c10/core/InferenceMode.h"
#include "ddpopt/capture/tracer/checkpoint_region.h"
#include "ddpopt/capture/tracer/custom_function.h"
#include "ddpopt/capture/tracer/values.h"
#include "fx_graph/checkpoint_region.h"
#include "fx_graph/constants.h"
#include "fx_graph/passes/identical.h"
#include "interpreter/tracing.h"
#include "torch/csrc/autograd/function.h"
#include "torch/csrc/autograd/graph_task.h"
#include "torch/csrc/autograd/variable.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::Argument;

// Whether an argument may be left out of the node because it has its default value.
bool IsDefault(const c10::Argument& argument, const IValue& value) {
  const auto& fallback = argument.default_value();
  if (!fallback.has_value()) return false;
  if (fallback->isNone() || value.isNone()) return fallback->isNone() && value.isNone();
  if (value.isTensor() || value.isTensorList()) return false;
  return fallback->tagKind() == value.tagKind() && *fallback == value;
}

// One number where the schema says int[2] is written out, as Python's tracers do: [2] for a kernel_size is [2, 2].
void WriteOut(const c10::Argument& argument, IValue* value) {
  if (!argument.N().has_value() || *argument.N() < 2 || !value->isIntList()) return;
  if (const c10::List<int64_t> list = value->toIntList(); list.size() == 1) *value = std::vector<int64_t>(*argument.N(), list.get(0));
}

// Whether the operator gives its first argument's values as they are, in memory of its own or not.
bool KeepsValues(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "aten::clone" || name == "aten::contiguous" || name == "aten::detach" || name == "aten::alias" ||
         name == "aten::lift_fresh_copy";
}

c10::OperatorHandle Find(const char* name, const char* overload) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload); }

const c10::StorageImpl* StorageOf(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

bool SameLayout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.storage_offset() == b.storage_offset() &&
         a.scalar_type() == b.scalar_type();
}

std::optional<std::uint32_t> VersionOf(const at::Tensor& tensor) {
  if (tensor.is_inference()) return std::nullopt;
  return static_cast<std::uint32_t>(tensor._version());
}

// Of a leaf; a fake may have one from its real tensor.
const void* GradOf(const at::Tensor& tensor) {
  if (!tensor.is_leaf() || !tensor.requires_grad() || !tensor.grad().defined()) return nullptr;
  return tensor.grad().unsafeGetTensorImpl();
}

}  // namespace

TracingMode::TracingMode(std::shared_ptr<FakeTensorMode> fakes, fx::GraphModule* module)
    : fakes_(std::move(fakes)),
      module_(module),
      effects_(*module),
      initial_grad_(c10::GradMode::is_enabled()),
      grad_(initial_grad_),
      autocast_cpu_{at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU)},
      autocast_cuda_{at::autocast::is_autocast_enabled(at::kCUDA), at::autocast::get_autocast_dtype(at::kCUDA)} {}

void TracingMode::AddInput(const std::string& name, const at::Tensor& fake, const at::Tensor& real) {
  fx::Node* node = module_->graph().Placeholder(name);
  real_inputs_.emplace(node, real);
  if (known_.contains(fake.unsafeGetTensorImpl())) {
    node->meta().val = fake;
  } else {
    Record(node, fake);
  }
}

std::string TracingMode::AddAttr(const std::string& path, const at::Tensor& real, fx::GraphModule::AttrKind kind) {
  const auto [it, is_new] = attr_paths_.try_emplace(real.unsafeGetTensorImpl(), path);
  if (!is_new) return it->second;
  kept_.push_back(real);
  if (real.has_storage()) attr_storages_[StorageOf(real)].push_back(real);
  const absl::Status status = module_->AddAttr(path, real, kind);
  TORCH_CHECK(status.ok(), status.ToString());
  return path;
}

fx::Node* TracingMode::MarkRegion(fx::Node* node) {
  const int64_t region = CheckpointRegion::Current();
  if (region < 0) return node;
  if (region != region_) ++num_regions_;
  region_ = region;
  node->meta().custom[fx::kCheckpointRegion] = IValue(num_regions_ - 1);
  return node;
}

fx::Node* TracingMode::OpaqueCall(const char* target, std::vector<Argument> args, absl::string_view name) {
  return MarkRegion(module_->graph().CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{target}, std::move(args), {}, name));
}

void TracingMode::ExitAutocast() {
  const AutocastRegion region = autocast_regions_.back();
  OpaqueCall("torch.amp.autocast_mode._exit_autocast", {region.handle}, "_exit_autocast");
  AutocastOf(region.device) = {region.was_enabled, region.was_dtype};
  autocast_regions_.pop_back();
}

// Casts of weights are cached until the outermost region ends, so regions must nest as forward's do.
void TracingMode::SyncAutocast() {
  const int nesting = at::autocast::increment_nesting() - 1;
  at::autocast::decrement_nesting();
  while (autocast_regions_.size() > autocast_depth_at_inference_ && autocast_regions_.back().nesting > nesting) ExitAutocast();
  for (const c10::DeviceType device : {at::kCPU, at::kCUDA}) {
    const AutocastState now{at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
    AutocastState& state = AutocastOf(device);
    // A region that ended while another one began, or code that sets autocast without counting.
    while (!(state == now) && autocast_regions_.size() > autocast_depth_at_inference_ && autocast_regions_.back().nesting == nesting &&
           autocast_regions_.back().device == device) {
      ExitAutocast();
    }
    if (state == now) continue;
    fx::Node* handle = OpaqueCall(
        "torch.amp.autocast_mode._enter_autocast",
        {IValue(c10::DeviceTypeName(device, /*lower_case=*/true)), fx::DtypeConstant(now.dtype), IValue(now.enabled), Argument()},
        "_enter_autocast");
    autocast_regions_.push_back({device, handle, nesting, state.enabled, state.dtype});
    state = now;
  }
}

void TracingMode::SyncModes(const std::string& op) {
  const bool inference = c10::InferenceMode::is_enabled();
  if (inference != (inference_ != nullptr)) {
    if (inference) {
      // Made outside of the region, so not inference tensors.
      const c10::InferenceMode outside(false);
      const at::AutoGradMode grad(grad_);
      while (const std::optional<at::Tensor> tensor = constants_.Any()) Materialize(*tensor);
      inference_ = OpaqueCall("torch.autograd.grad_mode._enter_inference_mode", {IValue(true)}, "_enter_inference_mode");
      grad_before_inference_ = grad_;
      grad_ = false;
      autocast_depth_at_inference_ = autocast_regions_.size();
    } else {
      while (autocast_regions_.size() > autocast_depth_at_inference_) ExitAutocast();
      OpaqueCall("torch.autograd.grad_mode._exit_inference_mode", {inference_}, "_exit_inference_mode");
      inference_ = nullptr;
      grad_ = grad_before_inference_;
      autocast_depth_at_inference_ = 0;
    }
  }
  if (const bool grad = c10::GradMode::is_enabled(); grad != grad_) {
    TORCH_CHECK(inference_ == nullptr, "tracing ", op,
                ": forward changes the grad mode within inference mode, which the graph can't express");
    OpaqueCall("torch._C._set_grad_enabled", {IValue(grad)}, "_set_grad_enabled");
    grad_ = grad;
  }
  SyncAutocast();
  // A cached cast of a fake weight would outlive the trace.
  at::autocast::set_autocast_cache_enabled(false);
}

void TracingMode::Handle(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK(torch::autograd::get_current_graph_task_id() == -1, "tracing ", c10::toString(op.operator_name()),
              ": forward runs a backward of its own, which the graph can't express");
  const auto args = torch::jit::last(*stack, op.schema().arguments().size());
  const bool autocast = at::autocast::is_autocast_enabled(at::kCPU) || at::autocast::is_autocast_enabled(at::kCUDA);
  if (!c10::InferenceMode::is_enabled()) {
    if (ForwardConstants::IsFactory(op, args) || (!autocast && constants_.CanRun(op, args))) {
      constants_.Run(op, stack);
      return;
    }
  }
  if (op.schema().name() == "aten::equal") {
    AnswerEqual(op, stack);
    return;
  }
  Emit(op, stack);
}

bool TracingMode::Untouched(const fx::Node* node) const {
  if (!node->has_meta() || !node->meta().val.isTensor()) return false;
  const auto known = known_.find(node->meta().val.toTensor().unsafeGetTensorImpl());
  return known != known_.end() && known->second.node == node && known->second.version == 0u;
}

bool TracingMode::SameExpression(const fx::Node* a, const fx::Node* b, int depth) const {
  const auto source = [&](const fx::Node* node) {
    while (node->is_operator() && KeepsValues(node->operator_handle()) && Untouched(node) && node->args()[0].is_node())
      node = node->args()[0].node();
    return node;
  };
  a = source(a);
  b = source(b);
  if (a == b) return Untouched(a);
  if (depth == 0 || !a->is_operator() || !b->is_operator() || !(a->operator_handle() == b->operator_handle())) return false;
  if (!Untouched(a) || !Untouched(b) || a->operator_handle().hasTag(at::Tag::nondeterministic_seeded) ||
      a->operator_handle().schema().is_mutable())
    return false;
  const auto same = [&](const auto& self, const Argument& left, const Argument& right) -> bool {
    if (left.is_node() || right.is_node()) return left.is_node() && right.is_node() && SameExpression(left.node(), right.node(), depth - 1);
    if (left.kind() != right.kind()) return false;
    if (left.kind() == Argument::Kind::kConstant) return fx::Identical(left.constant(), right.constant());
    return std::equal(left.elements().begin(), left.elements().end(), right.elements().begin(), right.elements().end(),
                      [&](const Argument& x, const Argument& y) { return self(self, x, y); });
  };
  if (a->args().size() != b->args().size() || a->kwargs().size() != b->kwargs().size()) return false;
  for (std::size_t i = 0; i < a->args().size(); ++i) {
    if (!same(same, a->args()[i], b->args()[i])) return false;
  }
  for (std::size_t i = 0; i < a->kwargs().size(); ++i) {
    if (absl::string_view(a->kwargs()[i].first) != absl::string_view(b->kwargs()[i].first) ||
        !same(same, a->kwargs()[i].second, b->kwargs()[i].second))
      return false;
  }
  return true;
}

at::Tensor TracingMode::RealOf(const fx::Node* node) const {
  if (!Untouched(node)) return at::Tensor();
  if (const auto input = real_inputs_.find(node); input != real_inputs_.end()) return input->second;
  if (node->op() != fx::Op::kGetAttr) return at::Tensor();
  const fx::GraphModule::Attr* attr = module_->FindAttr(node->path());
  return attr != nullptr && attr->value.isTensor() ? attr->value.toTensor() : at::Tensor();
}

// MultiheadAttention asks whether query, key and value are the same, to choose its projections. The same tensor is, and so is what the same
// operators make of the same values. That two others are not is taken for granted, and asserted when the graph runs - unless they are equal
// right now.
void TracingMode::AnswerEqual(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = c10::toString(op.operator_name());
  const at::Tensor given_a = (*stack)[stack->size() - 2].toTensor(), given_b = (*stack)[stack->size() - 1].toTensor();
  at::Tensor a, b;
  const fx::Node* node_a = TensorNode(given_a, name, &a).node();
  const fx::Node* node_b = TensorNode(given_b, name, &b).node();
  torch::jit::drop(*stack, 2);
  const bool same = a.is_same(b) || (a.sizes() == b.sizes() && SameExpression(node_a, node_b, /*depth=*/32));
  if (!same && a.sizes() == b.sizes()) {
    const at::Tensor real_a = RealOf(node_a), real_b = RealOf(node_b);
    const bool look = real_a.defined() && real_b.defined() && !IsFake(real_a) && !IsFake(real_b) && real_a.device() == real_b.device() &&
                      !real_a.is_meta();
    const auto equal_now = [&] {
      const DisableModesGuard above(Level::kPreAutograd), below(Level::kPostAutograd);
      return at::equal(real_a, real_b);
    };
    TORCH_CHECK(!look || !equal_now(), "tracing ", name, ": %", std::string(node_a->name()), " and %", std::string(node_b->name()),
                " are two tensors that hold the same values now; a graph could hold for one answer alone. Pass the same tensor for both");
  }
  if (!same && a.sizes() == b.sizes()) {
    const at::Tensor differ = EmitTensor(Find("aten::ne", "Tensor"), {a, b});
    const at::Tensor any = EmitTensor(Find("aten::any", ""), {differ});
    torch::jit::Stack assertion{any,
                                "torch::equal(a, b) was false when this graph was captured, and is true now: two inputs of the same shape "
                                "hold the same values. Pass the same tensor for both, or run the module eagerly"};
    Emit(Find("aten::_assert_async", "msg"), &assertion);
  }
  torch::jit::push(*stack, same);
}

at::Tensor TracingMode::EmitTensor(const c10::OperatorHandle& op, std::vector<IValue> args) {
  torch::jit::Stack stack(std::move(args));
  for (std::size_t i = stack.size(); i < op.schema().arguments().size(); ++i) stack.push_back(*op.schema().arguments()[i].default_value());
  Emit(op, &stack);
  return stack.back().toTensor();
}

void TracingMode::Emit(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string name = c10::toString(op.operator_name());
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t num_args = schema.arguments().size();
  for (const IValue& argument : torch::jit::last(*stack, num_args)) AttachFunctions(argument, name);
  SyncModes(name);
  std::vector<Argument> args;
  fx::Kwargs kwargs;
  // Positional arguments that follow the last one without its default value are left out, as torch.fx's printed graphs do.
  std::size_t last_kept = 0;
  for (std::size_t i = 0; i < num_args; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    IValue& value = (*stack)[stack->size() - num_args + i];
    WriteOut(argument, &value);
    if (!argument.kwarg_only() && !IsDefault(argument, value)) last_kept = i + 1;
  }
  std::vector<IValue> fakes;
  for (std::size_t i = 0; i < num_args; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    IValue& value = (*stack)[stack->size() - num_args + i];
    if (argument.kwarg_only()) {
      if (!IsDefault(argument, value)) kwargs.emplace_back(argument.name(), Convert(value, name));
    } else if (i < last_kept) {
      args.push_back(Convert(value, name));
    }
    fakes.push_back(value);
  }

  try {
    op.callBoxed(stack);
  } catch (const c10::Error& error) {
    TORCH_CHECK(false, "tracing ", name, ": ", error.what_without_backtrace());
  }

  const std::size_t num_returns = schema.returns().size();
  const auto results = torch::jit::last(*stack, num_returns);
  bool any_tensor = num_returns == 0;
  for (const IValue& result : results) any_tensor |= result.isTensor() || result.isTensorList();
  // Questions about metadata (is_same_size, result_type, ...) are answered by the fakes and leave nothing to run.
  if (!any_tensor) return;
  fx::Node* node = MarkRegion(module_->graph().CallFunction(op, std::move(args), std::move(kwargs), PacketName(op)));
  RefuseWriteToConstants(*node, name);
  for (const IValue& fake : fakes) {
    if (fake.isTensor()) {
      if (fake.toTensor().defined()) Refresh(fake.toTensor());
    } else if (fake.isTensorList()) {
      for (const at::Tensor& tensor : fake.toTensorVector()) Refresh(tensor);
    }
  }
  if (num_returns == 0) return;
  if (num_returns == 1) {
    RecordResult(node, results[0]);
    return;
  }
  std::vector<IValue> elements(results.begin(), results.end());
  node->meta().val = c10::ivalue::Tuple::create(elements);
  RecordElements(node, elements);
}

void TracingMode::RefuseWriteToConstants(const fx::Node& node, const std::string& op) {
  if (constant_storages_.empty()) return;
  effects_.ForEachWritten(node, [&](fx::Node* input) {
    if (!input->has_meta() || !input->meta().val.isTensor()) return;
    const auto found = constant_storages_.find(StorageOf(input->meta().val.toTensor()));
    TORCH_CHECK(found == constant_storages_.end(), "tracing ", op, ": forward writes to a tensor of shape ",
                input->meta().val.toTensor().sizes(), " (", found->second,
                ") that is made outside of it and is no parameter or buffer of the module; register it as a buffer");
  });
}

void TracingMode::Remember(fx::Node* node, const at::Tensor& fake) {
  known_.insert_or_assign(fake.unsafeGetTensorImpl(),
                          Known{node, fake, fake.requires_grad(), VersionOf(fake), GradFnNow(fake), GradOf(fake)});
  auto& peers = by_storage_[StorageOf(fake)];
  if (std::find(peers.rbegin(), peers.rend(), fake.unsafeGetTensorImpl()) == peers.rend()) peers.push_back(fake.unsafeGetTensorImpl());
}

void TracingMode::Record(fx::Node* node, const at::Tensor& fake) {
  node->meta().val = fake;
  if (node->op() != fx::Op::kCallFunction) kept_fakes_.push_back(fake);
  Remember(node, fake);
}

void TracingMode::Refresh(const at::Tensor& fake) {
  const auto it = known_.find(fake.unsafeGetTensorImpl());
  if (it == known_.end()) return;
  const auto update = [](Known& known) {
    known.requires_grad = known.fake.requires_grad();
    known.version = VersionOf(known.fake);
    known.grad_fn = GradFnNow(known.fake);
  };
  const bool written = it->second.version != VersionOf(fake);
  update(it->second);
  if (!written) return;
  const c10::StorageImpl* storage = StorageOf(fake);
  for (const c10::TensorImpl* peer : by_storage_[storage]) update(known_.at(peer));
  for (const auto& [real_storage, pair] : real_storages_) {
    if (StorageOf(pair.second) == storage) constants_.Spoil(pair.first);
  }
}

void TracingMode::RecordResult(fx::Node* node, const IValue& result) {
  if (result.isTensor()) {
    if (result.toTensor().defined()) Record(node, result.toTensor());
  } else if (result.isTensorList()) {
    node->meta().val = result;
    std::vector<IValue> elements;
    for (const at::Tensor& tensor : result.toTensorVector()) elements.emplace_back(tensor);
    RecordElements(node, elements);
  }
}

void TracingMode::RecordElements(fx::Node* node, const std::vector<IValue>& elements) {
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (!elements[i].isTensor() && !elements[i].isTensorList()) continue;
    fx::Node* item = OpaqueCall("operator.getitem", {node, IValue(static_cast<int64_t>(i))}, "getitem");
    RecordResult(item, elements[i]);
  }
}

Argument TracingMode::Convert(IValue& value, const std::string& op) {
  if (value.isTensor()) {
    if (!value.toTensor().defined()) return Argument();
    // A number in the place of a tensor stays one.
    if (value.toTensor().unsafeGetTensorImpl()->is_wrapped_number() && !IsFake(value.toTensor()) && value.toTensor().dim() == 0) {
      const DisableModesGuard real(Level::kPostAutograd);
      return Argument(IValue(value.toTensor().item()));
    }
    at::Tensor fake;
    Argument argument = TensorNode(value.toTensor(), op, &fake);
    value = fake;
    return argument;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> fakes;
    std::vector<Argument> elements;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      at::Tensor fake;
      elements.push_back(TensorNode(tensor, op, &fake));
      fakes.push_back(fake);
    }
    value = fakes;
    return Argument::List(std::move(elements));
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> fakes;
    std::vector<Argument> elements;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor.has_value() && tensor->defined()) {
        at::Tensor fake;
        elements.push_back(TensorNode(*tensor, op, &fake));
        fakes.push_back(fake);
      } else {
        elements.emplace_back();
        fakes.push_back(std::nullopt);
      }
    }
    value = fakes;
    return Argument::List(std::move(elements));
  }
  TORCH_CHECK(!value.isGenerator(), "tracing ", op, ": an explicit random generator can't be captured in a graph");
  TORCH_CHECK(!value.isStorage(), "tracing ", op, ": a storage as an argument can't be captured in a graph");
  return Argument(value);
}

void TracingMode::Check(const Known& known, const std::string& op) const {
  const at::Tensor& fake = known.fake;
  const std::string& node = std::string(known.node->name());
  const void* grad_fn = GradFnNow(fake);
  if (known.requires_grad != fake.requires_grad() || known.grad_fn != grad_fn) {
    const std::string function = CustomFunctionOf(fake);
    TORCH_CHECK(function.empty(), "tracing ", op, ": %", node, " is an output of the custom autograd::Function ", function,
                ", whose backward the graph can't express");
    TORCH_CHECK(known.requires_grad == fake.requires_grad(), "tracing ", op, ": requires_grad of %", node,
                " was changed outside of the graph");
    // The history of a view is made anew after its base was written.
    TORCH_CHECK(fake.is_view(), "tracing ", op, ": the autograd history of %", node, " was changed outside of the graph",
                fake.grad_fn() == nullptr ? std::string() : absl::StrCat(" (", fake.grad_fn()->name(), ")"));
  }
  TORCH_CHECK(known.version == VersionOf(fake), "tracing ", op, ": %", node,
              " was written to by something that the tracer doesn't see: another thread, or a kernel called directly");
}

Argument TracingMode::TensorNode(const at::Tensor& tensor, const std::string& op, at::Tensor* fake_out) {
  TORCH_CHECK(tensor.layout() == at::kStrided, "tracing ", op, ": takes a tensor of layout ", tensor.layout(), ", which can't be captured");
  const at::Tensor fake = IsFake(tensor) ? tensor : FakeOfReal(tensor, op);
  if (fake_out != nullptr) *fake_out = fake;
  TORCH_CHECK(ModeOf(fake) == fakes_.get(), "tracing ", op, ": takes a tensor of shape ", fake.sizes(),
              " that an earlier capture made and that somebody has kept since: forward stores what it computes outside of the graph");
  if (const auto it = known_.find(fake.unsafeGetTensorImpl()); it != known_.end()) {
    Check(it->second, op);
    return it->second.node;
  }
  // torch::zeros, .data() and the like hand out a new tensor object over a storage we know.
  if (const auto it = by_storage_.find(StorageOf(fake)); it != by_storage_.end()) {
    for (auto impl = it->second.rbegin(); impl != it->second.rend(); ++impl) {
      const Known known = known_.at(*impl);
      if (!SameLayout(known.fake, fake)) continue;
      if (known.requires_grad == fake.requires_grad()) {
        const std::string function = CustomFunctionOf(fake);
        TORCH_CHECK(function.empty(), "tracing ", op, ": a view of %", std::string(known.node->name()),
                    " is an output of the custom autograd::Function ", function, ", whose backward the graph can't express");
        Remember(known.node, fake);
        return known.node;
      }
      const std::string function = CustomFunctionOf(fake);
      TORCH_CHECK(function.empty(), "tracing ", op, ": takes an output of the custom autograd::Function ", function,
                  ", whose backward the graph can't express");
      TORCH_CHECK(known.requires_grad, "tracing ", op, ": a tensor made in forward was given requires_grad outside of the graph");
      fx::Node* detached = module_->graph().CallFunction(Find("aten::detach", ""), {known.node}, {}, "detach");
      Record(detached, fake);
      return detached;
    }
  }
  TORCH_CHECK(false, "tracing ", op, ": takes a tensor of shape ", fake.sizes(),
              " that was made in forward by something the tracer cannot see (not an ATen operator, or one called on another thread)");
}

at::Tensor TracingMode::FakeOfReal(const at::Tensor& real, const std::string& op) {
  c10::TensorImpl* impl = real.unsafeGetTensorImpl();
  if (const auto it = real_fakes_.find(impl); it != real_fakes_.end()) {
    TORCH_CHECK(it->second.requires_grad() == real.requires_grad() || !real.requires_grad(), "tracing ", op,
                ": a tensor made in forward was given requires_grad outside of the graph");
    return it->second;
  }
  if (constants_.Has(real)) {
    TORCH_CHECK(!real.requires_grad(), "tracing ", op, ": a tensor of shape ", real.sizes(),
                " made in forward requires grad, and its gradient would be lost; register it as a parameter");
    Materialize(real);
  }
  if (const auto it = real_storages_.find(StorageOf(real)); it != real_storages_.end()) {
    const at::Tensor fake = ViewOf(it->second.first, it->second.second, real);
    kept_.push_back(real);
    return real_fakes_[impl] = fake;
  }
  if (const auto it = attr_paths_.find(impl); it != attr_paths_.end()) return AttrFake(it->second, real);
  // .data() of a parameter, or a view of one that was made outside.
  if (const auto it = attr_storages_.find(StorageOf(real)); it != attr_storages_.end() && real.has_storage()) {
    TORCH_CHECK(!real.requires_grad(), "tracing ", op, ": forward uses a view of ",
                attr_paths_.at(it->second.front().unsafeGetTensorImpl()),
                " that was made outside of it and requires grad; make the view in forward");
    const at::Tensor* base = &it->second.front();
    for (const at::Tensor& candidate : it->second) {
      if (SameLayout(candidate, real)) base = &candidate;
    }
    const at::Tensor base_fake = AttrFake(attr_paths_.at(base->unsafeGetTensorImpl()), *base);
    const at::Tensor fake = ViewOf(*base, EmitTensor(Find("aten::detach", ""), {base_fake}), real);
    kept_.push_back(real);
    return real_fakes_[impl] = fake;
  }
  for (const auto& [path, attr] : module_->attrs()) {
    TORCH_CHECK(!attr.value.isTensor() || !attr.value.toTensor().is_leaf() || !attr.value.toTensor().grad().is_same(real), "tracing ", op,
                ": forward reads the gradient of ", path, ", which the graph can't express");
  }
  TORCH_CHECK(!real.requires_grad(), "forward uses a tensor of shape ", real.sizes(),
              " that requires grad and is neither a parameter nor an input of the module; register it as a parameter");
  // Memory that somebody else owns (from_blob) may be gone when the graph runs.
  const bool foreign = real.has_storage() && real.storage().data_ptr().get_context() == nullptr;
  const at::Tensor fake = AttrFake(AddConstant(real, foreign), real);
  if (foreign) {
    kept_.push_back(real);
    real_fakes_[impl] = fake;
  }
  return fake;
}

std::string TracingMode::AddConstant(const at::Tensor& real, bool own) {
  std::string path;
  do {
    path = absl::StrCat("_tensor_constant", num_constants_++);
  } while (module_->FindAttr(path) != nullptr);
  at::Tensor value = real;
  if (own) {
    const DisableModesGuard below(Level::kPostAutograd);
    value = at::clone(real);
    own_constants_.push_back(path);
  }
  return AddAttr(path, value, fx::GraphModule::AttrKind::kConstant);
}

at::Tensor TracingMode::AttrFake(const std::string& path, const at::Tensor& real) {
  const fx::GraphModule::Attr& attr = *module_->FindAttr(path);
  const at::Tensor fake = fakes_->FromReal(attr.value.toTensor());
  if (known_.contains(fake.unsafeGetTensorImpl())) return fake;
  if (attr.kind == fx::GraphModule::AttrKind::kConstant) constant_storages_.emplace(StorageOf(fake), path);
  TORCH_CHECK(attr.kind != fx::GraphModule::AttrKind::kParameter || fake.requires_grad() == real.requires_grad(),
              "forward changes requires_grad of \"", path, "\"");
  fx::Node* node = module_->graph().GetAttr(path);
  node->meta().is_parameter = attr.kind == fx::GraphModule::AttrKind::kParameter;
  node->meta().is_buffer = attr.kind == fx::GraphModule::AttrKind::kBuffer;
  Record(node, fake);
  return fake;
}

at::Tensor TracingMode::ViewOf(const at::Tensor& base, const at::Tensor& base_fake, const at::Tensor& view) {
  if (SameLayout(base, view)) return base_fake;
  TORCH_CHECK(base.scalar_type() == view.scalar_type(), "a view of another dtype (", view.scalar_type(), " of ", base.scalar_type(),
              ") that was made outside of the graph");
  return EmitTensor(Find("aten::as_strided", ""), {base_fake, view.sizes(), view.strides(), view.storage_offset()});
}

void TracingMode::Materialize(const at::Tensor& real) {
  ForwardConstants::Taken taken = constants_.Take(real);
  const auto map = [&](const at::Tensor& made, const at::Tensor& fake) {
    kept_.push_back(made);
    real_fakes_[made.unsafeGetTensorImpl()] = fake;
    real_storages_.try_emplace(StorageOf(made), made, fake);
  };
  for (const ForwardConstants::Constant& constant : taken.constants) {
    std::string path;
    do {
      path = absl::StrCat("_tensor_constant", num_constants_++);
    } while (module_->FindAttr(path) != nullptr);
    own_constants_.push_back(path);
    AddAttr(path, constant.value, fx::GraphModule::AttrKind::kConstant);
    // As in torch.export's graphs: whoever writes to the tensor writes to a copy.
    map(constant.made, EmitTensor(Find("aten::lift_fresh_copy", ""), {AttrFake(path, constant.value)}));
  }
  for (const ForwardConstants::Call& call : taken.calls) {
    torch::jit::Stack stack(call.args.begin(), call.args.end());
    Emit(call.op, &stack);
    for (std::size_t i = 0; i < call.results.size(); ++i) {
      if (call.results[i].isTensor()) {
        map(call.results[i].toTensor(), stack[i].toTensor());
      } else if (call.results[i].isTensorList()) {
        const std::vector<at::Tensor> made = call.results[i].toTensorVector(), fakes = stack[i].toTensorVector();
        for (std::size_t k = 0; k < made.size(); ++k) map(made[k], fakes[k]);
      }
    }
  }
}

Argument TracingMode::OutputArgument(const IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() ? TensorNode(value.toTensor(), "output", nullptr) : Argument();
  if (value.isTuple()) {
    std::vector<Argument> elements;
    for (const IValue& element : value.toTupleRef().elements()) elements.push_back(OutputArgument(element));
    return Argument::Tuple(std::move(elements));
  }
  if (value.isList()) {
    std::vector<Argument> elements;
    for (const IValue& element : ElementsOf(value)) elements.push_back(OutputArgument(element));
    return Argument::List(std::move(elements));
  }
  if (value.isGenericDict()) {
    std::vector<Argument> entries;
    for (const auto& entry : value.toGenericDict()) {
      entries.emplace_back(entry.key());
      entries.push_back(OutputArgument(entry.value()));
    }
    return Argument::Dict(std::move(entries));
  }
  return Argument(value);
}

void TracingMode::Finish(const IValue& result) {
  AttachFunctions(result, "output");
  SyncModes("output");
  Argument output = OutputArgument(result);
  while (!autocast_regions_.empty()) ExitAutocast();
  if (grad_ != initial_grad_) OpaqueCall("torch._C._set_grad_enabled", {IValue(initial_grad_)}, "_set_grad_enabled");
  module_->graph().Output(std::move(output));
}

void TracingMode::CheckEnd() {
  TORCH_CHECK(!constants_.ChangedByHost(), "the host changed a tensor made in forward after operators had used it");
  for (const auto& [impl, known] : known_) {
    const std::string node(known.node->name());
    TORCH_CHECK(torch::autograd::impl::get_autograd_meta(known.fake) == nullptr || torch::autograd::impl::hooks(known.fake).empty(),
                "forward registers a hook on %", node, ", which the graph can't express");
    TORCH_CHECK(known.version == VersionOf(known.fake), "%", node,
                " was written to by something that the tracer doesn't see: another thread, or a kernel called directly");
    TORCH_CHECK(!known.fake.is_leaf() || known.grad == GradOf(known.fake), "forward runs a backward of its own, which gave %", node,
                " a gradient; the graph can't express that");
  }
}

std::vector<std::string> TracingMode::Release() {
  absl::flat_hash_map<const c10::TensorImpl*, at::Tensor> copies;
  const auto copy = [&](const at::Tensor& fake) -> IValue {
    at::Tensor& twin = copies[fake.unsafeGetTensorImpl()];
    if (!twin.defined()) {
      twin = WithoutHistory(fake);
      if (fake.requires_grad() && !fake.is_inference()) twin.set_requires_grad(true);
    }
    return twin;
  };
  for (fx::Node* node : module_->graph().nodes()) {
    if (node->has_meta()) node->meta().val = MapTensors(node->meta().val, copy);
  }
  std::vector<std::pair<std::string, c10::weak_intrusive_ptr<c10::TensorImpl>>> made;
  for (const auto& [impl, known] : known_) {
    // The fakes of inputs and attributes are the mode's to keep, but not what was written to them.
    const auto* address = impl;
    const bool kept =
        std::any_of(kept_fakes_.begin(), kept_fakes_.end(), [&](const at::Tensor& fake) { return fake.unsafeGetTensorImpl() == address; });
    if (kept) continue;
    made.emplace_back(known.node->name(), known.fake.getIntrusivePtr());
  }
  for (const at::Tensor& fake : kept_fakes_) {
    if (fake.grad_fn() != nullptr) fake.unsafeGetTensorImpl()->set_autograd_meta(nullptr);
  }
  kept_fakes_.clear();
  real_inputs_.clear();
  known_.clear();
  real_fakes_.clear();
  real_storages_.clear();
  std::vector<std::string> escaped;
  for (const auto& [name, weak] : made) {
    if (weak.use_count() > 0) escaped.push_back(name);
  }
  std::sort(escaped.begin(), escaped.end());
  return escaped;
}

}  // namespace ddpopt
