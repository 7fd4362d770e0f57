#include "fx_graph/graph.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace ddpopt::fx {
namespace {

// Between the order numbers of nodes that are appended; room for those that are inserted between them later.
constexpr std::uint64_t kOrderStep = std::uint64_t{1} << 32;

// "layerNorm" -> "layer_norm".
std::string SnakeCase(absl::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i > 0 && absl::ascii_isupper(text[i]) && absl::ascii_islower(text[i - 1])) result += '_';
    result += absl::ascii_tolower(text[i]);
  }
  return result;
}

// What torch.fx names a node after: a function's __name__ ("add.Tensor" of an overload), or the text itself.
std::string NameFromTarget(const Target& target) {
  if (const auto* op = std::get_if<OperatorTarget>(&target)) {
    const c10::OperatorName& name = op->op.operator_name();
    const std::size_t colons = name.name.rfind("::");
    return SnakeCase(absl::StrCat(colons == std::string::npos ? name.name : name.name.substr(colons + 2), ".",
                                  name.overload_name.empty() ? "default" : name.overload_name));
  }
  std::string text = TargetToString(target);
  if (std::holds_alternative<OpaqueTarget>(target) || std::holds_alternative<HigherOrderTarget>(target)) {
    std::size_t dot = text.rfind('.');
    // An overload that only Python has, "torch.ops.ns.name.overload", is called "name.overload" as those of the dispatcher are.
    if (absl::StartsWith(text, "torch.ops.") && std::count(text.begin(), text.end(), '.') == 4) dot = text.rfind('.', dot - 1);
    if (dot != std::string::npos && dot + 1 < text.size()) text = text.substr(dot + 1);
  } else if (text.size() >= 4 && absl::StartsWith(text, "__") && absl::EndsWith(text, "__")) {
    text = text.substr(2, text.size() - 4);
  }
  return SnakeCase(text);
}

const std::string& TextOf(const Target& target) {
  if (const auto* higher_order = std::get_if<HigherOrderTarget>(&target)) return higher_order->name;
  if (const auto* method = std::get_if<MethodTarget>(&target)) return method->name;
  if (const auto* path = std::get_if<PathTarget>(&target)) return path->path;
  return std::get<OpaqueTarget>(target).text;
}

}  // namespace

void internal::NodeOfAnotherGraph(const Node& node) {
  LOG(FATAL) << "node %" << node.name() << " is not of the graph that the table is for";
  std::abort();
}

std::size_t Graph::TargetHash::operator()(const TargetKey& key) const {
  const std::size_t kind = static_cast<std::size_t>(key.op) * 8 + key.target.index();
  if (const auto* op = std::get_if<OperatorTarget>(&key.target)) {
    return absl::HashOf(kind, std::hash<c10::OperatorHandle>()(op->op));
  }
  return absl::HashOf(kind, absl::string_view(TextOf(key.target)));
}

Graph::Graph() = default;

Graph::~Graph() {
  for (const Chunk& chunk : chunks_) {
    for (std::uint32_t i = 0; i < chunk.size; ++i) {
      Node* node = chunk.nodes + i;
      NodeUse* const block = node->uses_;
      const std::size_t size = node->block_size();
      node->~Node();
      if (!BlockPool::Pools(size)) blocks_.Free(block, size);
    }
    ::operator delete(chunk.nodes);
    std::free(chunk.pages);
  }
}

void Graph::NewChunk() {
  // Small at first, since most graphs are; then whole pages, a quarter more of them each time.
  constexpr std::uint32_t kPage = NodeLinkPage::kLinks;
  const std::uint32_t capacity = chunks_.empty()       ? 8
                                 : chunks_.size() == 1 ? 32
                                                       : kPage * std::clamp<std::uint32_t>(num_made_ / kPage / 4, 1, 64);
  const std::size_t pages = (capacity + kPage - 1) / kPage;
  void* memory = nullptr;
  const std::size_t bytes = capacity < kPage ? offsetof(NodeLinkPage, links) + capacity * sizeof(NodeLink) : pages * sizeof(NodeLinkPage);
  if (posix_memalign(&memory, NodeLinkPage::kSize, bytes) != 0) throw std::bad_alloc();
  const Chunk chunk{static_cast<NodeLinkPage*>(memory), static_cast<Node*>(::operator new(capacity * sizeof(Node))), capacity, 0};
  for (std::size_t i = 0; i < pages; ++i) {
    chunk.pages[i].graph = this;
    chunk.pages[i].nodes = chunk.nodes + i * kPage;
  }
  chunks_.push_back(chunk);
}

