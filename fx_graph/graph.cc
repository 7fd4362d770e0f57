#include "fx_graph/graph.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"

namespace ddpopt::fx {
namespace {

// Python's keywords and builtins, and the names torch.fx keeps for its generated code: a node of that name gets a suffix.
bool IsReserved(absl::string_view name) {
  static const auto* reserved = new absl::flat_hash_set<absl::string_view>{
      "__build_class__", "__debug__", "__doc__", "__import__", "__loader__", "__name__", "__package__", "__spec__", "abs", "aiter",
      "all", "and", "anext", "any", "ArithmeticError", "as", "ascii", "assert", "AssertionError", "async", "AttributeError", "await",
      "BaseException", "BaseExceptionGroup", "bin", "BlockingIOError", "bool", "break", "breakpoint", "BrokenPipeError", "BufferError",
      "bytearray", "bytes", "BytesWarning", "callable", "ChildProcessError", "chr", "class", "classmethod", "compile", "complex", "copyright",
      "ConnectionAbortedError", "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "continue", "credits", "def", "del",
      "delattr", "DeprecationWarning", "device", "dict", "dir", "divmod", "elif", "Ellipsis", "else", "EncodingWarning", "enumerate",
      "EnvironmentError", "EOFError", "eval", "except", "Exception", "ExceptionGroup", "exec", "exit", "False", "FileExistsError",
      "FileNotFoundError", "filter", "finally", "float", "FloatingPointError", "for", "format", "from", "frozenset", "FutureWarning",
      "fx_pytree", "GeneratorExit", "getattr", "global", "globals", "hasattr", "hash", "help", "hex", "id", "if", "import",
      "ImportError", "ImportWarning", "in", "IndentationError", "IndexError", "inf", "input", "int", "InterruptedError", "IOError",
      "is", "IsADirectoryError", "isinstance", "issubclass", "iter", "KeyboardInterrupt", "KeyError", "lambda", "len", "license", "list",
      "locals", "LookupError", "map", "max", "MemoryError", "memoryview", "min", "ModuleNotFoundError", "NameError", "nan", "next",
      "None", "NoneType", "nonlocal", "not", "NotADirectoryError", "NotImplemented", "NotImplementedError", "object", "oct", "open",
      "or", "ord", "OSError", "OverflowError", "pass", "PendingDeprecationWarning", "PermissionError", "pow", "print",
      "ProcessLookupError", "property", "pytree", "quit", "raise", "range", "RecursionError", "ReferenceError", "repr", "ResourceWarning",
      "return", "reversed", "round", "RuntimeError", "RuntimeWarning", "set", "setattr", "slice", "sorted", "staticmethod",
      "StopAsyncIteration", "StopIteration", "str", "sum", "super", "SyntaxError", "SyntaxWarning", "SystemError", "SystemExit",
      "TabError", "TimeoutError", "torch", "True", "try", "tuple", "type", "TypeError", "UnboundLocalError", "UnicodeDecodeError",
      "UnicodeEncodeError", "UnicodeError", "UnicodeTranslateError", "UnicodeWarning", "UserWarning", "ValueError", "vars", "Warning",
      "while", "with", "yield", "ZeroDivisionError", "zip"};
  return reserved->contains(name);
}

// "layerNorm" -> "layer_norm".
std::string SnakeCase(absl::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i > 0 && absl::ascii_isupper(text[i]) && absl::ascii_islower(text[i - 1])) result += '_';
    result += absl::ascii_tolower(text[i]);
  }
  return result;
}

// Each run of characters that Python identifiers can't have becomes one '_'.
std::string Identifier(absl::string_view hint) {
  std::string result;
  bool illegal = false;
  for (const char c : hint) {
    const bool legal = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
    if (legal || !illegal) result += legal ? c : '_';
    illegal = !legal;
  }
  if (result.empty()) return "_unnamed";
  if (absl::ascii_isdigit(static_cast<unsigned char>(result[0]))) result.insert(0, "_");
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
    const std::size_t dot = text.rfind('.');
    if (dot != std::string::npos && dot + 1 < text.size()) text = text.substr(dot + 1);
  } else if (text.size() >= 4 && absl::StartsWith(text, "__") && absl::EndsWith(text, "__")) {
    text = text.substr(2, text.size() - 4);
  }
  return SnakeCase(text);
}

