#include "ddpopt/aot/execution_plan.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "ATen/EmptyTensor.h"
#include "ATen/core/function_schema.h"
#include "ATen/core/jit_type.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "c10/util/strides.h"
#include "ddpopt/aot/buffer_plan.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/constants.h"
#include "fx_graph/graph.h"
#include "interpreter/call_operator.h"

namespace ddpopt {
namespace {

using c10::IValue;
using Fate = ExecutorOptions::Fate;
using Memory = ExecutionPlan::Memory;
using Range = ExecutionPlan::Range;
using Source = ExecutionPlan::Source;
using Step = ExecutionPlan::Step;
using Value = ExecutionPlan::Value;

// What is larger gets memory of its own while it lives: a workspace is kept, and such values often live for a moment of the run only.
constexpr int64_t kLargestInWorkspace = int64_t{16} << 20;
// What is allocated together: at least so much at a time (which is about what a bucket of DDP holds), or so many parts of the whole.
constexpr int64_t kLeastTogether = int64_t{32} << 20;
constexpr int64_t kPartsTogether = 24, kPartsSaved = 12;
// Results as small as this are allocated together too, until they are so much: what is held longer than it lives costs less than
// allocations.
constexpr int64_t kSmallResult = int64_t{1} << 20, kSmallTogether = int64_t{4} << 20;

constexpr int kNone = -1;
constexpr int kBeforeSteps = -1;

// The bytes from a tensor's first element to its last. Strides aren't negative.
int64_t Extent(const at::Tensor& fake) {
  if (fake.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < fake.dim(); ++d) last += (fake.size(d) - 1) * fake.stride(d);
  return (last + 1) * static_cast<int64_t>(fake.element_size());
}

// Whether the operator only gives views of its operands. Some don't say so, since their views are never written to.
bool GivesViews(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  if (name == "aten::_unsafe_view" || name == "aten::unsafe_split" || name == "aten::unsafe_split_with_sizes") return true;
  return std::any_of(schema.returns().begin(), schema.returns().end(),
                     [](const c10::Argument& result) { return result.alias_info() != nullptr && !result.alias_info()->isWrite(); });
}

bool SameLayout(const Value& a, const Value& b) { return a.dtype == b.dtype && a.sizes == b.sizes && a.strides == b.strides; }

class Planner {
 public:
  Planner(const fx::GraphModule& module, const ExecutorOptions& options)
      : module_(module), options_(options), plan_(std::make_shared<ExecutionPlan>()), elements_(module.graph()) {}

  absl::StatusOr<std::shared_ptr<const ExecutionPlan>> Run() {
    for (fx::Node* node : module_.graph().nodes()) {
      if (const absl::Status status = Add(node); !status.ok()) return Annotate(status, absl::StrCat("%", node->name()));
    }
    FindLifetimes();
    ReuseOperands();
    ChooseMemory();
    PlaceInWorkspace();
    Schedule();
    return std::move(plan_);
  }

 private:
  struct Made {
    std::vector<int> values;  // -1 for what is no defined tensor
    bool several = false;     // a tuple or a list
  };

  absl::Status Add(fx::Node* node) {
    switch (node->op()) {
      case fx::Op::kPlaceholder:
        return AddPlaceholder(node);
      case fx::Op::kGetAttr:
        return AddAttr(node);
      case fx::Op::kOutput:
        return AddOutput(node);
      case fx::Op::kCallFunction:
        if (node->is_operator()) return AddOperator(node);
        if (const auto* opaque = std::get_if<fx::OpaqueTarget>(&node->target()); opaque != nullptr && opaque->text == "operator.getitem") {
          return AddGetItem(node);
        }
        return absl::UnimplementedError("calls no operator");
      default:
        return absl::UnimplementedError("calls no operator");
    }
  }

  absl::Status CheckFake(const at::Tensor& fake) const {
    if (!fake.device().is_cpu()) return absl::UnimplementedError("not on the CPU");
    if (fake.layout() != at::kStrided || !fake.has_storage()) return absl::UnimplementedError("not strided");
    if (fake.is_conj() || fake.is_neg()) return absl::UnimplementedError("lazily conjugated or negated");
    if (c10::isQIntType(fake.scalar_type())) return absl::UnimplementedError("quantised");
    return absl::OkStatus();
  }

