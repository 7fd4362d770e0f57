#include "interpreter/plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "ATen/core/jit_type.h"
#include "absl/container/flat_hash_map.h"
#include "c10/util/Exception.h"
#include "fx_graph/constants.h"
#include "interpreter/call_operator.h"
#include "interpreter/get_item.h"

namespace ddpopt {
namespace {

constexpr Plan::Slot kNoSlot = Plan::kNoSlot;

class Planner {
 public:
  explicit Planner(const fx::Graph& graph) : plan_(std::make_shared<Plan>()) {
    plan_->steps.reserve(graph.size());
    plan_->slots.resize(graph.id_limit(), kNoSlot);
    for (const fx::Node* node : graph.nodes()) {
      const auto slot = static_cast<Plan::Slot>(plan_->steps.size());
      plan_->slots[node->id()] = slot;
      plan_->steps.push_back(Plan::Step{node, CodeOf(*node), !node->users().empty(), 0, 0, 0, 0, kNoSlot, 0});
      plan_->placeholders += node->op() == fx::Op::kPlaceholder;
    }
    FindLastUses();
    for (Plan::Step& step : plan_->steps) {
      if (step.code == Plan::Code::kOperator) BindOperator(step);
      if (step.code == Plan::Code::kGetItem) BindGetItem(step);
    }
  }
  std::shared_ptr<const Plan> Take() { return std::move(plan_); }

 private:
  static Plan::Code CodeOf(const fx::Node& node) {
    switch (node.op()) {
      case fx::Op::kPlaceholder:
        return Plan::Code::kPlaceholder;
      case fx::Op::kGetAttr:
        return Plan::Code::kGetAttr;
      case fx::Op::kOutput:
        return Plan::Code::kOutput;
      case fx::Op::kCallFunction:
        if (node.is_operator()) return Plan::Code::kOperator;
        if (IsGetItem(node.target())) return Plan::Code::kGetItem;
        return Plan::Code::kCall;
      default:
        return Plan::Code::kCall;
    }
  }

  // Fills each step's `frees`: what no later step takes.
  void FindLastUses() {
    constexpr std::uint32_t kNone = static_cast<std::uint32_t>(-1);
    std::vector<std::uint32_t> last_user(plan_->steps.size(), kNone);
    for (std::uint32_t user = 0; user < plan_->steps.size(); ++user) {
      for (const fx::Node* input : plan_->steps[user].node->all_input_nodes()) last_user[plan_->slots[input->id()]] = user;
    }
    // Counting sort by user.
    for (const std::uint32_t user : last_user) {
      if (user != kNone) ++plan_->steps[user].free_count;
    }
    std::uint32_t start = 0;
    for (Plan::Step& step : plan_->steps) {
      step.first_free = start;
      start += step.free_count;
      step.free_count = 0;
    }
    plan_->frees.resize(start);
    for (Plan::Slot slot = 0; slot < last_user.size(); ++slot) {
      if (last_user[slot] == kNone) continue;
      Plan::Step& step = plan_->steps[last_user[slot]];
      plan_->frees[step.first_free + step.free_count++] = slot;
    }
    last_user_ = std::move(last_user);
  }

  // Where the call's arguments come from. A step that can't be bound goes the general way, which fails with the reason when it is run.
  void BindOperator(Plan::Step& step) {
    const fx::Node& node = *step.node;
    const c10::OperatorHandle& op = node.operator_handle();
    const std::size_t sources = plan_->sources.size();
    const std::size_t constants = plan_->constants.size();
    const std::size_t arguments = plan_->arguments.size();
    try {
      const std::vector<int>& bound = Bind(op, node);
      step.first_source = static_cast<std::uint32_t>(sources);
      for (std::size_t i = 0; i < bound.size(); ++i) {
        const std::size_t from = static_cast<std::size_t>(bound[i]);
        if (bound[i] == kDefaultArgument) {
          AddConstant(*op.schema().arguments()[i].default_value());
        } else {
          AddSource(step, op, i, from < node.args().size() ? node.args()[from] : node.kwargs()[from - node.args().size()].second);
        }
      }
      step.source_count = static_cast<std::uint32_t>(bound.size());
      MoveLastUses(step);
    } catch (const c10::Error&) {
      plan_->sources.resize(sources);
      plan_->constants.resize(constants);
      plan_->arguments.resize(arguments);
      step.code = Plan::Code::kCall;
      step.source_count = 0;
    }
  }

  // Graphs call the same operators in the same way many times over.
  const std::vector<int>& Bind(const c10::OperatorHandle& op, const fx::Node& node) {
    if (node.kwargs().empty()) {
      const std::pair<const void*, std::size_t> way(&op.schema(), node.args().size());
      if (const auto known = bound_.find(way); known != bound_.end()) return known->second;
      return bound_.emplace(way, BindArguments(op, node.args().size(), {})).first->second;
    }
    std::vector<std::string> keywords;
    for (const auto& keyword : node.kwargs()) keywords.emplace_back(keyword.first);
    bound_by_keyword_ = BindArguments(op, node.args().size(), keywords);
    return bound_by_keyword_;
  }

  void AddConstant(c10::IValue value) {
    plan_->sources.push_back(Plan::Source{Plan::Source::Kind::kConstant, true, true, static_cast<std::uint32_t>(plan_->constants.size())});
    plan_->constants.push_back(std::move(value));
  }