Node* Graph::output_node() const {
  for (Node* node = back(); node != nullptr; node = node->prev()) {
    if (node->op_ == Op::kOutput) return node;
  }
  return nullptr;
}

std::vector<Node*> Graph::FindNodes(Op op, bool sort) const {
  std::vector<Node*> found;
  for (const TargetEntry* entry : targets_of_[static_cast<std::size_t>(op)]) {
    for (Node* node = entry->first; node != nullptr; node = node->next_same_target_) found.push_back(node);
  }
  std::sort(found.begin(), found.end(), [sort](const Node* a, const Node* b) { return sort ? a->IsBefore(b) : a->id() < b->id(); });
  return found;
}

std::vector<Node*> Graph::FindNodes(Op op, const Target& target, bool sort) const {
  std::vector<Node*> found;
  const TargetEntry* entry = FindTarget(op, target);
  if (entry == nullptr) return found;
  found.reserve(entry->size);
  for (Node* node = entry->first; node != nullptr; node = node->next_same_target_) found.push_back(node);
  if (sort) std::sort(found.begin(), found.end(), [](const Node* a, const Node* b) { return a->IsBefore(b); });
  return found;
}

const Graph::TargetEntry* Graph::FindTarget(Op op, const Target& target) const {
  const auto it = target_index_.find(TargetKey{op, target});
  return it == target_index_.end() ? nullptr : *it;
}

Graph::TargetEntry* Graph::Intern(Op op, Target target) {
  const auto found = target_index_.lazy_emplace(TargetKey{op, target}, [&](const auto& make) {
    TargetEntry& entry = targets_.emplace_back(TargetEntry{.op = op, .target = std::move(target), .candidate = {}});
    entry.index = static_cast<std::uint32_t>(targets_.size() - 1);
    targets_of_[static_cast<std::size_t>(op)].push_back(&entry);
    make(&entry);
  });
  return *found;
}

Graph::TargetEntry* Graph::Intern(Op op, const c10::OperatorHandle& handle) {
  if (last_target_ != nullptr && last_target_->op == op) {
    const auto* last = std::get_if<OperatorTarget>(&last_target_->target);
    if (last != nullptr && last->op == handle) return last_target_;
  }
  return last_target_ = Intern(op, OperatorTarget{handle});
}

void Graph::AddToTarget(Node* node) {
  TargetEntry* entry = node->target_;
  node->prev_same_target_ = entry->last;
  node->next_same_target_ = nullptr;
  (entry->last != nullptr ? entry->last->next_same_target_ : entry->first) = node;
  entry->last = node;
  ++entry->size;
}

void Graph::RemoveFromTarget(Node* node) {
  TargetEntry* entry = node->target_;
  (node->prev_same_target_ != nullptr ? node->prev_same_target_->next_same_target_ : entry->first) = node->next_same_target_;
  (node->next_same_target_ != nullptr ? node->next_same_target_->prev_same_target_ : entry->last) = node->prev_same_target_;
  node->prev_same_target_ = nullptr;
  node->next_same_target_ = nullptr;
  --entry->size;
}

void Graph::LinkAt(NodeLink* link, NodeLink* prev, NodeLink* next) {
  link->prev = prev;
  link->next = next;
  (prev != nullptr ? prev->next : first_) = link;
  (next != nullptr ? next->prev : last_) = link;
}

void Graph::Unlink(NodeLink* link) {
  (link->prev != nullptr ? link->prev->next : first_) = link->next;
  (link->next != nullptr ? link->next->prev : last_) = link->prev;
}

void Graph::Order(Node* node) {
  const Node* prev = node->prev();
  Node* next = node->next();
  const std::uint64_t low = prev == nullptr ? 0 : prev->order_;
  if (next == nullptr) {
    node->order_ = low;
    if (low > std::numeric_limits<std::uint64_t>::max() - kOrderStep) return Reorder(node);
    node->order_ += kOrderStep;
    return;
  }
  node->order_ = low + (next->order_ - low) / 2;
  if (node->order_ == low) Reorder(node);
}