  int NewValue(const at::Tensor& fake, int memory, int64_t byte_offset) {
    Value value;
    value.memory = memory;
    value.sizes = fake.sizes().vec();
    value.strides = fake.strides().vec();
    value.dtype = fake.scalar_type();
    value.byte_offset = byte_offset;
    plan_->values.push_back(std::move(value));
    fakes_.push_back(fake);
    return static_cast<int>(plan_->values.size()) - 1;
  }

  // A value in memory of its own, that is there from the step on.
  int NewMemory(const at::Tensor& fake, Memory::Kind kind, int first) {
    Memory memory;
    memory.kind = kind;
    memory.value = NewValue(fake, static_cast<int>(plan_->memories.size()), 0);
    memory.bytes = kind == Memory::Kind::kOwn ? static_cast<int64_t>(fake.storage().nbytes()) : Extent(fake);
    memory.first = memory.last = first;
    plan_->memories.push_back(memory);
    allocatable_.push_back(false);
    return memory.value;
  }

  // A value in the memory of `base`; a known one if it is the same.
  int NewView(const at::Tensor& fake, int base) {
    const auto begin = [](const at::Tensor& tensor) { return tensor.storage_offset() * static_cast<int64_t>(tensor.element_size()); };
    const int64_t byte_offset = plan_->values[base].byte_offset + begin(fake) - begin(fakes_[base]);
    // A view of a view may be what that was a view of.
    for (const int known : {base, MemoryOf(base).value}) {
      const Value& other = plan_->values[known];
      if (byte_offset == other.byte_offset && fake.scalar_type() == other.dtype && fake.sizes() == at::IntArrayRef(other.sizes) &&
          fake.strides() == at::IntArrayRef(other.strides)) {
        return known;
      }
    }
    return NewValue(fake, plan_->values[base].memory, byte_offset);
  }

  absl::Status AddPlaceholder(fx::Node* node) {
    if (!node->has_meta() || !node->meta().val.isTensor() || !node->meta().val.toTensor().defined()) {
      return absl::UnimplementedError("an input that is no tensor");
    }
    const at::Tensor& fake = node->meta().val.toTensor();
    DDPOPT_RETURN_IF_ERROR(CheckFake(fake));
    const int value = NewMemory(fake, Memory::Kind::kInput, kBeforeSteps);
    plan_->inputs.push_back(value);
    elements_[node].values = {value};
    return absl::OkStatus();
  }

  absl::Status AddAttr(fx::Node* node) {
    const fx::GraphModule::Attr* attr = module_.FindAttr(node->path());
    if (attr == nullptr || !attr->value.isTensor() || !attr->value.toTensor().defined()) {
      return absl::UnimplementedError("an attribute that is no tensor");
    }
    const at::Tensor& tensor = attr->value.toTensor();
    DDPOPT_RETURN_IF_ERROR(CheckFake(tensor));
    const int value = NewMemory(tensor, Memory::Kind::kInput, kBeforeSteps);
    plan_->values[value].constant = tensor;
    elements_[node].values = {value};
    return absl::OkStatus();
  }

  absl::Status AddGetItem(fx::Node* node) {
    if (node->args().size() != 2 || !node->args()[0].is_node() || !node->args()[1].constant().isInt()) {
      return absl::UnimplementedError("takes an element in an unusual way");
    }
    const Made& made = elements_.at(node->args()[0].node());
    int64_t index = node->args()[1].constant().toInt();
    if (index < 0) index += static_cast<int64_t>(made.values.size());
    if (!made.several || index < 0 || index >= static_cast<int64_t>(made.values.size())) {
      return absl::UnimplementedError("takes an element that isn't there");
    }
    elements_[node].values = {made.values[index]};
    return absl::OkStatus();
  }

