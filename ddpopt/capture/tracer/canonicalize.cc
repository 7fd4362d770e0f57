#include "ddpopt/capture/tracer/canonicalize.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "c10/core/Scalar.h"
#include "c10/util/BFloat16.h"
#include "c10/util/Half.h"
#include "fx_graph/passes/effects.h"

namespace ddpopt {
namespace {

using fx::Argument;
using fx::Node;

c10::OperatorHandle Find(const char* name, const char* overload) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload); }

// The forms' operators, looked up once.
struct Operators {
  c10::OperatorHandle t = Find("aten::t", "");
  c10::OperatorHandle addmm = Find("aten::addmm", "");
  c10::OperatorHandle matmul = Find("aten::matmul", "");
  c10::OperatorHandle add_ = Find("aten::add_", "Tensor");
  c10::OperatorHandle linear = Find("aten::linear", "");
  c10::OperatorHandle empty_like = Find("aten::empty_like", "");
  c10::OperatorHandle fill_ = Find("aten::fill_", "Scalar");
  c10::OperatorHandle sub_ = Find("aten::sub_", "Tensor");
  c10::OperatorHandle rsub = Find("aten::rsub", "Scalar");
  // Those that take a number, and the same with a tensor, for which Python passes the number.
  absl::flat_hash_map<const c10::FunctionSchema*, c10::OperatorHandle> with_tensor;

  Operators() {
    for (const char* name : {"aten::add", "aten::sub", "aten::mul", "aten::div", "aten::floor_divide"}) {
      for (const std::string suffix : {"", "_"}) {
        const std::string in_place = name + suffix;
        const bool plain = in_place == "aten::floor_divide";  // the only one whose overload has no name
        Pair(in_place, "Scalar", plain ? "" : "Tensor");
      }
    }
    for (const char* name : {"aten::div", "aten::div_"}) Pair(name, "Scalar_mode", "Tensor_mode");
  }
  void Pair(const std::string& name, const char* number, const char* tensor) {
    const auto from = c10::Dispatcher::singleton().findSchema({name, number});
    const auto to = c10::Dispatcher::singleton().findSchema({name, tensor});
    if (from.has_value() && to.has_value()) with_tensor.emplace(&from->schema(), *to);
  }

  static const Operators& Get() {
    static const Operators* operators = new Operators;
    return *operators;
  }
};

bool Calls(const Node* node, const c10::OperatorHandle& op) {
  return node != nullptr && node->is_operator() && node->operator_handle() == op;
}

// The node's value if it is known to be one tensor.
const at::Tensor* ValueOf(const Node* node) {
  if (node == nullptr || !node->has_meta() || !node->meta().val.isTensor() || !node->meta().val.toTensor().defined()) return nullptr;
  return &node->meta().val.toTensor();
}

// Argument `index` if it is a node; the call must have exactly `count` of them, all by position.
Node* NodeArgument(const Node* node, std::size_t index, std::size_t count) {
  if (node->args().size() != count || !node->kwargs().empty()) return nullptr;
  return node->args()[index].node();
}

class Rewriter {
 public:
  explicit Rewriter(fx::GraphModule& module) : graph_(module.graph()), before_(graph_) {
    fx::Effects effects(module);
    Before count;
    for (Node* node : graph_.nodes()) {
      before_[node] = count;
      const fx::NodeEffects of = effects.Of(*node);
      if (!of.pure()) ++count.effects;
      if (of.modes) ++count.modes;
    }
  }

  absl::StatusOr<bool> Run() {
    const Operators& ops = Operators::Get();
    for (Node* node = graph_.front(); node != nullptr;) {
      Node* const next = node->next();
      if (node->is_operator()) {
        if (Calls(node, ops.addmm)) {
          DDPOPT_RETURN_IF_ERROR(Addmm(node));
        } else if (Calls(node, ops.matmul)) {
          DDPOPT_RETURN_IF_ERROR(Matmul(node));
        } else if (Calls(node, ops.sub_)) {
          DDPOPT_RETURN_IF_ERROR(ReverseSubtraction(node));
        } else if (const auto found = ops.with_tensor.find(&node->operator_handle().schema()); found != ops.with_tensor.end()) {
          NumberAsTensor(node, found->second);
        }
      }
      // The matmul's add_ may have gone with it.
      Node* following = next;
      while (following != nullptr && following->erased()) following = following->next();
      node = following;
    }
    return changed_;
  }

