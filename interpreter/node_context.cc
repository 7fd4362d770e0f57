#include "interpreter/node_context.h"

#include "absl/strings/str_cat.h"

namespace ddpopt {

std::string NodeContext(const fx::Node& node) {
  std::string text = absl::StrCat("While executing ", node.ToString());
  const fx::NodeMeta& meta = node.meta();
  if (!meta.nn_module.empty()) {
    absl::StrAppend(&text, " of module ", meta.nn_module);
  } else if (!meta.nn_module_stack.empty()) {
    absl::StrAppend(&text, " of module ", meta.nn_module_stack.back().first);
  }
  if (!meta.stack_trace.empty()) absl::StrAppend(&text, "\nOriginal traceback:\n", meta.stack_trace.get());
  return text;
}

}  // namespace ddpopt