  absl::Status AddOutput(fx::Node* node) {
    if (node->args().size() != 1 || node->args()[0].kind() != fx::Argument::Kind::kTuple) {
      return absl::UnimplementedError("the output is no tuple");
    }
    std::vector<int> returned;
    for (const fx::Argument& element : node->args()[0].elements()) {
      int value = kNone;
      if (element.is_node()) {
        const Made& made = elements_.at(element.node());
        if (made.several || made.values.empty()) return absl::UnimplementedError("an output that is no tensor");
        value = made.values[0];
      } else if (element.kind() != fx::Argument::Kind::kNone) {
        return absl::UnimplementedError("an output that is no tensor");
      }
      const std::size_t index = plan_->outputs.size();
      if (value != kNone && index < options_.fates.size() && options_.fates[index] == Fate::kTogether) {
        const bool taken = std::find(returned.begin(), returned.end(), value) != returned.end();
        if (taken || MemoryOf(value).kind == Memory::Kind::kInput) value = AddCopy(value, node);
        returned.push_back(value);
      }
      plan_->outputs.push_back(value);
    }
    return absl::OkStatus();
  }

  // A copy in memory of its own.
  int AddCopy(int value, fx::Node* node) {
    static const c10::OperatorHandle clone = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
    const at::Tensor fake = fakes_[value];
    const bool dense = fake.is_non_overlapping_and_dense();
    const at::Tensor layout = at::detail::empty_strided_meta(
        fake.sizes(), dense ? fake.strides() : at::IntArrayRef(c10::contiguous_strides(fake.sizes())), fake.scalar_type());
    Step step{Step::Code::kDirect, clone, clone, nullptr, node, {}, {}, {}, {}, {}};
    step.sources = {static_cast<int>(plan_->sources.size()), 2};
    plan_->sources.push_back({Source::Kind::kValue, value});
    AddConstant(IValue());
    step.results = {static_cast<int>(plan_->result_values.size()), 1};
    const int copy = NewMemory(layout, Memory::Kind::kOwn, NumSteps());
    MemoryOf(copy).bytes = Extent(layout);
    allocatable_.back() = true;
    plan_->result_values.push_back(copy);
    step.kernel = FindDirectKernel(clone, {IValue(fake), IValue()}, {layout});
    plan_->steps.push_back(step);
    pointwise_.push_back(false);
    return copy;
  }

  // --- operators

  static IValue Evaluate(const fx::Argument& argument) {
    switch (argument.kind()) {
      case fx::Argument::Kind::kConstant:
        return fx::DispatcherValue(argument.constant());
      case fx::Argument::Kind::kList:
      case fx::Argument::Kind::kTuple: {
        std::vector<IValue> elements;
        for (const fx::Argument& element : argument.elements()) elements.push_back(Evaluate(element));
        return c10::ivalue::Tuple::create(std::move(elements));
      }
      default:
        return IValue();
    }
  }

  static bool HasNodes(const fx::Argument& argument) {
    bool any = false;
    argument.ForEachNode([&](const fx::Node*) { any = true; });
    return any;
  }

  // The argument's tensor; kNone if it is None.
  absl::StatusOr<int> ValueOf(const fx::Argument& argument) const {
    if (argument.kind() == fx::Argument::Kind::kNone) return kNone;
    if (!argument.is_node()) return absl::UnimplementedError("a number in the place of a tensor, beside nodes");
    const Made& made = elements_.at(argument.node());
    if (made.several || made.values.empty()) return absl::UnimplementedError("an operand that is no tensor");
    return made.values[0];
  }

