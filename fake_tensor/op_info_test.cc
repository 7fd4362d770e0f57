#include "fake_tensor/op_info.h"

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/strings/match.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/passes/effects.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

// The arguments that the graph's passes take for written by a call of the operator, by index; all tensors are placeholders.
std::set<std::size_t> WrittenByEffects(const c10::OperatorHandle& op, bool flag, int flag_index) {
  fx::GraphModule module;
  std::vector<fx::Argument> arguments;
  std::vector<const fx::Node*> placeholders;
  const auto& declared = op.schema().arguments();
  for (std::size_t i = 0; i < declared.size(); ++i) {
    if (MentionsTensor(declared[i].type())) {
      fx::Node* placeholder = module.graph().Placeholder("x" + std::to_string(i));
      placeholders.push_back(placeholder);
      arguments.emplace_back(placeholder);
    } else {
      placeholders.push_back(nullptr);
      arguments.emplace_back(static_cast<int>(i) == flag_index ? c10::IValue(flag) : c10::IValue(0.5));
    }
  }
  fx::Node* node = module.graph().CallFunction(op, std::move(arguments));
  fx::Effects effects(module);
  std::set<std::size_t> written;
  effects.ForEachWritten(*node, [&](fx::Node* input) {
    for (std::size_t i = 0; i < placeholders.size(); ++i) {
      if (placeholders[i] == input) written.insert(i);
    }
  });
  return written;
}

// Both lists of hidden writes, that of fakes and that of the graph's passes, over every operator that takes running statistics.
TEST(OpInfoTest, HiddenWritesAreThoseOfTheGraphsPasses) {
  int operators = 0;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() || !absl::StartsWith(name.name, "aten::") || !op->schema().argumentIndexWithName("running_mean").has_value())
      continue;
    ++operators;
    const OpInfo& info = InfoOf(*op);
    for (const bool flag : {false, true}) {
      std::set<std::size_t> written;
      for (std::size_t i = 0; i < info.writes.size(); ++i) {
        if (info.writes[i] || (info.hidden_writes[i] && (flag || info.hidden_writes_flag < 0))) written.insert(i);
      }
      const std::set<std::size_t> effects = WrittenByEffects(*op, flag, info.hidden_writes_flag);
      if (!flag && op->schema().is_mutable()) {
        // Of out= forms the passes take what they may write for written.
        EXPECT_THAT(effects, ::testing::IsSupersetOf(written)) << op->schema();
      } else {
        EXPECT_EQ(written, effects) << op->schema() << ", flag " << flag;
      }
    }
  }
  EXPECT_GT(operators, 30);
}

}  // namespace
}  // namespace ddpopt
