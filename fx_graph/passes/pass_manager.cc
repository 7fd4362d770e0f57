#include "fx_graph/passes/pass_manager.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "fx_graph/passes/reproducer.h"

namespace ddpopt::fx {
namespace {

bool Selects(const std::vector<std::string>& names, const Pass& pass) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name == "*" || name == pass.name(); });
}

// The graph, and those nested in it under their paths.
void AppendText(const GraphModule& module, const std::string& path, std::string& text) {
  absl::StrAppend(&text, path.empty() ? "" : absl::StrCat("submodule ", path, ":\n"), module.graph().ToString(), "\n");
  for (const auto& [name, submodule] : module.submodules()) {
    if (submodule.graph_module != nullptr) AppendText(*submodule.graph_module, path.empty() ? name : absl::StrCat(path, ".", name), text);
  }
}

std::string Text(const GraphModule& module) {
  std::string text;
  AppendText(module, "", text);
  return text;
}

}  // namespace

absl::Status PassManager::AddPipeline(const PassRegistry& registry, absl::string_view text) {
  DDPOPT_ASSIGN_OR_RETURN(std::vector<std::unique_ptr<Pass>> passes, registry.CreatePipeline(text));
  for (std::unique_ptr<Pass>& pass : passes) Add(std::move(pass));
  return absl::OkStatus();
}

std::string PassManager::Pipeline() const {
  return absl::StrJoin(passes_, ",", [](std::string* out, const std::unique_ptr<Pass>& pass) { absl::StrAppend(out, pass->ToString()); });
}

absl::StatusOr<bool> PassManager::Run(GraphModule& module) {
  timings_.clear();
  if (options_.verify_each) DDPOPT_RETURN_IF_ERROR(Annotate(module.Lint(), "before the first pass"));
  bool changed = false;
  for (const std::unique_ptr<Pass>& pass : passes_) {
    if (Selects(options_.print_before, *pass)) Print("before", *pass, module);
    DDPOPT_ASSIGN_OR_RETURN(const bool pass_changed, RunPass(*pass, module));
    changed |= pass_changed;
    if (Selects(options_.print_after, *pass) || (pass_changed && Selects(options_.print_after_change, *pass)))
      Print("after", *pass, module);
  }
  return changed;
}

absl::StatusOr<bool> PassManager::RunPass(const Pass& pass, GraphModule& module) {
  const std::shared_ptr<const GraphModule> before = options_.reproducer_path.empty() ? nullptr : module.Clone();
  const std::string text_before = options_.verify_claims ? Text(module) : std::string();
  PassTiming timing;
  timing.pass = pass.ToString();
  timing.nodes_before = module.graph().size();
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<bool> changed = CatchAsStatus("an exception", [&] { return pass.Run(module); });
  timing.nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start).count();
  timing.changed = changed.ok() && *changed;
  timing.nodes_after = module.graph().size();
  timings_.push_back(std::move(timing));
  if (!changed.ok()) return Fail(pass, before.get(), changed.status());
  if (options_.verify_each) {
    if (const absl::Status lint = module.Lint(); !lint.ok()) {
      return Fail(pass, before.get(), absl::InternalError(absl::StrCat("the graph does not lint afterwards: ", lint.message())));
    }
  }
  if (options_.verify_claims && (Text(module) != text_before) != *changed) {
    return Fail(pass, before.get(),
                absl::InternalError(*changed ? "it says that it changed the graph, but did not"
                                             : "it says that it left the graph alone, but did not"));
  }
  return changed;
}

void PassManager::Print(absl::string_view when, const Pass& pass, const GraphModule& module) const {
  const std::string text = absl::StrCat("# ", when, " pass ", pass.ToString(), "\n", Text(module));
  if (options_.print) {
    options_.print(text);
  } else {
    std::cerr << text;
  }
}

absl::Status PassManager::Fail(const Pass& pass, const GraphModule* before, absl::Status status) const {
  status = Annotate(status, absl::StrCat("pass ", pass.name()));
  if (before == nullptr) return status;
  const auto with = [&](absl::string_view note) { return absl::Status(status.code(), absl::StrCat(status.message(), " (", note, ")")); };
  const absl::StatusOr<std::string> graph = options_.serialize ? options_.serialize(*before) : before->graph().ToString();
  if (!graph.ok()) return with(absl::StrCat("no reproducer: ", graph.status().message()));
  std::ofstream file(options_.reproducer_path);
  file << FormatReproducer(Reproducer{pass.ToString(), status.ToString(), *graph});
  file.close();
  if (!file) return with(absl::StrCat("the reproducer can't be written to ", options_.reproducer_path));
  return with(absl::StrCat("reproducer: ", options_.reproducer_path));
}

std::string PassManager::TimingReport() const {
  std::int64_t total = 0;
  for (const PassTiming& timing : timings_) total += timing.nanoseconds;
  std::string text = absl::StrFormat("%12s  %6s  %10s  %10s  pass\n", "ms", "share", "nodes in", "nodes out");
  for (const PassTiming& timing : timings_) {
    absl::StrAppendFormat(&text, "%12.3f  %5.1f%%  %10d  %10d  %s%s\n", timing.nanoseconds * 1e-6,
                          total == 0 ? 0.0 : 100.0 * timing.nanoseconds / total, timing.nodes_before, timing.nodes_after, timing.pass,
                          timing.changed ? "" : " (no change)");
  }
  absl::StrAppendFormat(&text, "%12.3f  total\n", total * 1e-6);
  return text;
}

}  // namespace ddpopt::fx