  absl::Status AddSource(const c10::OperatorHandle& op, std::size_t index, const fx::Argument& argument) {
    if (!HasNodes(argument)) {
      AddConstant(ConvertArgument(op, index, Evaluate(argument)));
      return absl::OkStatus();
    }
    c10::TypePtr type = op.schema().arguments()[index].type();
    bool optional = false;
    if (type->kind() == c10::TypeKind::OptionalType) {
      optional = true;
      type = type->containedType(0);
    }
    if (argument.is_node() && type->kind() == c10::TypeKind::TensorType) {
      DDPOPT_ASSIGN_OR_RETURN(const int value, ValueOf(argument));
      if (value == kNone && !optional) return absl::UnimplementedError("an operand that is undefined");
      if (value == kNone) {
        AddConstant(IValue());
      } else {
        plan_->sources.push_back({Source::Kind::kValue, value});
      }
      return absl::OkStatus();
    }
    if (type->kind() != c10::TypeKind::ListType || argument.is_node()) return absl::UnimplementedError("an operand that is no tensor");
    c10::TypePtr element = type->containedType(0);
    const bool optional_elements = element->kind() == c10::TypeKind::OptionalType;
    if (optional_elements) element = element->containedType(0);
    if (element->kind() != c10::TypeKind::TensorType) return absl::UnimplementedError("an operand that is no tensor");
    Source source{optional_elements ? Source::Kind::kOptionalTensors : Source::Kind::kTensors, static_cast<int>(plan_->lists.size()),
                  static_cast<int>(argument.elements().size())};
    for (const fx::Argument& one : argument.elements()) {
      DDPOPT_ASSIGN_OR_RETURN(const int value, ValueOf(one));
      if (value == kNone && !optional_elements) return absl::UnimplementedError("an operand that is undefined");
      plan_->lists.push_back(value);
    }
    plan_->sources.push_back(source);
    return absl::OkStatus();
  }

  void AddConstant(IValue value) {
    plan_->sources.push_back({Source::Kind::kConstant, static_cast<int>(plan_->constants.size())});
    plan_->constants.push_back(std::move(value));
  }

  template <typename Fn>
  void ForEachOperand(const Range& sources, Fn fn) const {
    for (int i = sources.first; i < sources.first + sources.size; ++i) {
      const Source& source = plan_->sources[i];
      if (source.kind == Source::Kind::kValue) fn(source.index);
      if (source.kind == Source::Kind::kTensors || source.kind == Source::Kind::kOptionalTensors) {
        for (int k = source.index; k < source.index + source.size; ++k) {
          if (plan_->lists[k] != kNone) fn(plan_->lists[k]);
        }
      }
    }
  }

  // The operand in whose memory the result lies; kNone for memory of its own.
  int BaseOf(const at::Tensor& result, const Range& sources) const {
    int base = kNone;
    const c10::StorageImpl* memory = result.storage().unsafeGetStorageImpl();
    ForEachOperand(sources, [&](int operand) {
      if (base == kNone && fakes_[operand].storage().unsafeGetStorageImpl() == memory) base = operand;
    });
    return base;
  }

  // The same operator with a tensor in the place of the number, which is what it calls itself; nullopt for others.
  static std::optional<c10::OperatorHandle> TensorForm(const c10::OperatorHandle& op) {
    const std::string &name = op.operator_name().name, &overload = op.operator_name().overload_name;
    if (name != "aten::add" && name != "aten::sub" && name != "aten::mul" && name != "aten::div") return std::nullopt;
    if (overload != "Scalar" && overload != "Scalar_mode") return std::nullopt;
    return c10::Dispatcher::singleton().findSchema({name, overload == "Scalar" ? "Tensor" : "Tensor_mode"});
  }

  // The number beside a tensor of floats is made one of them here, and not in each run. (Of narrower floats, kernels look at all its bits.)
  void NarrowNumber(const Range& sources) {
    const Source &self = plan_->sources[sources.first], &other = plan_->sources[sources.first + 1];
    if (self.kind != Source::Kind::kValue || other.kind != Source::Kind::kConstant || fakes_[self.index].scalar_type() != at::kFloat) return;
    const at::Tensor& number = plan_->constants[other.index].toTensor();
    if (number.is_complex() || number.scalar_type() == at::kFloat) return;
    at::Tensor narrow = number.to(at::kFloat);
    narrow.unsafeGetTensorImpl()->set_wrapped_number(true);
    plan_->constants[other.index] = narrow;
  }