  void AddSource(const Plan::Step& step, const c10::OperatorHandle& op, std::size_t index, const fx::Argument& argument) {
    if (argument.is_node()) {
      c10::TypePtr type = op.schema().arguments()[index].type();
      const bool optional = type->kind() == c10::TypeKind::OptionalType;
      if (optional) type = type->containedType(0);
      const Plan::Slot slot = plan_->slots[argument.node()->id()];
      TORCH_CHECK(&plan_->steps[slot] < &step, "used before it is defined");
      plan_->sources.push_back(Plan::Source{Plan::Source::Kind::kCopy, type->kind() == c10::TypeKind::TensorType, optional, slot});
      return;
    }
    if (IsConstant(argument)) {
      c10::IValue ints = IntList(*op.schema().arguments()[index].type(), argument);
      return AddConstant(ints.isNone() ? ConvertArgument(op, index, EvaluateConstant(argument)) : std::move(ints));
    }
    plan_->sources.push_back(Plan::Source{Plan::Source::Kind::kNested, false, false, static_cast<std::uint32_t>(plan_->arguments.size())});
    plan_->arguments.push_back(&argument);
  }

  // The last of the sources that take a value for the last time may have it.
  void MoveLastUses(const Plan::Step& step) {
    const auto user = static_cast<std::uint32_t>(&step - plan_->steps.data());
    for (std::uint32_t i = step.source_count; i-- > 0;) {
      Plan::Source& source = plan_->sources[step.first_source + i];
      if (source.kind == Plan::Source::Kind::kNested) return;  // it may take any of them, and is evaluated in its turn
      if (source.kind != Plan::Source::Kind::kCopy || last_user_[source.index] != user) continue;
      bool again = false;
      for (std::uint32_t k = i + 1; k < step.source_count; ++k) {
        const Plan::Source& later = plan_->sources[step.first_source + k];
        again |= later.kind == Plan::Source::Kind::kMove && later.index == source.index;
      }
      if (!again) source.kind = Plan::Source::Kind::kMove;
    }
  }

  // operator.getitem of a node's value by a constant.
  void BindGetItem(Plan::Step& step) {
    const auto& args = step.node->args();
    step.code = Plan::Code::kCall;
    if (args.size() != 2 || !step.node->kwargs().empty() || !args[0].is_node() || args[1].kind() != fx::Argument::Kind::kConstant) return;
    if (fx::AsTypedConstant(args[1].constant()) != nullptr) return;
    const Plan::Slot container = plan_->slots[args[0].node()->id()];
    if (&plan_->steps[container] >= &step) return;
    step.code = Plan::Code::kGetItem;
    step.container = container;
    step.key = static_cast<std::uint32_t>(plan_->constants.size());
    plan_->constants.push_back(args[1].constant());
  }

  // Whether EvaluateConstant knows it. Others are evaluated for each call, or refused then.
  static bool IsConstant(const fx::Argument& argument) {
    switch (argument.kind()) {
      case fx::Argument::Kind::kNone:
      case fx::Argument::Kind::kConstant:
        return true;
      case fx::Argument::Kind::kList:
      case fx::Argument::Kind::kTuple:
        return std::all_of(argument.elements().begin(), argument.elements().end(), IsConstant);
      default:
        return false;
    }
  }

  // What operators take most, int[] of ints, without a detour; None for anything else.
  static c10::IValue IntList(const c10::Type& type, const fx::Argument& argument) {
    if (argument.kind() != fx::Argument::Kind::kList && argument.kind() != fx::Argument::Kind::kTuple) return c10::IValue();
    if (type.kind() != c10::TypeKind::ListType || type.containedType(0)->kind() != c10::TypeKind::IntType) return c10::IValue();
    c10::List<int64_t> list;
    list.reserve(argument.elements().size());
    for (const fx::Argument& element : argument.elements()) {
      if (!element.constant().isInt()) return c10::IValue();
      list.push_back(element.constant().toInt());
    }
    return list;
  }

  static c10::IValue EvaluateConstant(const fx::Argument& argument) {
    if (argument.kind() == fx::Argument::Kind::kNone) return c10::IValue();
    if (argument.kind() == fx::Argument::Kind::kConstant) return ConstantValue(argument.constant());
    std::vector<c10::IValue> elements;
    for (const fx::Argument& element : argument.elements()) elements.push_back(EvaluateConstant(element));
    return c10::ivalue::Tuple::create(std::move(elements));
  }

  std::shared_ptr<Plan> plan_;
  std::vector<std::uint32_t> last_user_;
  absl::flat_hash_map<std::pair<const void*, std::size_t>, std::vector<int>> bound_;  // by schema and number of arguments, without keywords
  std::vector<int> bound_by_keyword_;
};

}  // namespace

c10::IValue ConstantValue(const c10::IValue& constant) {
  const fx::TypedConstant* typed = fx::AsTypedConstant(constant);
  if (typed == nullptr) return constant;
  TORCH_CHECK(typed->kind != fx::TypedConstant::Kind::kOpaque && typed->kind != fx::TypedConstant::Kind::kEllipsis,
              "cannot execute the argument ", fx::Argument(constant).ToString());
  return fx::DispatcherValue(constant);
}

std::shared_ptr<const Plan> PlanOf(const fx::Graph& graph) {
  if (auto plan = std::static_pointer_cast<const Plan>(graph.derived()); plan != nullptr) return plan;
  std::shared_ptr<const Plan> plan = Planner(graph).Take();
  graph.set_derived(plan);
  return plan;
}

}  // namespace ddpopt
