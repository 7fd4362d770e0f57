#include "tools/check_models_graph.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "tools/fake_run.h"

namespace ddpopt {
namespace {

using c10::IValue;

void Compare(const std::string& name, const IValue& recorded, const IValue& value, std::size_t* compared, Differences* differences) {
  if (recorded.isNone()) return;
  if (recorded.isTuple()) {
    const auto& expected = recorded.toTupleRef().elements();
    std::vector<IValue> elements;
    if (value.isTuple()) elements = value.toTupleRef().elements().vec();
    if (value.isList()) elements = value.toListRef().vec();
    if (elements.size() != expected.size()) return differences->Add(name, ": expected ", expected.size(), " values, got ", elements.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      Compare(absl::StrCat(name, "[", i, "]"), expected[i], elements[i], compared, differences);
    return;
  }
  ++*compared;
  if (!recorded.isTensor()) {
    if (recorded.tagKind() != value.tagKind() || (recorded.isInt() && recorded.toInt() != value.toInt()))
      differences->Add(name, ": another value");
    return;
  }
  if (!value.isTensor()) return differences->Add(name, ": expected a tensor, got ", value.tagKind());
  const at::Tensor& expected = recorded.toTensor();
  const at::Tensor& actual = value.toTensor();
  if (actual.sizes() != expected.sizes())
    return differences->Add(name, ": expected shape ", ShapeText(expected.sizes()), ", got ", ShapeText(actual.sizes()));
  if (actual.scalar_type() != expected.scalar_type()) {
    differences->Add(name, ": expected ", c10::toString(expected.scalar_type()), ", got ", c10::toString(actual.scalar_type()));
  }
  if (actual.device() != expected.device()) differences->Add(name, ": expected ", expected.device().str(), ", got ", actual.device().str());
  bool same = true;
  for (int64_t d = 0; expected.numel() > 0 && d < expected.dim(); ++d)
    same &= expected.size(d) <= 1 || actual.stride(d) == expected.stride(d);
  if (!same) differences->Add(name, ": expected strides ", ShapeText(expected.strides()), ", got ", ShapeText(actual.strides()));
}

}  // namespace

absl::Status GraphChecker::Load(Differences* differences) const {
  DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadExportedProgram(file_.string()));
  const std::string name = file_.filename().string();
  const std::filesystem::path meta = file_.parent_path() / absl::StrCat(name.substr(0, name.find(".model.json")), ".meta.json");
  DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read(meta.string()));
  DDPOPT_RETURN_IF_ERROR(program->CheckExecutable());
  return CompareDescription(*program, manifest->root(), /*ordered=*/false, differences);
}

absl::Status GraphChecker::Lint(Differences* /*differences*/) const {
  DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadExportedProgram(file_.string()));
  return program->module()->Lint();
}

absl::Status GraphChecker::Fake(Differences* differences) const {
  DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadExportedProgram(file_.string()));
  std::size_t compared = 0;
  FakeRunOptions options;
  options.backward = false;
  options.on_value = [&](const fx::Node& node, const IValue& value) {
    if (node.has_meta()) Compare(absl::StrCat("%", std::string(node.name())), node.meta().val, value, &compared, differences);
  };
  FakeRun run;
  DDPOPT_RETURN_IF_ERROR(RunOnFakes(*program, options, &run));
  if (compared == 0) differences->Add("no node has a recorded value");
  return absl::OkStatus();
}

}  // namespace ddpopt
