#include "testing/random_graph.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "base/logging.h"
#include "c10/core/GradMode.h"
#include "testing/calls.h"

namespace ddpopt::testing {
namespace {

using c10::IValue;
using fx::Argument;
using fx::Node;

constexpr int64_t kRows = 2;
constexpr int64_t kColumns = 3;

Argument Int(int64_t value) { return IValue(value); }

class Maker {
 public:
  explicit Maker(std::uint64_t seed) : random_(seed) {
    for (int i = 0; i < 2; ++i) {
      const at::Tensor input = Fresh();
      result_.inputs.push_back(input);
      Add(g().Placeholder("x"), input.clone());
      live_inputs_.push_back(pool_.back().tensor);
    }
    Check(result_.module->AddAttr("w", Fresh(), fx::GraphModule::AttrKind::kParameter));
    Check(result_.module->AddAttr("v", Fresh(), fx::GraphModule::AttrKind::kBuffer));
    auto nested = std::make_shared<fx::GraphModule>();
    Node* a = nested->graph().Placeholder("a");
    Node* b = nested->graph().Placeholder("b");
    Node* sum = nested->graph().CallFunction(FindOperator("aten::add", "Tensor"), {a, b});
    Node* again = nested->graph().CallFunction(FindOperator("aten::add", "Tensor"), {a, b});
    nested->graph().CallFunction(FindOperator("aten::exp"), {sum});
    nested->graph().Output(nested->graph().CallFunction(FindOperator("aten::mul", "Tensor"), {sum, again}));
    Check(result_.module->AddSubmodule("nested", {nested, nullptr}));
  }

  RandomGraph Make(int steps) {
    for (int i = 0; i < steps; ++i) Step();
    std::vector<Argument> outputs;
    std::vector<IValue> expected;
    const int count = Below(4) + 1;
    for (int i = 0; i < count; ++i) {
      const Value& value = Pick();
      outputs.emplace_back(value.node);
      expected.emplace_back(value.tensor);
    }
    // (a, [b, c, ...], 7)
    std::vector<Argument> inner(outputs.begin() + 1, outputs.end());
    c10::impl::GenericList inner_expected(c10::AnyType::get());
    for (std::size_t i = 1; i < expected.size(); ++i) inner_expected.push_back(expected[i].toTensor().clone());
    g().Output(Argument::Tuple({outputs[0], Argument::List(std::move(inner)), Int(7)}));
    result_.expected = c10::ivalue::Tuple::create({IValue(expected[0].toTensor().clone()), IValue(inner_expected), IValue(7)});
    for (const at::Tensor& input : live_inputs_) result_.expected_inputs.emplace_back(input.clone());
    Check(result_.module->Lint());
    return std::move(result_);
  }

 private:
  struct Value {
    Node* node;
    at::Tensor tensor;
  };

  static void Check(const absl::Status& status) { CHECK(status.ok()) << status; }
  fx::Graph& g() { return result_.module->graph(); }
  int Below(int limit) { return static_cast<int>(random_() % limit); }
  // Small integers, so that sums and products stay exact for a while and bits can be compared.
  at::Tensor Fresh() {
    std::vector<float> values;
    for (int64_t i = 0; i < kRows * kColumns; ++i) values.push_back(static_cast<float>(Below(9) - 4));
    return at::tensor(values).view({kRows, kColumns});
  }
  // A recent value more often than an old one.
  const Value& Pick() {
    const std::size_t size = pool_.size();
    return pool_[Below(2) == 0 ? size - 1 - Below(static_cast<int>(std::min<std::size_t>(size, 4))) : Below(static_cast<int>(size))];
  }
  void Add(Node* node, at::Tensor tensor) {
    CHECK(tensor.sizes() == c10::IntArrayRef({kRows, kColumns})) << tensor.sizes();
    pool_.push_back({node, std::move(tensor)});
  }
  Node* Call(const char* name, const char* overload, std::vector<Argument> args, fx::Kwargs kwargs = {}) {
    return g().CallFunction(FindOperator(name, overload), std::move(args), std::move(kwargs));
  }
  Node* Item(Node* from, int64_t index) {
    return g().CreateNode(fx::Op::kCallFunction, fx::OpaqueTarget{"operator.getitem"}, {from, IValue(index)}, {}, "getitem");
  }
  // Keeps magnitudes down.
  void AddBounded(Node* node, const at::Tensor& tensor) {
    Add(Call("aten::clamp", "", {node, Int(-100), Int(100)}), at::clamp(tensor, -100, 100));
  }