// Spreads the numbers around a node that found no room: over the smallest range of numbers, a power of two, that is sparse enough, so
// that many insertions at one place cost O(log n) each. (Bender et al., "Two simplified algorithms for maintaining order in a list".)
void Graph::Reorder(Node* around) {
  constexpr double kDensity = 1.4;
  const std::uint64_t place = around->order_;
  NodeLink* first = around->link();
  NodeLink* last = first;
  std::uint64_t count = 1;
  double threshold = 1;
  for (int bits = 1; bits < 63; ++bits) {
    const std::uint64_t size = std::uint64_t{1} << bits;
    const std::uint64_t low = place & ~(size - 1);
    const std::uint64_t high = low + (size - 1);
    for (; first->prev != nullptr && NodeLinkPage::NodeOf(first->prev)->order_ >= low; first = first->prev) ++count;
    for (; last->next != nullptr && NodeLinkPage::NodeOf(last->next)->order_ <= high; last = last->next) ++count;
    threshold *= 2 / kDensity;
    if (static_cast<double>(count) >= threshold || size / (count + 1) == 0) continue;
    const std::uint64_t step = size / (count + 1);
    std::uint64_t order = low;
    for (NodeLink* link = first;; link = link->next) {
      NodeLinkPage::NodeOf(link)->order_ = order += step;
      if (link == last) return;
    }
  }
  std::uint64_t order = 0;
  for (NodeLink* link = first_; link != nullptr; link = link->next) NodeLinkPage::NodeOf(link)->order_ = order += kOrderStep;
}

Node* Graph::NewNode(Op op, TargetEntry* target) {
  if (chunks_.empty() || chunks_.back().size == chunks_.back().capacity) NewChunk();
  CHECK(num_made_ != std::numeric_limits<std::uint32_t>::max()) << "a graph can't have more than 2^32 nodes";
  Chunk& chunk = chunks_.back();
  const std::uint32_t index = chunk.size++;
  NodeLink* link = chunk.pages[index / NodeLinkPage::kLinks].links + index % NodeLinkPage::kLinks;
  return new (chunk.nodes + index) Node(op, target, link, num_made_++);
}

Node* Graph::Finish(Node* node, absl::Span<const Argument> args, Kwargs* kwargs) {
  node->Update(args, kwargs);
  AddToTarget(node);
  NodeLink* prev = last_;
  NodeLink* next = nullptr;
  if (insert_.node != nullptr) {
    NodeLink* anchor = insert_.node->link();
    prev = insert_.after ? anchor : anchor->prev;
    next = insert_.after ? anchor->next : anchor;
  } else if (insert_.after) {
    prev = nullptr;
    next = first_;
  }
  LinkAt(node->link(), prev, next);
  Order(node);
  ++size_;
  ++version_;
  return node;
}

Node* Graph::CreateNode(Op op, Target target, absl::Span<const Argument> args, Kwargs kwargs, absl::string_view name_hint) {
  return CreateNode(Intern(op, std::move(target)), args, std::move(kwargs), name_hint);
}

Node* Graph::CreateNode(TargetEntry* target, absl::Span<const Argument> args, Kwargs kwargs, absl::string_view name_hint) {
  Node* node = NewNode(target->op, target);
  if (!name_hint.empty()) {
    node->SetName(names_.Create(name_hint));
  } else {
    NameAfterTarget(node);
  }
  return Finish(node, args, kwargs.empty() ? nullptr : new Kwargs(std::move(kwargs)));
}

void Graph::NameAfterTarget(Node* node) {
  TargetEntry* const target = node->target_;
  if (target->candidate.base == nullptr) target->candidate = names_.Parse(NameFromTarget(target->target));
  node->SetName(names_.Create(target->candidate));
}

Node* Graph::Placeholder(absl::string_view name) { return CreateNode(Op::kPlaceholder, PathTarget{std::string(name)}); }

Node* Graph::GetAttr(absl::string_view path) { return CreateNode(Op::kGetAttr, PathTarget{std::string(path)}); }

