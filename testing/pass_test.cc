#include "testing/pass_test.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ddpopt::testing {
namespace {

void AppendText(const fx::GraphModule& module, const std::string& prefix, std::string& text) {
  absl::StrAppend(&text, prefix, module.graph().ToString(), "\n");
  for (const auto& [path, submodule] : module.submodules()) {
    const std::string nested = absl::StrCat(prefix, path, ": ");
    if (submodule.graph_module == nullptr) {
      absl::StrAppend(&text, nested, "callable\n");
    } else {
      AppendText(*submodule.graph_module, nested, text);
    }
  }
}

// One run, checked.
absl::StatusOr<bool> RunOnce(const fx::Pass& pass, fx::GraphModule& module) {
  const std::string before = ModuleText(module);
  const absl::StatusOr<bool> changed = pass.Run(module);
  const absl::Status lint = module.Lint();
  EXPECT_TRUE(lint.ok()) << "after pass " << pass.ToString() << ": " << lint << "\n" << ModuleText(module);
  if (!changed.ok()) return changed;
  const std::string after = ModuleText(module);
  if (*changed) {
    EXPECT_NE(after, before) << "pass " << pass.ToString() << " says that it changed this, but did not";
  } else {
    EXPECT_EQ(after, before) << "pass " << pass.ToString() << " says that it changed nothing";
  }
  return changed;
}

}  // namespace

std::string ModuleText(const fx::GraphModule& module) {
  std::string text;
  AppendText(module, "", text);
  return text;
}

absl::StatusOr<bool> RunPass(const fx::Pass& pass, fx::GraphModule& module, const RunPassOptions& options) {
  const absl::Status lint = module.Lint();
  EXPECT_TRUE(lint.ok()) << "before pass " << pass.ToString() << ": " << lint;
  const absl::StatusOr<bool> changed = RunOnce(pass, module);
  if (changed.ok() && *changed && options.idempotent) {
    const absl::StatusOr<bool> again = RunOnce(pass, module);
    EXPECT_TRUE(again.ok()) << "the second run of pass " << pass.ToString() << ": " << again.status();
    EXPECT_FALSE(again.ok() && *again) << "pass " << pass.ToString() << " finds more to change in a second run";
  }
  return changed;
}

}  // namespace ddpopt::testing