// "add_1" -> ("add", 1); false if the name has no such suffix.
bool SplitSuffix(const std::string& name, std::string* base, int* number) {
  const std::size_t underscore = name.rfind('_');
  if (underscore == std::string::npos || underscore == 0 || underscore + 1 == name.size() || name.size() - underscore > 9) return false;
  if (!std::all_of(name.begin() + underscore + 1, name.end(), absl::ascii_isdigit)) return false;
  if (!absl::SimpleAtoi(name.substr(underscore + 1), number)) return false;
  *base = name.substr(0, underscore);
  return true;
}

}  // namespace

Graph::Graph() = default;
Graph::~Graph() = default;

bool Graph::Owns(const Node* node) const { return node != nullptr && node->graph_ == this && !node->erased_; }

std::string Graph::UniqueName(absl::string_view hint) {
  std::string name = Identifier(hint);
  std::string base = name;
  int number = 0;
  if (!SplitSuffix(name, &base, &number) || names_.contains(name)) {
    const auto last = next_suffix_.find(name);
    number = last == next_suffix_.end() ? 0 : last->second;
    if (IsReserved(name)) name = absl::StrCat(base, "_", ++number);
  }
  while (names_.contains(name)) name = absl::StrCat(base, "_", ++number);
  names_.insert(name);
  next_suffix_[base] = number;
  return name;
}

Node* Graph::output_node() const {
  for (Node* node = last_; node != nullptr; node = node->prev_) {
    if (node->op_ == Op::kOutput) return node;
  }
  return nullptr;
}

Node* Graph::CreateNode(Op op, Target target, std::vector<Argument> args, Kwargs kwargs, absl::string_view name_hint) {
  std::string name = UniqueName(name_hint.empty() ? NameFromTarget(target) : std::string(name_hint));
  storage_.push_back(std::unique_ptr<Node>(new Node(this, op, std::move(name), std::move(target))));
  Node* node = storage_.back().get();
  node->Update(std::move(args), std::move(kwargs));
  node->next_ = insert_before_;
  node->prev_ = insert_before_ != nullptr ? insert_before_->prev_ : last_;
  (node->prev_ != nullptr ? node->prev_->next_ : first_) = node;
  (node->next_ != nullptr ? node->next_->prev_ : last_) = node;
  ++size_;
  ++version_;
  return node;
}

Node* Graph::Placeholder(absl::string_view name) { return CreateNode(Op::kPlaceholder, PathTarget{std::string(name)}); }

Node* Graph::GetAttr(absl::string_view path) { return CreateNode(Op::kGetAttr, PathTarget{std::string(path)}); }

Node* Graph::CallFunction(c10::OperatorHandle op, std::vector<Argument> args, Kwargs kwargs, absl::string_view name_hint) {
  return CreateNode(Op::kCallFunction, OperatorTarget{std::move(op)}, std::move(args), std::move(kwargs), name_hint);
}

Node* Graph::CallModule(absl::string_view path, std::vector<Argument> args, Kwargs kwargs) {
  return CreateNode(Op::kCallModule, PathTarget{std::string(path)}, std::move(args), std::move(kwargs));
}

Node* Graph::CallMethod(absl::string_view method, std::vector<Argument> args, Kwargs kwargs) {
  return CreateNode(Op::kCallMethod, MethodTarget{std::string(method)}, std::move(args), std::move(kwargs));
}

Node* Graph::Output(Argument result) {
  std::vector<Argument> args;
  args.push_back(std::move(result));
  return CreateNode(Op::kOutput, PathTarget{"output"}, std::move(args));
}

Node* Graph::SetInsertBefore(Node* node) {
  CHECK(node == nullptr || Owns(node)) << "the insertion point %" << node->name_ << " is not a node of this graph";
  return std::exchange(insert_before_, node);
}

absl::Status Graph::EraseNode(Node* node) {
  if (node == nullptr) return absl::InvalidArgumentError("can't erase a null node");
  if (node->graph_ != this) return absl::InvalidArgumentError(absl::StrCat("can't erase node %", node->name_, ": it belongs to another graph"));
  if (node->erased_) return absl::InvalidArgumentError(absl::StrCat("can't erase node: %", node->name_, " is erased already"));
  if (!node->users_.empty()) {
    const auto append_name = [](std::string* out, const Node* user) { absl::StrAppend(out, "%", user->name()); };
    return absl::FailedPreconditionError(
        absl::StrCat("can't erase node: %", node->name_, " still has users: ", absl::StrJoin(node->users_, ", ", append_name)));
  }
  node->Update({}, {});
  if (insert_before_ == node) insert_before_ = node->next_;
  (node->prev_ != nullptr ? node->prev_->next_ : first_) = node->next_;
  (node->next_ != nullptr ? node->next_->prev_ : last_) = node->prev_;
  node->prev_ = nullptr;
  node->next_ = nullptr;
  node->meta_ = NodeMeta();  // lets go of its tensors; the node itself stays, so that its address isn't reused
  node->erased_ = true;
  --size_;
  ++version_;
  return absl::OkStatus();
}

