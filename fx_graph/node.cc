#include "fx_graph/node.h"

#include <algorithm>
#include <new>

#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "ATen/core/Dict.h"
#include "ATen/core/List.h"
#include "base/logging.h"
#include "fx_graph/graph.h"

namespace ddpopt::fx {
namespace {

// The distinct nodes of the arguments, in order of first appearance.
class InputCollector {
 public:
  void operator()(Node* node) {
    if (inputs_.size() <= 16) {
      if (std::find(inputs_.begin(), inputs_.end(), node) != inputs_.end()) return;
    } else {
      if (seen_.empty()) seen_.insert(inputs_.begin(), inputs_.end());
      if (!seen_.insert(node).second) return;
    }
    inputs_.push_back(node);
  }
  const absl::InlinedVector<Node*, 16>& inputs() const { return inputs_; }

 private:
  absl::InlinedVector<Node*, 16> inputs_;
  absl::flat_hash_set<Node*> seen_;  // used once the list is long
};

}  // namespace

const char* OpName(Op op) {
  switch (op) {
    case Op::kPlaceholder:
      return "placeholder";
    case Op::kGetAttr:
      return "get_attr";
    case Op::kCallFunction:
      return "call_function";
    case Op::kCallMethod:
      return "call_method";
    case Op::kCallModule:
      return "call_module";
    case Op::kOutput:
      return "output";
  }
  return "unknown";
}

Argument::Argument(c10::IValue constant) : node_(nullptr) {
  if (constant.isNone()) return;
  new (&constant_) c10::IValue(std::move(constant));
  kind_ = Kind::kConstant;
}

void Argument::CopyFrom(const Argument& other) {
  if (other.kind_ <= Kind::kNode) {
    node_ = other.node_;
  } else if (other.kind_ == Kind::kConstant) {
    new (&constant_) c10::IValue(other.constant_);
  } else {
    new (&nested_) c10::intrusive_ptr<const Nested>(other.nested_);
  }
  kind_ = other.kind_;
}

void Argument::MoveFrom(Argument& other) noexcept {
  if (other.kind_ <= Kind::kNode) {
    node_ = other.node_;
  } else if (other.kind_ == Kind::kConstant) {
    new (&constant_) c10::IValue(std::move(other.constant_));
  } else {
    new (&nested_) c10::intrusive_ptr<const Nested>(std::move(other.nested_));
  }
  kind_ = other.kind_;
  other.Destroy();
  other.kind_ = Kind::kNone;
  other.node_ = nullptr;
}

void Argument::Destroy() {
  if (kind_ <= Kind::kNode) return;
  if (kind_ == Kind::kConstant) {
    constant_.~IValue();
  } else {
    nested_.~intrusive_ptr();
  }
}

Argument& Argument::operator=(const Argument& other) {
  if (this == &other) return *this;
  Argument copy(other);  // `other` may be an element of this
  return *this = std::move(copy);
}

Argument& Argument::operator=(Argument&& other) noexcept {
  if (this == &other) return *this;
  Argument old;  // so that `other` outlives what it may be an element of
  old.MoveFrom(*this);
  MoveFrom(other);
  return *this;
}

const c10::IValue& Argument::constant() const {
  static const c10::IValue* none = new c10::IValue();
  return kind_ == Kind::kConstant ? constant_ : *none;
}

const std::vector<Argument>& Argument::elements() const {
  static const std::vector<Argument>* none = new std::vector<Argument>();
  return kind_ >= Kind::kList ? nested_->elements : *none;
}

Argument Argument::Container(Kind kind, std::vector<Argument> elements) {
  auto nested = c10::make_intrusive<Nested>();
  for (const Argument& element : elements) {
    nested->has_nodes |= element.kind_ == Kind::kNode || (element.kind_ >= Kind::kList && element.nested_->has_nodes);
  }
  nested->elements = std::move(elements);
  Argument argument;
  new (&argument.nested_) c10::intrusive_ptr<const Nested>(std::move(nested));
  argument.kind_ = kind;
  return argument;
}

Argument Argument::List(std::vector<Argument> elements) { return Container(Kind::kList, std::move(elements)); }

Argument Argument::Tuple(std::vector<Argument> elements) { return Container(Kind::kTuple, std::move(elements)); }

Argument Argument::Dict(std::vector<Argument> keys_and_values) {
  CHECK(keys_and_values.size() % 2 == 0) << "a dict argument needs a value for each key, got " << keys_and_values.size() << " elements";
  return Container(Kind::kDict, std::move(keys_and_values));
}

Argument Argument::Slice(Argument start, Argument stop, Argument step) {
  std::vector<Argument> elements;
  elements.reserve(3);
  elements.push_back(std::move(start));
  elements.push_back(std::move(stop));
  elements.push_back(std::move(step));
  return Container(Kind::kSlice, std::move(elements));
}

Argument Argument::Map(absl::FunctionRef<Argument(Node*)> fn) const {
  if (kind_ == Kind::kNode) return fn(node_);
  if (kind_ < Kind::kList || !nested_->has_nodes) return *this;
  std::vector<Argument> mapped;
  mapped.reserve(nested_->elements.size());
  for (const Argument& element : nested_->elements) mapped.push_back(element.Map(fn));
  return Container(kind_, std::move(mapped));
}

c10::IValue CopyContainers(const c10::IValue& value) {
  if (value.isList()) {
    const c10::List<c10::IValue> list = value.toList();
    c10::impl::GenericList copy(list.elementType());
    copy.reserve(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) copy.push_back(CopyContainers(list.get(i)));
    return copy;
  }
  if (value.isTuple()) {
    const auto& tuple = value.toTupleRef();
    std::vector<c10::IValue> elements;
    elements.reserve(tuple.elements().size());
    for (const c10::IValue& element : tuple.elements()) elements.push_back(CopyContainers(element));
    const c10::TupleTypePtr type = tuple.type<c10::TupleType>();
    return type->schema() != nullptr ? c10::ivalue::Tuple::createNamed(std::move(elements), type)
                                     : c10::ivalue::Tuple::create(std::move(elements));
  }
  if (value.isGenericDict()) {
    const auto dict = value.toGenericDict();
    c10::impl::GenericDict copy(dict.keyType(), dict.valueType());
    for (const auto& entry : dict) copy.insert(CopyContainers(entry.key()), CopyContainers(entry.value()));
    return copy;
  }
  return value;
}

NodeMeta CopyMeta(const NodeMeta& meta) {
  NodeMeta copy = meta;
  if (!meta.val.isTensor()) copy.val = CopyContainers(meta.val);
  for (auto& [key, value] : copy.custom) value = CopyContainers(value);
  return copy;
}

Node* UserRange::operator[](std::size_t index) const {
  const NodeUse* use = first_;
  for (; index != 0; --index) use = use->next;
  return use->user;
}

Node::~Node() {
  for (std::uint32_t i = 0; i < num_args_; ++i) arg_array()[i].~Argument();
  delete kwargs_;
  delete meta_;
}

const Kwargs& Node::kwargs() const {
  static const Kwargs* none = new Kwargs();
  return kwargs_ == nullptr ? *none : *kwargs_;
}

NodeMeta& Node::meta() {
  if (meta_ == nullptr) meta_ = new NodeMeta();
  return *meta_;
}

const NodeMeta& Node::meta() const {
  static const NodeMeta* none = new NodeMeta();
  return meta_ == nullptr ? *none : *meta_;
}

void Node::SetName(const NameTable::Name& name) {
  name_ = name.text.data();
  name_size_ = static_cast<std::uint32_t>(name.text.size());
  name_base_ = name.base;
}

void Node::Rename(absl::string_view candidate) {
  if (candidate == name()) return;
  SetName(graph()->names_.Create(candidate));
  ++graph()->version_;
}

void Node::Unuse() {
  for (std::uint32_t i = 0; i < num_inputs_; ++i) {
    NodeUse& use = uses_[i];
    (use.prev != nullptr ? use.prev->next : use.input->first_use_) = use.next;
    (use.next != nullptr ? use.next->prev : use.input->last_use_) = use.prev;
    --use.input->num_users_;
  }
}

void Node::Update(absl::Span<const Argument> args, Kwargs* kwargs) {
  Graph* const graph = this->graph();
  CHECK(!erased_) << "node %" << name() << " was erased from its graph";
  InputCollector collect;
  for (const Argument& argument : args) argument.ForEachNode(collect);
  if (kwargs != nullptr) {
    for (const auto& [name, argument] : *kwargs) argument.ForEachNode(collect);
  }
  const auto& inputs = collect.inputs();
  for (const Node* input : inputs) {
    CHECK(input != nullptr && input->graph() == graph && !input->erased_)
        << "node %" << name() << " takes %" << (input == nullptr ? absl::string_view("<null>") : input->name())
        << ", which is not a live node of the same graph";
  }

  const std::size_t size = inputs.size() * sizeof(NodeUse) + args.size() * sizeof(Argument);
  NodeUse* const uses = size == 0 ? nullptr : static_cast<NodeUse*>(graph->blocks_.Allocate(size));
  Argument* to = reinterpret_cast<Argument*>(uses + inputs.size());
  for (const Argument& argument : args) new (to++) Argument(argument);

  // As in torch.fx, an updated node becomes the last user of each of its inputs.
  Unuse();
  if (uses_ != nullptr) {
    for (std::uint32_t i = 0; i < num_args_; ++i) arg_array()[i].~Argument();
    graph->blocks_.Free(uses_, block_size());
  }
  if (kwargs != kwargs_) {
    delete kwargs_;
    kwargs_ = kwargs;
  }
  uses_ = uses;
  num_inputs_ = static_cast<std::uint32_t>(inputs.size());
  num_args_ = static_cast<std::uint32_t>(args.size());
  NodeUse* use = uses;
  for (Node* input : inputs) {
    new (use) NodeUse{input, this, input->last_use_, nullptr};
    (input->last_use_ != nullptr ? input->last_use_->next : input->first_use_) = use;
    input->last_use_ = use;
    ++input->num_users_;
    ++use;
  }
  ++graph->version_;
}

void Node::set_args(absl::Span<const Argument> args) { Update(args, kwargs_); }

void Node::set_kwargs(Kwargs kwargs) { Update(args(), kwargs.empty() ? nullptr : new Kwargs(std::move(kwargs))); }

absl::Status Node::UpdateArg(std::size_t index, Argument argument) {
  if (index >= num_args_) {
    return absl::OutOfRangeError(absl::StrCat("can't update argument ", index, " of node %", name(), ", which has ", num_args_));
  }
  std::vector<Argument> args(this->args().begin(), this->args().end());
  args[index] = std::move(argument);
  Update(args, kwargs_);
  return absl::OkStatus();
}

absl::Status Node::InsertArg(std::size_t index, Argument argument) {
  if (index > num_args_) {
    return absl::OutOfRangeError(absl::StrCat("can't insert argument ", index, " of node %", name(), ", which has ", num_args_));
  }
  std::vector<Argument> args(this->args().begin(), this->args().end());
  args.insert(args.begin() + static_cast<std::ptrdiff_t>(index), std::move(argument));
  Update(args, kwargs_);
  return absl::OkStatus();
}

void Node::UpdateKwarg(absl::string_view key, Argument argument) {
  Kwargs kwargs = this->kwargs();
  const auto it = std::find_if(kwargs.begin(), kwargs.end(), [key](const auto& entry) { return entry.first == key; });
  if (it != kwargs.end()) {
    it->second = std::move(argument);
  } else {
    kwargs.emplace_back(std::string(key), std::move(argument));
  }
  set_kwargs(std::move(kwargs));
}

void Node::set_target(Target target) {
  CHECK(!erased_) << "node %" << name() << " was erased from its graph";
  Graph* const graph = this->graph();
  TargetEntry* const entry = graph->Intern(op_, std::move(target));
  graph->RemoveFromTarget(this);
  target_ = entry;
  graph->AddToTarget(this);
  ++graph->version_;
}

std::vector<Node*> Node::ReplaceAllUsesWith(Node* other) {
  return ReplaceAllUsesWith(other, [](Node*) { return true; });
}

std::vector<Node*> Node::ReplaceAllUsesWith(Node* other, absl::FunctionRef<bool(Node*)> replace_in, bool propagate_meta) {
  CHECK(other != nullptr) << "node %" << name() << " can't be replaced by a null node";
  CHECK(other->graph() == graph() && !other->erased_) << "node %" << name() << " can't be replaced by %" << other->name()
                                                      << ", which is not a live node of the same graph";
  std::vector<Node*> changed;
  if (other == this) return changed;
  if (propagate_meta) {
    CHECK(other->meta_ == nullptr) << "node %" << other->name() << " has metadata already, so it can't take that of %" << name();
    if (meta_ != nullptr) other->meta_ = new NodeMeta(CopyMeta(*meta_));
  }
  const std::vector<Node*> users(this->users().begin(), this->users().end());
  for (Node* user : users) {
    if (user == other || !replace_in(user)) continue;
    user->ReplaceInputWith(this, other);
    changed.push_back(user);
  }
  return changed;
}

void Node::ReplaceInputWith(Node* from, Node* to) {
  const auto replace = [from, to](Node* node) { return Argument(node == from ? to : node); };
  absl::InlinedVector<Argument, 8> args;
  args.reserve(num_args_);
  for (const Argument& argument : this->args()) args.push_back(argument.Map(replace));
  Kwargs* kwargs = nullptr;
  if (kwargs_ != nullptr) {
    kwargs = new Kwargs();
    kwargs->reserve(kwargs_->size());
    for (const auto& [name, argument] : *kwargs_) kwargs->emplace_back(name, argument.Map(replace));
  }
  Update(args, kwargs);
}

absl::Status Node::Prepend(Node* node) { return graph()->Move(node, this, /*after=*/false); }

absl::Status Node::Append(Node* node) { return graph()->Move(node, this, /*after=*/true); }

}  // namespace ddpopt::fx