  absl::Status AddOperator(fx::Node* node) {
    const std::optional<c10::OperatorHandle> tensor_form = TensorForm(node->operator_handle());
    const c10::OperatorHandle& op = tensor_form.has_value() ? *tensor_form : node->operator_handle();
    Step step{Step::Code::kCall, op, op, nullptr, node, {}, {}, {}, {}, {}};
    step.sources.first = static_cast<int>(plan_->sources.size());
    std::vector<std::string> keywords;
    for (const auto& keyword : node->kwargs()) keywords.emplace_back(keyword.first);
    const std::vector<int> bound = BindArguments(op, node->args().size(), keywords);
    for (std::size_t i = 0; i < bound.size(); ++i) {
      const auto from = static_cast<std::size_t>(bound[i]);
      if (bound[i] == kDefaultArgument) {
        AddConstant(*op.schema().arguments()[i].default_value());
      } else {
        DDPOPT_RETURN_IF_ERROR(AddSource(op, i, from < node->args().size() ? node->args()[from] : node->kwargs()[from - node->args().size()].second));
      }
    }
    step.sources.size = static_cast<int>(bound.size());
    if (tensor_form.has_value()) NarrowNumber(step.sources);

    if (!node->has_meta()) return absl::UnimplementedError("no metadata");
    const IValue& val = node->meta().val;
    Made& made = elements_[node];
    std::vector<IValue> results;
    if (op.schema().returns().size() == 1) {
      made.several = val.isTensorList() || val.isList();
      if (made.several) {
        for (const IValue& element : val.toListRef()) results.push_back(element);
      } else {
        results.push_back(val);
      }
    } else if (op.schema().returns().size() > 1) {
      made.several = true;
      if (!val.isTuple()) return absl::UnimplementedError("no metadata");
      results = val.toTupleRef().elements().vec();
    }

    const bool writes = op.schema().is_mutable(), views = GivesViews(op.schema());
    const int index = static_cast<int>(plan_->steps.size());
    step.results.first = static_cast<int>(plan_->result_values.size());
    bool all_new = !results.empty(), any_new = false;
    std::vector<at::Tensor> fakes;
    for (const IValue& result : results) {
      int value = kNone, stored = kNone;
      if (result.isTensor() && result.toTensor().defined()) {
        const at::Tensor& fake = result.toTensor();
        DDPOPT_RETURN_IF_ERROR(CheckFake(fake));
        if (!IsFake(fake)) return absl::UnimplementedError("no metadata");
        const int base = BaseOf(fake, step.sources);
        if (base != kNone) {
          // The operand itself, or a view of it: there is nothing to take from the call, and nothing to call if nothing is written.
          if (!writes && !views) return absl::UnimplementedError("a result in the memory of an operand");
          value = NewView(fake, base);
          const Value &mine = plan_->values[value], &written = plan_->values[base];
          if (writes && !(SameLayout(mine, written) && mine.byte_offset == written.byte_offset)) {
            return absl::UnimplementedError("changes the shape of what it writes to");
          }
        } else {
          value = stored = NewMemory(fake, Memory::Kind::kOwn, index);
          any_new = true;
        }
        fakes.push_back(fake);
      } else {
        if (result.isTensorList() || result.isList() || result.isTuple()) return absl::UnimplementedError("a list among the results");
        fakes.emplace_back();
      }
      all_new &= stored != kNone || value == kNone;
      made.values.push_back(value);
      plan_->result_values.push_back(stored);
    }
    step.results.size = static_cast<int>(results.size());
    if (!any_new && !writes && !results.empty()) return absl::OkStatus();
    if (all_new && any_new && !writes && !(made.several && op.schema().returns().size() == 1)) ChooseKernel(&step, fakes);
    plan_->steps.push_back(step);
    pointwise_.push_back(op.hasTag(at::Tag::pointwise));
    return absl::OkStatus();
  }