Node* Graph::CopyNode(const Node& node, absl::FunctionRef<Argument(Node*)> map) {
  std::vector<Argument> args;
  args.reserve(node.args_.size());
  for (const Argument& argument : node.args_) args.push_back(argument.Map(map));
  Kwargs kwargs;
  kwargs.reserve(node.kwargs_.size());
  for (const auto& [name, argument] : node.kwargs_) kwargs.emplace_back(name, argument.Map(map));
  Node* copy = CreateNode(node.op_, node.target_, std::move(args), std::move(kwargs), node.name_);
  copy->meta_ = node.meta_;
  return copy;
}

absl::flat_hash_map<const Node*, Node*> Graph::CopyFrom(const Graph& other) {
  absl::flat_hash_map<const Node*, Node*> copies;
  copies.reserve(other.size());
  const std::size_t count = other.size();  // so that a graph can be copied into itself
  Node* node = other.front();
  for (std::size_t i = 0; i < count; ++i) {
    copies[node] = CopyNode(*node, [&](Node* input) {
      const auto found = copies.find(input);
      CHECK(found != copies.end()) << "argument %" << input->name() << " of node %" << node->name() << " comes after its use";
      return Argument(found->second);
    });
    node = node->next();
  }
  return copies;
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

absl::Status Graph::Lint() const {
  const auto fail = [](const Node* node, const auto&... parts) {
    return absl::FailedPreconditionError(absl::StrCat("node %", node->name_, parts...));
  };
  absl::flat_hash_set<absl::string_view> names;
  absl::flat_hash_set<const Node*> earlier;
  absl::flat_hash_map<const Node*, std::vector<const Node*>> users;
  const Node* previous = nullptr;
  const Node* output = nullptr;
  for (const Node* node = first_; node != nullptr; node = node->next_) {
    if (node->graph_ != this) return fail(node, " belongs to another graph");
    if (node->erased_) return fail(node, " was erased but is still listed");
    if (node->prev_ != previous) return fail(node, " has a wrong link to the node before it");
    if (!names.insert(node->name_).second) return fail(node, " shares its name with an earlier node");
    if (output != nullptr) {
      if (node->op_ == Op::kOutput) return fail(node, " is a second output, after %", output->name_);
      return fail(node, " comes after the output, %", output->name_);
    }
    switch (node->op_) {
      case Op::kPlaceholder:
      case Op::kGetAttr:
      case Op::kCallModule:
        if (!std::holds_alternative<PathTarget>(node->target_)) return fail(node, " (", OpName(node->op_), ") has a target that is no path");
        break;
      case Op::kCallMethod:
        if (!std::holds_alternative<MethodTarget>(node->target_)) return fail(node, " (call_method) has a target that is no method");
        break;
      case Op::kCallFunction:
        if (std::holds_alternative<PathTarget>(node->target_) || std::holds_alternative<MethodTarget>(node->target_)) {
          return fail(node, " (call_function) has a target that is no function");
        }
        break;
      case Op::kOutput:
        if (node->args_.size() != 1 || !node->kwargs_.empty()) return fail(node, " (output) must have exactly one argument");
        output = node;
        break;
    }
    for (const Node* input : node->all_input_nodes()) {
      if (!Owns(input)) return fail(node, " takes %", input->name_, ", which is not in this graph");
      if (!earlier.contains(input)) return fail(node, " takes %", input->name_, " before its definition");
      users[input].push_back(node);
    }
    earlier.insert(node);
    previous = node;
    if (earlier.size() > size_) return fail(node, " is one more than the graph's ", size_, " nodes");
  }
  if (previous != last_) return fail(previous != nullptr ? previous : last_, " is not linked as the last node");
  if (earlier.size() != size_) return absl::FailedPreconditionError(absl::StrCat("the graph lists ", earlier.size(), " nodes, not ", size_));
  for (const Node* node : nodes()) {
    std::vector<const Node*>& expected = users[node];
    std::vector<const Node*> actual(node->users_.begin(), node->users_.end());
    std::sort(expected.begin(), expected.end());
    std::sort(actual.begin(), actual.end());
    if (actual != expected) return fail(node, " lists ", actual.size(), " user(s) that are not exactly the ", expected.size(), " nodes that take it");
  }
  return absl::OkStatus();
}

}  // namespace ddpopt::fx
