#include "interpreter/higher_order.h"

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/select.h"
#include "ATen/ops/stack.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/strip.h"
#include "interpreter/cond_operands.h"
#include "interpreter/interpreter.h"
#include "interpreter/mode_scopes.h"

namespace ddpopt {
namespace {

using c10::IValue;
using Submodule = fx::GraphModule::Submodule;

// The elements of a tuple or list given as one argument.
Interpreter::Values Elements(const char* what, const IValue& value) {
  if (value.isTuple()) return value.toTupleRef().elements().vec();
  TORCH_CHECK(value.isList(), what, " must be a tuple or list, not ", value.tagKind());
  return value.toListRef().vec();
}

// How long the first dimension of all of them is, over which map and scan go.
int64_t Steps(const std::string& what, const Interpreter::Values& xs) {
  int64_t steps = -1;
  for (const IValue& x : xs) {
    TORCH_CHECK(x.isTensor() && x.toTensor().defined() && x.toTensor().dim() > 0, what, " must be tensors of at least one dimension");
    TORCH_CHECK(steps < 0 || x.toTensor().size(0) == steps, what, " must be equally long, but there are ", steps, " and ", x.toTensor().size(0));
    steps = x.toTensor().size(0);
  }
  TORCH_CHECK(steps > 0, what, " hold nothing: what the graph would give isn't known");
  return steps;
}

// The i-th slice of each.
Interpreter::Values Slices(const Interpreter::Values& xs, int64_t i) {
  Interpreter::Values slices;
  for (const IValue& x : xs) slices.emplace_back(at::select(x.toTensor(), 0, i));
  return slices;
}

// Gathers each step's values, and puts each one's along a new first dimension.
class Stacks {
 public:
  explicit Stacks(const std::string& what) : what_(what) {}
  void Add(const Interpreter::Values& values, std::size_t from = 0) {
    columns_.resize(values.size() - from);
    for (std::size_t i = from; i < values.size(); ++i) {
      TORCH_CHECK(values[i].isTensor(), what_, " must give tensors, not ", values[i].tagKind());
      columns_[i - from].push_back(values[i].toTensor());
    }
  }
  void Finish(Interpreter::Values* results) const {
    for (const std::vector<at::Tensor>& column : columns_) results->emplace_back(at::stack(column));
  }

