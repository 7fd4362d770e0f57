#include "fake_tensor/functional_form.h"

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace ddpopt {

bool IsOut(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

std::optional<c10::OperatorHandle> FunctionalForm(const c10::FunctionSchema& schema, absl::string_view name) {
  using Overloads = absl::flat_hash_map<std::string, std::vector<c10::OperatorName>>;
  static const Overloads& all = *[] {
    auto* overloads = new Overloads();
    for (const c10::OperatorName& each : c10::Dispatcher::singleton().getAllOpNames()) (*overloads)[each.name].push_back(each);
    return overloads;
  }();
  std::vector<const c10::Argument*> wanted;
  for (const c10::Argument& argument : schema.arguments()) {
    if (!IsOut(argument)) wanted.push_back(&argument);
  }
  const auto found = all.find(absl::StrCat("aten::", name));
  if (found == all.end()) return std::nullopt;
  for (const c10::OperatorName& candidate : found->second) {
    const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(candidate);
    if (!op.has_value() || op->schema().arguments().size() != wanted.size() || candidate == schema.operator_name()) continue;
    bool equal = true;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      const c10::Argument& argument = op->schema().arguments()[i];
      equal &= argument.name() == wanted[i]->name() && *argument.type() == *wanted[i]->type() && !IsOut(argument);
    }
    if (equal) return op;
  }
  return std::nullopt;
}

}  // namespace ddpopt