Node* Graph::CallFunction(const c10::OperatorHandle& op, absl::Span<const Argument> args, Kwargs kwargs, absl::string_view name_hint) {
  return CreateNode(Intern(Op::kCallFunction, op), args, std::move(kwargs), name_hint);
}

Node* Graph::CallModule(absl::string_view path, absl::Span<const Argument> args, Kwargs kwargs) {
  return CreateNode(Op::kCallModule, PathTarget{std::string(path)}, args, std::move(kwargs));
}

Node* Graph::CallMethod(absl::string_view method, absl::Span<const Argument> args, Kwargs kwargs) {
  return CreateNode(Op::kCallMethod, MethodTarget{std::string(method)}, args, std::move(kwargs));
}

Node* Graph::Output(Argument result) { return CreateNode(Op::kOutput, PathTarget{"output"}, absl::MakeConstSpan(&result, 1)); }

Node* Graph::SetInsertBefore(Node* node) {
  CHECK(node == nullptr || Owns(node)) << "the insertion point %" << node->name() << " is not a node of this graph";
  Node* old = insert_.node == nullptr ? (insert_.after ? front() : nullptr) : insert_.after ? insert_.node->next() : insert_.node;
  insert_ = {node, false};
  return old;
}

Graph::InsertScope Graph::InsertingBefore(Node* node) {
  CHECK(node == nullptr || Owns(node)) << "the insertion point %" << node->name() << " is not a node of this graph";
  return InsertScope(*this, {node, node == nullptr});
}

Graph::InsertScope Graph::InsertingAfter(Node* node) {
  CHECK(node == nullptr || Owns(node)) << "the insertion point %" << node->name() << " is not a node of this graph";
  return InsertScope(*this, {node, node != nullptr});
}

absl::Status Graph::CheckErasable(const Node* node) const {
  if (node == nullptr) return absl::InvalidArgumentError("can't erase a null node");
  if (node->graph() != this)
    return absl::InvalidArgumentError(absl::StrCat("can't erase node %", node->name(), ": it belongs to another graph"));
  if (node->erased_) return absl::InvalidArgumentError(absl::StrCat("can't erase node: %", node->name(), " is erased already"));
  return absl::OkStatus();
}

absl::Status Graph::EraseNode(Node* node) {
  if (absl::Status status = CheckErasable(node); !status.ok()) return status;
  if (node->num_users_ != 0) {
    std::string users;
    for (const Node* user : node->users()) {
      if (users.size() > 200) {
        absl::StrAppend(&users, ", ... (", node->num_users_, " in all)");
        break;
      }
      absl::StrAppend(&users, users.empty() ? "%" : ", %", user->name());
    }
    return absl::FailedPreconditionError(absl::StrCat("can't erase node: %", node->name(), " still has users: ", users));
  }
  node->Update({}, nullptr);
  Unlist(node);
  return absl::OkStatus();
}

absl::Status Graph::EraseNodes(absl::Span<Node* const> nodes) {
  absl::flat_hash_set<const Node*> set;
  set.reserve(nodes.size());
  for (const Node* node : nodes) {
    if (absl::Status status = CheckErasable(node); !status.ok()) return status;
    if (!set.insert(node).second)
      return absl::InvalidArgumentError(absl::StrCat("can't erase node %", node->name(), ": it was given twice"));
  }
  for (const Node* node : nodes) {
    for (const Node* user : node->users()) {
      if (set.contains(user)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("can't erase node: %", node->name(), " still has users: %", user->name(), ", which is not among those to erase"));
    }
  }
  std::vector<Node*> order(nodes.begin(), nodes.end());
  std::sort(order.begin(), order.end(), [](const Node* a, const Node* b) { return b->IsBefore(a); });
  // Also where a use stands before its definition, which only Lint forbids.
  for (Node* node : order) node->Update({}, nullptr);
  for (Node* node : order) Unlist(node);
  return absl::OkStatus();
}

// Takes a node without arguments and users out of all lists.
void Graph::Unlist(Node* node) {
  NodeLink* link = node->link();
  if (insert_.node == node) {
    NodeLink* neighbour = insert_.after ? link->prev : link->next;
    // Without one, null with the same flag means that end of the graph.
    insert_.node = neighbour == nullptr ? nullptr : NodeLinkPage::NodeOf(neighbour);
  }
  Unlink(link);
  link->prev = NodeLink::Erased();
  RemoveFromTarget(node);
  delete node->meta_;  // lets go of its tensors; the node itself stays, so that its address isn't reused
  node->meta_ = nullptr;
  node->erased_ = true;
  --size_;
  ++version_;
}