  void Step() {
    const Value x = Pick(), y = Pick();
    const int64_t k = Below(5) - 2;
    switch (Below(20)) {
      case 0:
        return Add(Call("aten::relu", "", {x.node}), at::relu(x.tensor));
      case 1:
        return AddBounded(Call("aten::add", "Tensor", {x.node, y.node}, {{"alpha", Int(k)}}), at::add(x.tensor, y.tensor, k));
      case 2:
        return AddBounded(Call("aten::mul", "Tensor", {x.node, IValue(k + 0.5)}), at::mul(x.tensor, k + 0.5));
      case 3:
        return AddBounded(Call("aten::add", "Tensor", {x.node, x.node}), at::add(x.tensor, x.tensor));
      case 4:
        return AddBounded(Call("aten::sub", "Tensor", {}, {{"other", y.node}, {"self", x.node}}), at::sub(x.tensor, y.tensor));
      case 5: {
        Node* cat = Call("aten::cat", "", {Argument::List({x.node, y.node, x.node}), Int(0)});
        const at::Tensor tensor = at::cat({x.tensor, y.tensor, x.tensor}, 0);
        return Add(Call("aten::slice", "Tensor", {cat, Int(0), Int(1), Int(3)}), at::slice(tensor, 0, 1, 3));
      }
      case 6: {
        Node* max = Call("aten::max", "dim", {x.node, Int(1)}, {{"keepdim", IValue(true)}});
        const auto [values, indices] = at::max(x.tensor, 1, true);
        if (Below(2) == 0) {
          Node* expanded = Call("aten::expand", "", {Item(max, 0), Argument::List({Int(kRows), Int(kColumns)})});
          return Add(Call("aten::clone", "", {expanded}), values.expand({kRows, kColumns}).clone());
        }
        return AddBounded(Call("aten::add", "Tensor", {x.node, Item(max, -1)}), at::add(x.tensor, indices));
      }
      case 7: {
        // A write, seen through everything that shares the memory.
        Node* copy = Call("aten::clone", "", {x.node});
        at::Tensor tensor = x.tensor.clone();
        Call("aten::add_", "Tensor", {copy, y.node});
        tensor.add_(y.tensor);
        return AddBounded(copy, tensor);
      }
      case 8: {
        Node* copy = Call("aten::clone", "", {x.node});
        at::Tensor tensor = x.tensor.clone();
        Node* row = Call("aten::select", "int", {copy, Int(0), Int(Below(kRows))});
        const int64_t index = row->args()[2].constant().toInt();
        Add(copy, tensor);
        Call("aten::mul_", "Scalar", {row, IValue(0.5)});
        tensor.select(0, index).mul_(0.5);
        return;
      }
      case 9: {
        // Of whatever there is, inputs included: clamp_ keeps it bounded.
        Call("aten::clamp_", "", {x.node, Int(-3 - Below(3)), Argument()});
        const int64_t low = g().back()->args()[1].constant().toInt();
        at::Tensor(x.tensor).clamp_(low);
        return;
      }
      case 10:
        return Add(Call("aten::view", "", {Call("aten::view", "", {x.node, Argument::List({Int(-1)})}), Argument::List({Int(kRows), Int(kColumns)})}),
                   x.tensor.view({-1}).view({kRows, kColumns}));
      case 11: {
        Node* transposed = Call("aten::t", "", {x.node});
        Node* reshaped = Call("aten::reshape", "", {transposed, Argument::List({Int(kRows), Int(kColumns)})});
        return Add(Call("aten::contiguous", "", {reshaped}), x.tensor.t().reshape({kRows, kColumns}).contiguous());
      }
      case 12: {
        Node* split = Call("aten::split", "Tensor", {x.node, Int(1)});
        Node* swapped = Call("aten::cat", "", {Argument::Tuple({Item(split, 1), Item(split, 0)})});
        return Add(swapped, at::cat({x.tensor.select(0, 1).unsqueeze(0), x.tensor.select(0, 0).unsqueeze(0)}));
      }
      case 13: {
        // A copy, as attributes must survive the run.
        const char* path = Below(2) == 0 ? "w" : "v";
        return Add(Call("aten::clone", "", {g().GetAttr(path)}), result_.module->GetAttr(path)->value.toTensor().clone());
      }
      case 14: {
        const at::Tensor sum = x.tensor + y.tensor;
        return AddBounded(g().CallModule("nested", {x.node, y.node}), sum * sum);
      }
      case 15: {
        Node* less = Call("aten::lt", "Scalar", {x.node, IValue(k)});
        return Add(Call("aten::where", "self", {less, x.node, y.node}), at::where(x.tensor < k, x.tensor, y.tensor));
      }
      case 16: {
        Node* stack = Call("aten::stack", "", {Argument::List({x.node, y.node})});
        return AddBounded(Call("aten::sum", "dim_IntList", {stack, Argument::List({Int(0)})}), at::stack({x.tensor, y.tensor}).sum(at::IntArrayRef({0})));
      }
      case 17:
        // Dead, and not worth keeping.
        Call("aten::exp", "", {Call("aten::neg", "", {x.node})});
        return;
      case 18: {
        // An optional list of optional tensors, with None.
        Node* index = Call("aten::arange", "", {Int(kColumns)}, {{"dtype", IValue(static_cast<int64_t>(at::kLong))}});
        c10::List<std::optional<at::Tensor>> indices;
        indices.push_back(std::nullopt);
        indices.push_back(at::arange(kColumns, at::kLong));
        return Add(Call("aten::index", "Tensor", {x.node, Argument::List({Argument(), index})}), at::index(x.tensor, indices));
      }
      default:
        // The same again: a common subexpression, unless x is written in between.
        Add(Call("aten::neg", "", {x.node}), at::neg(x.tensor));
        return Add(Call("aten::neg", "", {x.node}), at::neg(x.tensor));
    }
  }