 private:
  const std::string what_;
  std::vector<std::vector<at::Tensor>> columns_;
};

void Append(Interpreter::Values* values, const Interpreter::Values& more) { values->insert(values->end(), more.begin(), more.end()); }

bool Truth(const char* what, const IValue& value) {
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt() != 0;
  if (value.isDouble()) return value.toDouble() != 0;
  TORCH_CHECK(value.isTensor() && value.toTensor().defined(), what, " must be a bool, a number or a tensor, not ", value.tagKind());
  const at::Tensor& tensor = value.toTensor();
  TORCH_CHECK(tensor.numel() == 1, what, " must be a tensor of one element, not of ", tensor.numel());
  return tensor.item().to<bool>();
}

enum class HigherOrder { kCond, kWhileLoop, kSetGradEnabled, kAutocast, kWrap, kInvokeSubgraph, kStrictMode, kHintsWrapper, kMap, kScan, kAssociativeScan };

// The higher-order operators that are executed.
std::optional<HigherOrder> HigherOrderOf(absl::string_view name) {
  static const auto* known = new absl::flat_hash_map<absl::string_view, HigherOrder>{
      {"cond", HigherOrder::kCond},
      {"while_loop", HigherOrder::kWhileLoop},
      {"wrap_with_set_grad_enabled", HigherOrder::kSetGradEnabled},
      {"wrap_with_autocast", HigherOrder::kAutocast},
      {"wrap", HigherOrder::kWrap},
      {"wrap_activation_checkpoint", HigherOrder::kWrap},
      {"tag_activation_checkpoint", HigherOrder::kWrap},
      {"checkpoint", HigherOrder::kWrap},
      {"invoke_subgraph", HigherOrder::kInvokeSubgraph},
      {"strict_mode", HigherOrder::kStrictMode},
      {"hints_wrapper", HigherOrder::kHintsWrapper},
      {"map", HigherOrder::kMap},
      {"map_impl", HigherOrder::kMap},
      {"scan", HigherOrder::kScan},
      {"associative_scan", HigherOrder::kAssociativeScan},
  };
  absl::ConsumePrefix(&name, "torch.ops.higher_order.");
  const auto found = known->find(name);
  return found == known->end() ? std::nullopt : std::make_optional(found->second);
}

}  // namespace

bool CanCallHigherOrder(absl::string_view name) { return HigherOrderOf(name).has_value(); }

IValue Interpreter::RunCond(const IValue& predicate, const Submodule& on_true, const Submodule& on_false, Values operands) {
  return RunSubgraph(Truth("cond: the predicate", predicate) ? on_true : on_false, std::move(operands));
}

IValue Interpreter::RunSubgraph(const Submodule& submodule, Values args) { return CallSubmodule(submodule, std::move(args)); }

IValue Interpreter::RunHigherOrder(const std::string& target, Arguments& arguments) {
  const std::optional<HigherOrder> known = HigherOrderOf(target);
  TORCH_CHECK(known.has_value(), "cannot execute the higher-order target '", target, "'");
  Values& args = arguments.args();
  const auto at_least = [&](std::size_t count) {
    TORCH_CHECK(args.size() >= count, target, ": takes at least ", count, " positional arguments, not ", args.size());
  };
  const auto no_keywords = [&] {
    TORCH_CHECK(arguments.kwargs().empty(), target, ": keyword argument '", arguments.kwargs().front().first, "' is not supported");
  };
  const auto rest = [&](std::size_t from) {
    return Values(std::make_move_iterator(args.begin() + from), std::make_move_iterator(args.end()));
  };

  switch (*known) {
    case HigherOrder::kCond: {
      no_keywords();
      at_least(4);
      Values operands = Elements("cond: the operands", args[3]);
      args[3] = IValue();
      return RunCond(args[0], SubmoduleOf(args[1]), SubmoduleOf(args[2]), TieOperands(std::move(operands)));
    }
    case HigherOrder::kWhileLoop: {
      no_keywords();
      at_least(3);
      const Submodule condition = SubmoduleOf(args[0]), body = SubmoduleOf(args[1]);
      Values carried = Elements("while_loop: the carried inputs", args[2]);
      const Values additional = args.size() > 3 ? Elements("while_loop: the additional inputs", args[3]) : Values();
      args.clear();
      const auto with_additional = [&] {
        Values all = carried;
        all.insert(all.end(), additional.begin(), additional.end());
        return all;
      };
      while (Truth("while_loop: the condition", RunSubgraph(condition, with_additional()))) {
        carried = Elements("while_loop: what the body returns", RunSubgraph(body, with_additional()));
      }
      return c10::ivalue::Tuple::create(std::move(carried));
    }
    case HigherOrder::kMap: {
      no_keywords();
      at_least(2);
      const Submodule body = SubmoduleOf(args[0]);
      const Values xs = Elements("map: the inputs", args[1]);
      const Values others = args.size() > 2 ? Elements("map: the other arguments", args[2]) : Values();
      args.clear();
      Stacks stacks("map: the graph");
      for (int64_t i = 0, steps = Steps("map: the inputs", xs); i < steps; ++i) {
        Values inputs = Slices(xs, i);
        Append(&inputs, others);
        stacks.Add(Elements("map: what the graph returns", RunSubgraph(body, std::move(inputs))));
      }
      Values results;
      stacks.Finish(&results);
      return c10::ivalue::Tuple::create(std::move(results));
    }
    case HigherOrder::kScan: {
      no_keywords();
      at_least(3);
      const Submodule body = SubmoduleOf(args[0]);
      Values carried = Elements("scan: the initial values", args[1]);
      const Values xs = Elements("scan: the inputs", args[2]);
      const Values others = args.size() > 3 ? Elements("scan: the additional inputs", args[3]) : Values();
      args.clear();
      Stacks stacks("scan: the graph");
      const std::size_t carries = carried.size();
      for (int64_t i = 0, steps = Steps("scan: the inputs", xs); i < steps; ++i) {
        Values inputs = std::move(carried);
        Append(&inputs, Slices(xs, i));
        Append(&inputs, others);
        Values outputs = Elements("scan: what the graph returns", RunSubgraph(body, std::move(inputs)));
        TORCH_CHECK(outputs.size() >= carries, "scan: the graph returns ", outputs.size(), " values, fewer than are carried (", carries, ")");
        stacks.Add(outputs, carries);
        outputs.resize(carries);
        carried = std::move(outputs);
      }
      stacks.Finish(&carried);
      return c10::ivalue::Tuple::create(std::move(carried));
    }
    case HigherOrder::kAssociativeScan: {
      no_keywords();
      at_least(2);
      const Submodule body = SubmoduleOf(args[0]);
      const Values xs = Elements("associative_scan: the inputs", args[1]);
      const Values others = args.size() > 2 ? Elements("associative_scan: the additional inputs", args[2]) : Values();
      args.clear();
      const int64_t steps = Steps("associative_scan: the inputs", xs);
      Stacks stacks("associative_scan: the graph");
      Values sofar = Slices(xs, 0);
      stacks.Add(sofar);
      for (int64_t i = 1; i < steps; ++i) {
        Append(&sofar, Slices(xs, i));
        Append(&sofar, others);
        sofar = Elements("associative_scan: what the graph returns", RunSubgraph(body, std::move(sofar)));
        TORCH_CHECK(sofar.size() == xs.size(), "associative_scan: the graph returns ", sofar.size(), " values, not ", xs.size());
        stacks.Add(sofar);
      }
      Values results;
      stacks.Finish(&results);
      return c10::ivalue::Tuple::create(std::move(results));
    }
    case HigherOrder::kSetGradEnabled: {
      no_keywords();
      at_least(2);
      ModeScopes scope;
      scope.Run(ModeScopes::Function::kSetGradEnabled, {args[0]});
      return RunSubgraph(SubmoduleOf(args[1]), rest(2));
    }
    case HigherOrder::kAutocast: {
      no_keywords();
      at_least(5);
      ModeScopes scope;
      scope.Run(ModeScopes::Function::kEnterAutocast, {args[0], args[1], args[2], args[3]});
      return RunSubgraph(SubmoduleOf(args[4]), rest(5));
    }
    case HigherOrder::kWrap:
      // Their keyword arguments say how to recompute, not what.
      at_least(1);
      return RunSubgraph(SubmoduleOf(args[0]), rest(1));
    case HigherOrder::kInvokeSubgraph:
      no_keywords();
      at_least(2);
      return RunSubgraph(SubmoduleOf(args[0]), rest(2));
    case HigherOrder::kStrictMode:
      at_least(2);
      return RunSubgraph(SubmoduleOf(args[0]), Elements("strict_mode: the operands", args[1]));
    case HigherOrder::kHintsWrapper:
      at_least(2);
      TORCH_CHECK(args.size() == 2 || (args[2].isGenericDict() && args[2].toGenericDict().empty()),
                  "hints_wrapper: keyword arguments for the graph are not supported");
      return RunSubgraph(SubmoduleOf(args[0]), Elements("hints_wrapper: the arguments", args[1]));
  }
  return IValue();
}

}  // namespace ddpopt