  // A kernel that writes into given memory, if there is one.
  void ChooseKernel(Step* step, const std::vector<at::Tensor>& fakes) {
    bool all = true;
    for (const at::Tensor& fake : fakes) {
      all &= fake.defined();
      // Memory is planned for tensors without holes.
      if (fake.defined() && !fake.is_non_overlapping_and_dense()) return;
    }
    torch::jit::Stack arguments;
    bool lists = false;
    for (int i = step->sources.first; i < step->sources.first + step->sources.size; ++i) {
      const Source& source = plan_->sources[i];
      lists |= source.kind == Source::Kind::kTensors || source.kind == Source::Kind::kOptionalTensors;
      if (source.kind == Source::Kind::kValue) {
        arguments.emplace_back(fakes_[source.index]);
      } else {
        arguments.push_back(source.kind == Source::Kind::kConstant ? plan_->constants[source.index] : IValue());
      }
    }
    if (!lists) step->kernel = FindDirectKernel(step->op, arguments, fakes);
    if (step->kernel != nullptr) {
      step->code = Step::Code::kDirect;
    } else if (auto form = all ? FindOutForm(step->op) : std::nullopt; form.has_value()) {
      step->code = Step::Code::kOut;
      step->op = *form;
    } else {
      return;
    }
    for (int i = step->results.first; i < step->results.first + step->results.size; ++i) {
      const int value = plan_->result_values[i];
      if (value == kNone) continue;
      Memory& memory = plan_->memories[plan_->values[value].memory];
      memory.bytes = Extent(fakes_[value]);
      allocatable_[plan_->values[value].memory] = true;
    }
  }

  // --- lifetimes

  void FindLifetimes() {
    for (int s = 0; s < NumSteps(); ++s) {
      ForEachOperand(plan_->steps[s].sources, [&](int value) { MemoryOf(value).last = s; });
    }
    escapes_.assign(plan_->memories.size(), false);
    fates_.assign(plan_->memories.size(), Fate::kSaved);
    freed_at_.assign(plan_->memories.size(), 0);
    for (std::size_t i = 0; i < plan_->outputs.size(); ++i) {
      if (plan_->outputs[i] == kNone) continue;
      const int m = plan_->values[plan_->outputs[i]].memory;
      plan_->memories[m].last = NumSteps();
      Memory& memory = plan_->memories[m];
      const Value& value = plan_->values[plan_->outputs[i]];
      const bool all_of_it = value.byte_offset == 0 && value.dtype == plan_->values[memory.value].dtype &&
                             Extent(fakes_[plan_->outputs[i]]) == memory.bytes && fakes_[plan_->outputs[i]].is_non_overlapping_and_dense();
      memory.output = all_of_it && !escapes_[m] ? static_cast<int>(i) : kNone;
      escapes_[m] = true;
      fates_[m] = std::min(fates_[m], i < options_.fates.size() ? options_.fates[i] : Fate::kResult);
      if (i < options_.freed_at.size()) freed_at_[m] = std::max(freed_at_[m], options_.freed_at[i]);
    }
  }

  // An operator that goes element by element may write over an operand that nobody needs any more.
  void ReuseOperands() {
    std::vector<int> taken_by(plan_->memories.size(), kNone);  // the memory that this one became
    const auto find = [&](int m) {
      while (taken_by[m] != kNone) m = taken_by[m];
      return m;
    };
    for (int s = 0; s < NumSteps(); ++s) {
      const Step& step = plan_->steps[s];
      if (step.code != Step::Code::kOut || step.results.size != 1 || !pointwise_[s]) continue;
      const int result = plan_->result_values[step.results.first];
      const int mine = plan_->values[result].memory;
      // What is returned takes the place of what would be allocated for itself anyway; of smaller values, it would lengthen a group's life.
      if (escapes_[mine] && plan_->memories[mine].bytes <= kLargestInWorkspace) continue;
      int reused = kNone;
      ForEachOperand(step.sources, [&](int operand) {
        if (reused == kNone && MayWriteOver(step, s, operand, result, find)) reused = operand;
      });
      if (reused == kNone) continue;
      const int memory = find(plan_->values[reused].memory);
      taken_by[mine] = memory;
      plan_->memories[memory].last = plan_->memories[mine].last;
      if (!escapes_[mine]) continue;
      escapes_[memory] = true;
      fates_[memory] = Fate::kResult;
      plan_->memories[memory].output = plan_->memories[mine].output;
    }
    for (Value& value : plan_->values) value.memory = find(value.memory);
    taken_by_ = std::move(taken_by);
  }