absl::Status Graph::Move(Node* node, Node* anchor, bool after) {
  if (node == nullptr) return absl::InvalidArgumentError(absl::StrCat("can't move a null node next to %", anchor->name()));
  for (const Node* part : {node, anchor}) {
    if (part->graph() != this) {
      return absl::InvalidArgumentError(
          absl::StrCat("can't move node %", node->name(), " next to %", anchor->name(), ": they are of two graphs"));
    }
    if (part->erased_) {
      return absl::InvalidArgumentError(
          absl::StrCat("can't move node %", node->name(), " next to %", anchor->name(), ": %", part->name(), " is erased"));
    }
  }
  if (node == anchor) return absl::OkStatus();
  NodeLink* link = node->link();
  Unlink(link);
  NodeLink* at = anchor->link();
  LinkAt(link, after ? at : at->prev, after ? at->next : at);
  Order(node);
  ++version_;
  return absl::OkStatus();
}

Node* Graph::CopyNode(const Node& node, TargetEntry* target, NameTable::Base* base, absl::FunctionRef<Argument(Node*)> map) {
  absl::InlinedVector<Argument, 8> args;
  args.reserve(node.num_args_);
  for (const Argument& argument : node.args()) args.push_back(argument.Map(map));
  Kwargs* kwargs = nullptr;
  if (node.kwargs_ != nullptr) {
    kwargs = new Kwargs();
    kwargs->reserve(node.kwargs_->size());
    for (const auto& [name, argument] : *node.kwargs_) kwargs->emplace_back(name, argument.Map(map));
  }
  NodeMeta* meta = node.meta_ == nullptr ? nullptr : new NodeMeta(CopyMeta(*node.meta_));
  Node* copy = NewNode(node.op_, target);
  copy->meta_ = meta;
  if (base != nullptr) {
    copy->SetName(names_.CreateLike(base, node.name()));
  } else {
    NameAfterTarget(copy);
  }
  return Finish(copy, args, kwargs);
}

void Graph::Copier::SetTarget(Graph* to, std::size_t names) {
  CHECK(to != &from_) << "a graph's nodes are copied into another graph";
  to_ = to;
  to->target_index_.reserve(names);
  to->names_.Reserve(names);
  ++time_;
  targets_.resize(from_.targets_.size());
  bases_.resize(from_.names_.num_bases());
}

Node* Graph::Copier::Copy(const Node& node, absl::FunctionRef<Argument(Node*)> map, bool keep_name) {
  CHECK(to_ != nullptr && node.graph() == &from_) << "node %" << node.name() << " is not of the graph that is copied";
  Known<TargetEntry>& target = targets_[node.target_->index];
  if (target.time != time_) target = {to_->Intern(node.op_, node.target()), time_};
  NameTable::Base* base = nullptr;
  if (keep_name) {
    Known<NameTable::Base>& known = bases_[NameTable::Index(node.name_base_)];
    if (known.time != time_) known = {to_->names_.FindOrAddBase(NameTable::Text(node.name_base_)), time_};
    base = known.found;
  }
  return to_->CopyNode(node, target.found, base, map);
}

Node* Graph::CopyNode(const Node& node, absl::FunctionRef<Argument(Node*)> map) {
  TargetEntry* target = Intern(node.op_, node.target());
  return CopyNode(node, target, names_.FindOrAddBase(NameTable::Text(node.name_base_)), map);
}

NodeMap Graph::CopyFrom(const Graph& other) {
  NodeMap copies(other);
  // The other graph's targets and bases of names, found here once for each.
  std::vector<TargetEntry*> targets(other.targets_.size());
  std::vector<NameTable::Base*> bases(other.names_.num_bases());
  const std::size_t count = other.size();  // so that a graph can be copied into itself
  Node* node = other.front();
  for (std::size_t i = 0; i < count; ++i) {
    TargetEntry*& target = targets[node->target_->index];
    if (target == nullptr) target = Intern(node->op_, node->target());
    NameTable::Base*& base = bases[NameTable::Index(node->name_base_)];
    if (base == nullptr) base = names_.FindOrAddBase(NameTable::Text(node->name_base_));
    copies[node] = CopyNode(*node, target, base, [&](Node* input) {
      Node* copy = copies.at(input);
      CHECK(copy != nullptr) << "argument %" << input->name() << " of node %" << node->name() << " comes after its use";
      return Argument(copy);
    });
    node = node->next();
  }
  return copies;
}