 private:
  // Nodes with an effect that come earlier in the graph.
  struct Before {
    int effects = 0;
    int modes = 0;
  };

  // The matrix whose transpose the node is, if a linear at `user` may read it instead.
  Node* Transposed(Node* node, const Node* user) {
    const Operators& ops = Operators::Get();
    if (node == nullptr || !Calls(node, ops.t)) return nullptr;
    Node* weight = NodeArgument(node, 0, 1);
    const at::Tensor* value = ValueOf(weight);
    if (value == nullptr || value->dim() != 2) return nullptr;
    // The transpose reads the same memory whenever it was made; but under another grad mode it would be another function of the weight.
    return before_.at(node).modes == before_.at(user).modes ? weight : nullptr;
  }

  static bool IsBias(const Node* bias, const Node* weight) {
    const at::Tensor* value = ValueOf(bias);
    return value != nullptr && value->dim() == 1 && value->size(0) == ValueOf(weight)->size(0);
  }

  static bool OneDtype(const Node* x, const Node* weight, const Node* bias) {
    const at::Tensor* value = ValueOf(x);
    if (value == nullptr || value->dim() == 0 || value->layout() != at::kStrided) return false;
    const auto same = [&](const Node* other) {
      const at::Tensor* tensor = ValueOf(other);
      return tensor->scalar_type() == value->scalar_type() && tensor->device() == value->device() && tensor->layout() == at::kStrided;
    };
    return same(weight) && (bias == nullptr || same(bias));
  }

  absl::Status Addmm(Node* addmm) {
    Node* bias = NodeArgument(addmm, 0, 3);
    Node* x = NodeArgument(addmm, 1, 3);
    Node* transpose = NodeArgument(addmm, 2, 3);
    Node* weight = Transposed(transpose, addmm);
    if (bias == nullptr || x == nullptr || weight == nullptr || !IsBias(bias, weight) || !OneDtype(x, weight, bias)) {
      return absl::OkStatus();
    }
    return Replace({addmm}, transpose, Operators::Get().linear, {x, weight, bias}, "linear");
  }

  absl::Status Matmul(Node* matmul) {
    const Operators& ops = Operators::Get();
    Node* x = NodeArgument(matmul, 0, 2);
    Node* transpose = NodeArgument(matmul, 1, 2);
    Node* weight = Transposed(transpose, matmul);
    if (x == nullptr || weight == nullptr || !OneDtype(x, weight, nullptr)) return absl::OkStatus();
    if (matmul->users().size() == 1) {
      Node* add = matmul->users().front();
      if (Calls(add, ops.add_) && NodeArgument(add, 0, 2) == matmul) {
        Node* bias = NodeArgument(add, 1, 2);
        if (bias != nullptr && bias != matmul && IsBias(bias, weight) && OneDtype(x, weight, bias) &&
            before_.at(add).effects == before_.at(matmul).effects) {
          return Replace({matmul, add}, transpose, ops.linear, {x, weight, bias}, "linear");
        }
      }
    }
    return Replace({matmul}, transpose, ops.linear, {x, weight}, "linear");
  }

  // 1 - x, which C++ computes as a tensor of ones from which x is subtracted.
  absl::Status ReverseSubtraction(Node* sub) {
    const Operators& ops = Operators::Get();
    Node* fill = NodeArgument(sub, 0, 2);
    Node* x = NodeArgument(sub, 1, 2);
    if (fill == nullptr || x == nullptr || x == fill || !Calls(fill, ops.fill_) || fill->users().size() != 1) return absl::OkStatus();
    Node* empty = NodeArgument(fill, 0, 2);
    if (!Calls(empty, ops.empty_like) || empty->users().size() != 1 || empty->args().size() != 1 || empty->args()[0].node() != x) {
      return absl::OkStatus();
    }
    for (const auto& [name, value] : empty->kwargs()) {
      if (name != "memory_format" || value.constant() != c10::IValue(static_cast<int64_t>(at::MemoryFormat::Preserve))) {
        return absl::OkStatus();
      }
    }
    const c10::IValue& number = fill->args()[1].constant();
    const at::Tensor* value = ValueOf(x);
    if (value == nullptr || !value->is_non_overlapping_and_dense() || !number.isScalar() || !Representable(number.toScalar(), *value)) {
      return absl::OkStatus();
    }
    // Of the three, fill_ alone is an effect before the last.
    if (before_.at(sub).effects - before_.at(empty).effects != 1 || before_.at(sub).modes != before_.at(empty).modes) {
      return absl::OkStatus();
    }
    return Replace({empty, fill, sub}, nullptr, ops.rsub, {x, number}, "rsub");
  }