  template <typename Find>
  bool MayWriteOver(const Step& step, int s, int operand, int result, const Find& find) const {
    const int memory = find(plan_->values[operand].memory);
    const Value &old = plan_->values[operand], &fresh = plan_->values[result];
    if (!allocatable_[memory] || escapes_[memory] || plan_->memories[memory].last != s) return false;
    if (old.byte_offset != 0 || !SameLayout(old, fresh) || plan_->memories[memory].bytes != Extent(fakes_[result])) return false;
    bool same = true;
    ForEachOperand(step.sources, [&](int other) {
      const Value& value = plan_->values[other];
      if (find(value.memory) == memory) same &= value.byte_offset == 0 && SameLayout(value, old);
    });
    return same;
  }

  // --- memory

  void ChooseMemory() {
    std::vector<int> together, saved, small;
    int64_t together_bytes = 0, saved_bytes = 0;
    for (int m = 0; m < NumMemories(); ++m) {
      if (!allocatable_[m] || taken_by_[m] != kNone) continue;
      Memory& memory = plan_->memories[m];
      if (!escapes_[m]) {
        memory.kind = memory.bytes > kLargestInWorkspace ? Memory::Kind::kResult : Memory::Kind::kPlanned;
      } else if (memory.bytes > 0 && memory.bytes <= kSmallResult && fates_[m] == Fate::kResult) {
        small.push_back(m);
      } else if (memory.bytes == 0 || fates_[m] == Fate::kResult) {
        memory.kind = Memory::Kind::kResult;
      } else if (fates_[m] == Fate::kTogether) {
        together.push_back(m);
        together_bytes += AlignBytes(memory.bytes);
      } else {
        saved.push_back(m);
        saved_bytes += AlignBytes(memory.bytes);
      }
    }
    std::stable_sort(saved.begin(), saved.end(), [&](int a, int b) { return freed_at_[a] < freed_at_[b]; });
    MakeGroups(together, Memory::Kind::kTogether, std::max(kLeastTogether, together_bytes / kPartsTogether));
    MakeGroups(small, Memory::Kind::kTogether, kSmallTogether);
    MakeGroups(saved, Memory::Kind::kSaved, std::max(kLeastTogether, saved_bytes / kPartsSaved));
  }

  void MakeGroups(const std::vector<int>& members, Memory::Kind kind, int64_t full) {
    for (std::size_t begin = 0; begin < members.size();) {
      int64_t bytes = 0;
      std::size_t end = begin;
      const int group = static_cast<int>(plan_->groups.size());
      for (; end < members.size() && bytes < full; ++end) {
        Memory& memory = plan_->memories[members[end]];
        memory.kind = kind;
        memory.group = group;
        memory.offset = bytes;
        bytes += AlignBytes(memory.bytes);
      }
      if (end - begin == 1) {
        plan_->memories[members[begin]].kind = Memory::Kind::kResult;
        plan_->memories[members[begin]].group = -1;
        plan_->memories[members[begin]].offset = 0;
      } else {
        plan_->groups.push_back({bytes});
      }
      begin = end;
    }
  }

  void PlaceInWorkspace() {
    std::vector<BufferRequest> requests;
    std::vector<int> members;
    for (int m = 0; m < NumMemories(); ++m) {
      const Memory& memory = plan_->memories[m];
      if (memory.kind != Memory::Kind::kPlanned) continue;
      members.push_back(m);
      requests.push_back({memory.bytes, memory.first, memory.last});
    }
    const BufferPlan buffers = PlanBuffers(requests);
    for (std::size_t i = 0; i < members.size(); ++i) plan_->memories[members[i]].offset = buffers.offsets[i];
    plan_->workspace_bytes = buffers.bytes;
  }

  // --- what each step does besides