  std::mt19937_64 random_;
  RandomGraph result_{std::make_shared<fx::GraphModule>(), {}, {}, {}};
  std::vector<Value> pool_;
  std::vector<at::Tensor> live_inputs_;
};

}  // namespace

std::vector<IValue> RandomGraph::CloneInputs() const {
  std::vector<IValue> clones;
  for (const IValue& input : inputs) clones.emplace_back(input.toTensor().clone());
  return clones;
}

RandomGraph MakeRandomGraph(std::uint64_t seed, int steps) {
  const at::NoGradGuard no_grad;
  return Maker(seed).Make(steps);
}

bool SameValues(const IValue& a, const IValue& b) {
  if (a.isTensor()) return b.isTensor() && a.toTensor().scalar_type() == b.toTensor().scalar_type() && at::equal(a.toTensor(), b.toTensor());
  if (a.isTuple()) return b.isTuple() && SameValues(a.toTupleRef().elements().vec(), b.toTupleRef().elements().vec());
  if (a.isList()) return b.isList() && SameValues(a.toListRef().vec(), b.toListRef().vec());
  return a == b;
}

bool SameValues(const std::vector<IValue>& a, const std::vector<IValue>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!SameValues(a[i], b[i])) return false;
  }
  return true;
}

}  // namespace ddpopt::testing
