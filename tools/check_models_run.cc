#include "tools/check_models_run.h"

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "ddpopt/backends/aot_eager.h"
#include "ddpopt/backends/backend.h"
#include "ddpopt/distributed/process_group.h"
#include "fx_graph/text/json_view.h"
#include "nlohmann/json.hpp"
#include "tools/check_models_compare.h"
#include "tools/check_models_form.h"
#include "tools/check_models_graph.h"
#include "tools/check_models_rounding.h"
#include "tools/check_models_training.h"

namespace ddpopt {
namespace {

using fx::JsonView;

// Null for eager: programs are called themselves, and DDP has its own.
CompileFn BackendOf(const std::string& name) { return name == "aot_eager" ? AotEagerBackend() : nullptr; }

// Subfolders, or graph files, of a part of the data; what index.json names comes too, so that something missing fails.
std::vector<std::string> NamesIn(const std::filesystem::path& dir, const char* index_key) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (index_key != nullptr) {
      if (entry.is_directory(error)) names.insert(name);
    } else if (absl::EndsWith(name, ".model.json.gz") || absl::EndsWith(name, ".model.json")) {
      names.insert(name);
    }
  }
  if (index_key == nullptr) return {names.begin(), names.end()};
  if (const auto manifest = Manifest::Read((dir / "index.json").string()); manifest.ok()) {
    const JsonView root = (*manifest)->root();
    if (const auto list = root.Array(index_key); list.ok()) {
      for (std::size_t i = 0; i < list->size(); ++i) {
        if ((*list)[i].is_string()) names.insert((*list)[i].value().text);
      }
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace

absl::Status CheckModels(const CheckModelsOptions& options, const std::function<void(const ModelCase&)>& report) {
  UseRecordedArithmetic();
  std::size_t cases = 0;
  const auto wanted = [&](const std::string& id) { return options.only.empty() || absl::StrContains(id, options.only); };
  const auto run = [&](const std::string& id, const std::function<absl::Status(Differences*)>& check) {
    if (!wanted(id)) return;
    ++cases;
    Differences differences;
    // What throws where nobody expected it fails the case, not the program.
    differences.AddStatus(CatchAsStatus("unexpected", [&] { return check(&differences); }));
    report({id, differences.Text()});
  };
  const auto note = [&](const std::string& name, const std::string& why) {
    if (options.on_refused) options.on_refused(name, why);
  };
  const std::filesystem::path dir(options.dir);

  for (const std::string& name : NamesIn(dir / "models", "models")) {
    const std::string id = absl::StrCat("models/", name, "/");
    const auto checker = std::make_shared<ModelChecker>(dir / "models" / name, BackendOf(options.backend));
    run(id + "load", [&](Differences* d) { return checker->Load(d); });
    run(id + "loss", [&](Differences* d) { return checker->Loss(d); });
    run(id + "grads", [&](Differences* d) { return checker->Grads(d); });
    run(id + "trajectory", [&](Differences* d) { return checker->Trajectory(d); });
    if (const std::string& why = checker->refusal(); !why.empty()) note(absl::StrCat("models/", name), why);
    if (options.skip_ranks) continue;
    const auto ranks = [&](const char* kind, const Differences& found) {
      run(id + kind, [&](Differences* d) -> absl::Status {
        DDPOPT_RETURN_IF_ERROR(checker->RunRanks(options.program, options.backend));
        for (const std::string& line : found.lines()) d->Add(line);
        return absl::OkStatus();
      });
    };
    ranks("ddp_grads", checker->rank_grads());
    ranks("ddp_trajectory", checker->rank_trajectory());
  }
  for (const std::string& name : NamesIn(dir / "graphs", nullptr)) {
    const std::string id = absl::StrCat("graphs/", name.substr(0, name.find(".model.json")), "/");
    GraphChecker checker(dir / "graphs" / name);
    run(id + "load", [&](Differences* d) { return checker.Load(d); });
    run(id + "lint", [&](Differences* d) { return checker.Lint(d); });
    run(id + "fake", [&](Differences* d) { return checker.Fake(d); });
  }
  for (const char* part : {"forms", "forms_2_11"}) {
    for (const std::string& name : NamesIn(dir / part, "forms")) {
      const std::string id = absl::StrCat(part, "/", name, "/");
      const std::filesystem::path folder = dir / part / name;
      // How many calls there are is the manifest's to say.
      FormChecker calls(folder, BackendOf(options.backend));
      const absl::Status begun = CatchAsStatus("unexpected", [&] { return calls.Begin(); });
      std::size_t count = 1;
      if (begun.ok()) {
        const absl::StatusOr<std::size_t> recorded = calls.NumCalls();
        if (recorded.ok()) count = *recorded;
      }
      for (std::size_t k = 0; k < count; ++k) {
        run(absl::StrCat(id, "call", k), [&](Differences* d) { return begun.ok() ? calls.Call(k, d) : begun; });
      }
      run(id + "refused_size", [&](Differences* d) { return begun.ok() ? calls.RefusedSize(d) : begun; });
      if (const std::string why = calls.refusal(); !why.empty()) note(absl::StrCat(part, "/", name), why);
    }
  }
  if (cases == 0) {
    return absl::NotFoundError(absl::StrCat("\"", options.dir, "\" holds none of models/, graphs/, forms/, forms_2_11/ with something",
                                            options.only.empty() ? "" : absl::StrCat(" that \"", options.only, "\" names"), " in it"));
  }
  return absl::OkStatus();
}

int RunModelRank(const std::string& model_dir, const std::string& result, const std::string& backend) {
  Differences grads, trajectory;
  UseRecordedArithmetic();
  ModelChecker checker(std::filesystem::path(model_dir), BackendOf(backend));
  const absl::Status status = CatchAsStatus("unexpected", [&]() -> absl::Status {
    DDPOPT_ASSIGN_OR_RETURN(const ProcessGroup group, InitProcessGroup());
    return checker.TrainOnRanks(group, &grads, &trajectory);
  });
  nlohmann::json json = {{"grads", grads.lines()}, {"trajectory", trajectory.lines()}};
  if (!status.ok()) {
    json["grads"].push_back(std::string(status.message()));
    json["trajectory"].push_back(std::string(status.message()));
  }
  const char* rank = std::getenv("RANK");
  const std::string text = json.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
  const absl::Status written = WriteFile(absl::StrCat(result, ".", rank == nullptr ? "0" : rank), text);
  return written.ok() ? 0 : 1;
}

}  // namespace ddpopt