  // Whether a tensor of that dtype holds the number as it is: where it doesn't, filling a tensor rounds it, and subtracting from a number
  // may not.
  static bool Representable(const c10::Scalar& number, const at::Tensor& like) {
    const at::ScalarType dtype = like.scalar_type();
    if (c10::isIntegralType(dtype, /*includeBool=*/false)) return dtype == at::kLong && number.isIntegral(/*includeBool=*/false);
    if (!number.isFloatingPoint() && !number.isIntegral(/*includeBool=*/false)) return false;
    const double value = number.toDouble();
    switch (dtype) {
      case at::kDouble:
        return true;
      case at::kFloat:
        return static_cast<double>(static_cast<float>(value)) == value;
      case at::kHalf:
        return static_cast<double>(static_cast<float>(c10::Half(static_cast<float>(value)))) == value;
      case at::kBFloat16:
        return static_cast<double>(static_cast<float>(c10::BFloat16(static_cast<float>(value)))) == value;
      default:
        return false;
    }
  }

  void NumberAsTensor(Node* node, const c10::OperatorHandle& op) {
    const c10::FunctionSchema& schema = node->operator_handle().schema();
    std::vector<Argument> args;
    fx::Kwargs kwargs = node->kwargs();
    for (std::size_t i = 0; i < node->args().size(); ++i) {
      // What the overload with a tensor takes by name only: alpha, rounding_mode.
      if (i < 2) {
        args.push_back(node->args()[i]);
      } else {
        kwargs.emplace_back(schema.arguments()[i].name(), node->args()[i]);
      }
    }
    node->set_target(fx::OperatorTarget{op});
    node->set_args(args);
    node->set_kwargs(std::move(kwargs));
    changed_ = true;
  }

  // Puts a call in the place of the last of `nodes`, whose value it takes over; the transpose goes too if nobody else uses it.
  absl::Status Replace(std::vector<Node*> nodes, Node* transpose, const c10::OperatorHandle& op, std::vector<Argument> args,
                       const char* name) {
    Node* last = nodes.back();
    Node* call = nullptr;
    {
      const auto scope = graph_.InsertingBefore(last);
      call = graph_.CallFunction(op, args, {}, name);
    }
    const Before before = before_.at(last);  // a copy: the table grows for the new node
    before_[call] = before;
    call->meta() = fx::CopyMeta(last->meta());
    last->ReplaceAllUsesWith(call);
    DDPOPT_RETURN_IF_ERROR(graph_.EraseNodes(nodes));
    if (transpose != nullptr && transpose->users().empty()) DDPOPT_RETURN_IF_ERROR(graph_.EraseNode(transpose));
    changed_ = true;
    return absl::OkStatus();
  }

  fx::Graph& graph_;
  fx::NodeTable<Before> before_;
  bool changed_ = false;
};

absl::StatusOr<bool> Canonicalize(fx::GraphModule& module, absl::flat_hash_set<const fx::GraphModule*>& done) {
  bool changed = false;
  if (!done.insert(&module).second) return changed;
  for (const auto& [path, submodule] : module.submodules()) {
    if (submodule.graph_module == nullptr) continue;
    DDPOPT_ASSIGN_OR_RETURN(const bool nested, Canonicalize(*submodule.graph_module, done));
    changed |= nested;
  }
  DDPOPT_ASSIGN_OR_RETURN(const bool own, Rewriter(module).Run());
  return changed || own;
}

}  // namespace

absl::StatusOr<bool> CanonicalizeModuleForms(fx::GraphModule& module) {
  absl::flat_hash_set<const fx::GraphModule*> done;
  return Canonicalize(module, done);
}

absl::Status CanonicalizePass::Register(fx::PassRegistry& registry) {
  return registry.Add("canonicalize", "what C++ modules emit in the form of torch.export: linear, numbers as tensors, rsub",
                      [](const fx::PassOptions& given) -> absl::StatusOr<std::unique_ptr<fx::Pass>> {
                        DDPOPT_RETURN_IF_ERROR(fx::CheckPassOptions(given, {}));
                        return std::make_unique<CanonicalizePass>();
                      });
}

}  // namespace ddpopt