  void Schedule() {
    const int num_values = static_cast<int>(plan_->values.size());
    // When a value that isn't in the workspace is taken first, and last.
    std::vector<int> first_use(num_values, NumSteps() + 1), last_use(num_values, kNone);
    const auto use = [&](int value, int s) {
      first_use[value] = std::min(first_use[value], s);
      last_use[value] = std::max(last_use[value], s);
    };
    for (int s = 0; s < NumSteps(); ++s) {
      const Step& step = plan_->steps[s];
      ForEachOperand(step.sources, [&](int value) { use(value, s); });
      for (int i = step.results.first; i < step.results.first + step.results.size; ++i) {
        if (plan_->result_values[i] != kNone) use(plan_->result_values[i], s);
      }
    }
    std::vector<bool> is_output(num_values, false);
    for (const int value : plan_->outputs) {
      if (value == kNone) continue;
      is_output[value] = true;
      if (plan_->IsWhole(value)) {
        last_use[value] = NumSteps();
      } else {
        last_use[MemoryOf(value).value] = NumSteps();
        plan_->output_views.push_back(value);
      }
    }
    std::vector<std::vector<int>> views(NumSteps()), freed(NumSteps());
    for (int value = 0; value < num_values; ++value) {
      if (plan_->InWorkspace(value) || plan_->IsWhole(value) || first_use[value] >= NumSteps()) continue;
      views[first_use[value]].push_back(value);
      freed[last_use[value]].push_back(value);
      int& base = last_use[MemoryOf(value).value];
      base = std::max(base, first_use[value]);
    }
    for (int value = 0; value < num_values; ++value) {
      if (plan_->InWorkspace(value) || !plan_->IsWhole(value) || plan_->values[value].constant.defined()) continue;
      if (last_use[value] >= 0 && last_use[value] < NumSteps()) freed[last_use[value]].push_back(value);
    }
    for (int s = 0; s < NumSteps(); ++s) {
      Step& step = plan_->steps[s];
      step.views = Append(views[s], &plan_->bound_views);
      step.freed = Append(freed[s], &plan_->freed_values);
      std::vector<int> allocated;
      for (int i = step.results.first; step.code != Step::Code::kCall && i < step.results.first + step.results.size; ++i) {
        const int value = plan_->result_values[i];
        if (value != kNone && !plan_->InWorkspace(value) && plan_->IsWhole(value)) allocated.push_back(value);
      }
      step.allocated = Append(allocated, &plan_->allocations);
      plan_->max_stack = std::max<std::size_t>(plan_->max_stack, step.sources.size + step.results.size);
    }
    std::sort(plan_->output_views.begin(), plan_->output_views.end());
    plan_->output_views.erase(std::unique(plan_->output_views.begin(), plan_->output_views.end()), plan_->output_views.end());
  }

  static Range Append(const std::vector<int>& from, std::vector<int>* to) {
    const Range range{static_cast<int>(to->size()), static_cast<int>(from.size())};
    to->insert(to->end(), from.begin(), from.end());
    return range;
  }

  int NumSteps() const { return static_cast<int>(plan_->steps.size()); }
  int NumMemories() const { return static_cast<int>(plan_->memories.size()); }
  Memory& MemoryOf(int value) { return plan_->memories[plan_->values[value].memory]; }

  const fx::GraphModule& module_;
  const ExecutorOptions& options_;
  std::shared_ptr<ExecutionPlan> plan_;
  fx::NodeTable<Made> elements_;
  std::vector<at::Tensor> fakes_;  // by value
  std::vector<bool> pointwise_;    // by step
  // By memory.
  std::vector<bool> allocatable_;  // before its operator runs
  std::vector<bool> escapes_;
  std::vector<Fate> fates_;
  std::vector<int> freed_at_;
  std::vector<int> taken_by_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const ExecutionPlan>> PlanExecution(const fx::GraphModule& module, const ExecutorOptions& options) {
  absl::StatusOr<std::shared_ptr<const ExecutionPlan>> plan = absl::InternalError("");
  const absl::Status status = CatchAsStatus("planning", [&] {
    plan = Planner(module, options).Run();
    return absl::OkStatus();
  });
  if (!status.ok()) return absl::UnimplementedError(status.message());
  return plan;
}

}  // namespace ddpopt