absl::StatusOr<Argument> Graph::GraphCopy(const Graph& other, NodeMap& values) {
  const std::size_t count = other.size();
  Node* node = other.front();
  for (std::size_t i = 0; i < count; ++i, node = node->next()) {
    if (values.at(node) != nullptr) continue;
    for (Node* input : node->all_input_nodes()) {
      if (values.at(input) != nullptr) continue;
      return absl::FailedPreconditionError(absl::StrCat("argument %", input->name(), " of node %", node->name(), " comes after its use"));
    }
    const auto map = [&](Node* input) { return Argument(values.at(input)); };
    if (node->op_ == Op::kOutput) return node->num_args_ == 0 ? Argument() : node->args()[0].Map(map);
    Node* copy = CopyNode(*node, map);
    values[node] = copy;
  }
  return Argument();
}

std::shared_ptr<const void> Graph::derived() const {
  const std::lock_guard<std::mutex> lock(derived_mutex_);
  return derived_version_ == version_ ? derived_ : nullptr;
}

void Graph::set_derived(std::shared_ptr<const void> derived) const {
  const std::lock_guard<std::mutex> lock(derived_mutex_);
  derived_ = std::move(derived);
  derived_version_ = version_;
}

namespace {

bool FitsKind(Op op, const Target& target) {
  const bool path = std::holds_alternative<PathTarget>(target);
  const bool method = std::holds_alternative<MethodTarget>(target);
  if (op == Op::kCallMethod) return method;
  if (op == Op::kCallFunction) return !path && !method;
  return path;
}

}  // namespace

absl::Status Graph::Lint() const {
  const auto fail = [](const Node* node, const auto&... parts) {
    return absl::FailedPreconditionError(absl::StrCat("node %", node->name(), parts...));
  };
  NameTable::Checker names(names_);
  std::vector<bool> earlier(num_made_);
  absl::InlinedVector<const Node*, 16> inputs;
  absl::flat_hash_set<const Node*> seen;
  std::size_t count = 0;
  const Node* previous = nullptr;
  const Node* output = nullptr;
  for (const NodeLink* link = first_; link != nullptr; link = link->next) {
    const Node* node = NodeLinkPage::NodeOf(link);
    if (node->graph() != this) return fail(node, " belongs to another graph");
    if (node->erased_ || link->prev == NodeLink::Erased()) return fail(node, " was erased but is still listed");
    if (link->prev != (previous == nullptr ? nullptr : previous->link())) return fail(node, " has a wrong link to the node before it");
    if (++count > size_) return fail(node, " is one more than the graph's ", size_, " nodes");
    if (node->id_ >= num_made_ || earlier[node->id_]) return fail(node, " has an id that is not its own");
    if (previous != nullptr && !previous->IsBefore(node))
      return fail(node, " has no later place in the order than %", previous->name(), " before it");
    switch (names.Check(node->name(), node->name_base_)) {
      case NameTable::Checker::Verdict::kGood:
        break;
      case NameTable::Checker::Verdict::kTwice:
        return fail(node, " shares its name with an earlier node");
      case NameTable::Checker::Verdict::kUnknown:
        return fail(node, " has a name that the graph did not give out");
    }
    if (output != nullptr) {
      if (node->op_ == Op::kOutput) return fail(node, " is a second output, after %", output->name());
      return fail(node, " comes after the output, %", output->name());
    }
    const TargetEntry* target = node->target_;
    if (target == nullptr || target->index >= targets_.size() || &targets_[target->index] != target || target->op != node->op_) {
      return fail(node, " is not in the table of its target");
    }
    if (!FitsKind(node->op_, target->target)) {
      return fail(node, " (", OpName(node->op_), ") has a target that is no ",
                  node->op_ == Op::kCallMethod ? "method" : node->op_ == Op::kCallFunction ? "function" : "path");
    }
    if (node->op_ == Op::kOutput) {
      if (node->num_args_ != 1 || node->kwargs_ != nullptr) return fail(node, " (output) must have exactly one argument");
      output = node;
    }

    // Its uses are its arguments' nodes, once each.
    inputs.clear();
    seen.clear();
    const Node* stranger = nullptr;
    bool null = false;
    const auto visit = [&](const Node* input) {
      if (!Owns(input)) {
        stranger = input;
        null |= input == nullptr;
        return;
      }
      if (inputs.size() <= 16 ? std::find(inputs.begin(), inputs.end(), input) != inputs.end() : !seen.insert(input).second) return;
      inputs.push_back(input);
      if (inputs.size() == 17) seen.insert(inputs.begin(), inputs.end());
    };
    for (const Argument& argument : node->args()) argument.ForEachNode(visit);
    for (const auto& [name, argument] : node->kwargs()) argument.ForEachNode(visit);
    if (null) return fail(node, " takes a null node");
    if (stranger != nullptr) return fail(node, " takes %", stranger->name(), ", which is not in this graph");
    if (inputs.size() != node->num_inputs_)
      return fail(node, " lists ", node->num_inputs_, " inputs, but its arguments have ", inputs.size());
    for (std::uint32_t i = 0; i < node->num_inputs_; ++i) {
      const NodeUse& use = node->uses_[i];
      if (use.input != inputs[i] || use.user != node)
        return fail(node, " lists an input that is not %", inputs[i]->name(), ", which its arguments have");
      if (!earlier[use.input->id_]) return fail(node, " takes %", use.input->name(), " before its definition");
    }
    earlier[node->id_] = true;

    // Its users' list holds uses of it alone, each within its user's own block. Each use being in one list, and there being as many in
    // the lists as in the blocks, no list lacks one.
    const NodeUse* before = nullptr;
    std::size_t users = 0;
    for (const NodeUse* use = node->first_use_; use != nullptr; before = use, use = use->next) {
      if (++users > node->num_users_ || use->prev != before || use->input != node || !Owns(use->user)) break;
      if (use < use->user->uses_ || use >= use->user->uses_ + use->user->num_inputs_) break;
    }
    if (users != node->num_users_ || before != node->last_use_) {
      return fail(node, " lists ", node->num_users_, " user(s) that are not exactly the nodes that take it");
    }

    // Its neighbours in the table of the target.
    const Node* same = node->prev_same_target_;
    if ((same == nullptr ? target->first : same->next_same_target_) != node ||
        (same != nullptr && (same->target_ != target || same->erased_))) {
      return fail(node, " is not where it should be in the table of its target");
    }
    if (node->next_same_target_ == nullptr && target->last != node)
      return fail(node, " is not where it should be in the table of its target");
    previous = node;
  }
  if (previous != back()) {
    const Node* last = previous != nullptr ? previous : back();
    return fail(last, " is not linked as the last node");
  }
  if (count != size_) return absl::FailedPreconditionError(absl::StrCat("the graph lists ", count, " nodes, not ", size_));
  std::size_t inputs_total = 0;
  std::size_t users_total = 0;
  for (const Node* node : nodes()) {
    inputs_total += node->num_inputs_;
    users_total += node->num_users_;
  }
  if (inputs_total != users_total) {
    for (const Node* node : nodes()) {
      for (const Node* input : node->all_input_nodes()) {
        const UserRange users = input->users();
        if (std::find(users.begin(), users.end(), node) == users.end())
          return fail(input, " doesn't list %", node->name(), " among its users");
      }
    }
    return absl::FailedPreconditionError(
        absl::StrCat("the graph's nodes list ", users_total, " users, but take ", inputs_total, " inputs"));
  }
  std::size_t in_tables = 0;
  for (const TargetEntry& entry : targets_) in_tables += entry.size;
  if (in_tables != size_)
    return absl::FailedPreconditionError(absl::StrCat("the tables of targets hold ", in_tables, " nodes, the graph ", size_));
  if (insert_.node != nullptr && !Owns(insert_.node)) return fail(insert_.node, " is the insertion point, but not a node of this graph");
  return absl::OkStatus();
}

}  // namespace ddpopt::fx
