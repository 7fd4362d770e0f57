#include "tools/check_models_form.h"

#include <map>

#include "ATen/ops/equal.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/status.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::JsonView;

// The recorded tree: "tensor", {"value": v}, {"tuple": [...]}, {"list": [...]}, {"dict": [[key, tree], ...]}.
void CompareTree(const std::string& place, const TreeSpec& spec, const JsonView& recorded, Differences* differences) {
  const auto differ = [&] { differences->Add(place, ": the program has ", spec.ToString(), ", recorded is ", recorded.Excerpt()); };
  if (recorded.is_string() || (recorded.is_object() && recorded.Has("value"))) {
    if (spec.kind != TreeSpec::Kind::kLeaf) differ();
    return;
  }
  if (!recorded.is_object() || recorded.size() != 1) return differ();
  const JsonView children = recorded[0];
  const std::string& kind = recorded.KeyAt(0);
  const bool fits = (kind == "tuple" && spec.kind == TreeSpec::Kind::kTuple) || (kind == "list" && spec.kind == TreeSpec::Kind::kList) ||
                    (kind == "dict" && spec.kind == TreeSpec::Kind::kDict) || spec.kind == TreeSpec::Kind::kOpaque;
  if (!fits || children.size() != spec.children.size()) return differ();
  for (std::size_t i = 0; i < children.size(); ++i) {
    const JsonView child = children[i];
    if (kind != "dict") {
      CompareTree(absl::StrCat(place, "[", i, "]"), spec.children[i], child, differences);
      continue;
    }
    if (child.size() != 2 || (child[0].is_string() && spec.kind == TreeSpec::Kind::kDict &&
                              !(spec.keys[i].isString() && spec.keys[i].toStringRef() == child[0].value().text))) {
      return differ();
    }
    const JsonView tree = child[1];
    CompareTree(absl::StrCat(place, "[", i, "]"), spec.children[i], tree, differences);
  }
}

}  // namespace

absl::Status FormChecker::Begin() {
  DDPOPT_ASSIGN_OR_RETURN(manifest_, Manifest::Read((dir_ / "manifest.json").string()));
  DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open((dir_ / "calls.safetensors").string()));
  file_ = std::make_unique<SafetensorsFile>(file);
  DDPOPT_ASSIGN_OR_RETURN(program_, LoadExportedProgram((dir_ / "model.pt2").string()));
  runner_ = std::make_unique<ProgramRunner>(program_, backend_);
  return program_->module()->Lint();
}
absl::StatusOr<std::size_t> FormChecker::NumCalls() const {
  const JsonView root = manifest_->root();
  DDPOPT_ASSIGN_OR_RETURN(const JsonView calls, root.Array("calls"));
  return calls.size();
}

// Calls run one after another on the same program.
absl::Status FormChecker::Call(std::size_t k, Differences* differences) {
  const JsonView root = manifest_->root();
  DDPOPT_ASSIGN_OR_RETURN(const JsonView calls, root.Array("calls"));
  const JsonView call = calls[k];
  DDPOPT_ASSIGN_OR_RETURN(std::vector<IValue> args, ReadValues(call, "args"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView in_tree, call.At("in_tree"));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView out_tree, call.At("out_tree"));
  CompareTree("in_tree", program_->in_tree().children[0], in_tree, differences);
  CompareTree("out_tree", program_->out_tree(), out_tree, differences);

  std::map<std::string, at::Tensor> before;  // of what the call must leave alone
  const auto keep = [&](const std::string& name, const at::Tensor& tensor) { before[name] = tensor.detach().clone(); };
  for (const auto& buffer : program_->buffers()) keep(buffer.name, buffer.tensor);
  for (const auto& constant : program_->constants()) keep(constant.name, constant.tensor);
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i].isTensor()) keep(absl::StrCat("arg", i), args[i].toTensor());
  }
  ClearGradients(*program_);
  std::vector<IValue> outputs;
  std::vector<bool> requires_grad;
  DDPOPT_RETURN_IF_ERROR(CatchAsStatus("forward and backward", [&] {
    outputs = runner_->RunFlat(args);
    for (const IValue& output : outputs) requires_grad.push_back(output.isTensor() && output.toTensor().requires_grad());
    Backward(outputs);
  }));
  DDPOPT_RETURN_IF_ERROR(CompareOutputs(call, outputs, requires_grad, differences));
  DDPOPT_RETURN_IF_ERROR(CompareCallGradients(k, differences));

  const auto current = [&](const std::string& name) -> absl::optional<at::Tensor> {
    absl::string_view index(name);
    std::size_t position = 0;
    if (absl::ConsumePrefix(&index, "arg") && absl::SimpleAtoi(index, &position)) {
      return position < args.size() && args[position].isTensor() ? absl::optional<at::Tensor>(args[position].toTensor()) : absl::nullopt;
    }
    return program_->FindTensor(name);
  };
  DDPOPT_ASSIGN_OR_RETURN(const JsonView post, call.Array("post"));
  for (std::size_t i = 0; i < post.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, post[i].AsString());
    DDPOPT_ASSIGN_OR_RETURN(const at::Tensor expected, file_->Read(absl::StrCat("call", k, ".post.", name)));
    const absl::optional<at::Tensor> tensor = current(name);
    if (!tensor.has_value()) {
      differences->Add("there is no buffer or argument \"", name, "\"");
    } else {
      differences->AddTensor(absl::StrCat("after the call, \"", name, "\""), tensor->detach(), expected);
    }
    before.erase(name);
  }
  for (const auto& [name, tensor] : before) {
    if (!at::equal(current(name)->detach(), tensor)) differences->Add("the call changed \"", name, "\", which PyTorch's leaves alone");
  }
  return absl::OkStatus();
}

absl::Status FormChecker::CompareCallGradients(std::size_t k, Differences* differences) const {
  const std::string prefix = absl::StrCat("call", k, ".grad.");
  const Gradients gradients = GradientsOf(*program_);
  Differences strict;
  DDPOPT_RETURN_IF_ERROR(CompareGradients(*program_, gradients, *file_, prefix, {}, &strict));
  if (strict.SameArithmetic()) differences->Append(strict);
  if (strict.empty() || strict.SameArithmetic()) return absl::OkStatus();
  std::vector<Gradients> moved;
  for (const uint64_t seed : {1, 2}) {
    DDPOPT_ASSIGN_OR_RETURN(Gradients other, MovedGradients(k, seed));
    moved.push_back(std::move(other));
  }
  return CompareGradients(*program_, gradients, *file_, prefix, RoundingOf(gradients, moved), differences);
}

absl::StatusOr<Gradients> FormChecker::MovedGradients(std::size_t k, uint64_t seed) const {
  DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadExportedProgram((dir_ / "model.pt2").string()));
  MoveWeights(*program, seed);
  ProgramRunner runner(program, backend_);
  const JsonView root = manifest_->root();
  DDPOPT_ASSIGN_OR_RETURN(const JsonView calls, root.Array("calls"));
  for (std::size_t i = 0; i <= k; ++i) {
    DDPOPT_ASSIGN_OR_RETURN(std::vector<IValue> args, ReadValues(calls[i], "args"));
    ClearGradients(*program);
    DDPOPT_RETURN_IF_ERROR(CatchAsStatus("forward and backward", [&] { Backward(runner.RunFlat(std::move(args))); }));
  }
  return GradientsOf(*program);
}

// Each tensor input in turn with a size that the archive doesn't allow, and with another number of dimensions.
absl::Status FormChecker::RefusedSize(Differences* differences) {
  const JsonView root = manifest_->root();
  DDPOPT_ASSIGN_OR_RETURN(const JsonView calls, root.Array("calls"));
  if (calls.size() == 0) return calls.Expected("at least one call");
  const JsonView call = calls[0];
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<IValue> args, ReadValues(call, "args"));
  if (args.size() != program_->inputs().size()) return absl::InvalidArgumentError("the number of arguments differs from the program's");
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (!args[i].isTensor()) continue;
    const ProgramInput& input = program_->inputs()[i];
    const at::Tensor tensor = args[i].toTensor();
    std::vector<std::vector<int64_t>> wrong = {tensor.sizes().vec()};
    wrong[0].push_back(1);
    for (std::size_t d = 0; d < input.sizes.size(); ++d) {
      std::vector<int64_t> sizes = tensor.sizes().vec();
      const auto with = [&](int64_t size) {
        sizes[d] = size;
        if (size >= 0) wrong.push_back(sizes);
      };
      if (input.sizes[d].Symbols().empty()) {
        with(tensor.size(static_cast<int64_t>(d)) + 1);
        with(tensor.size(static_cast<int64_t>(d)) - 1);
        continue;
      }
      const auto range = program_->symbol_ranges().find(input.sizes[d].symbol());
      if (range == program_->symbol_ranges().end()) continue;
      if (range->second.min.has_value()) with(*range->second.min - 1);
      if (range->second.max.has_value() && *range->second.max < 100000) with(*range->second.max + 1);
    }
    for (const std::vector<int64_t>& sizes : wrong) {
      std::vector<IValue> changed = args;
      changed[i] = at::zeros(sizes, tensor.options());
      const absl::Status ran = CatchAsStatus("", [&] { program_->RunFlat(changed); });
      if (ran.ok()) {
        differences->Add("input \"", input.name, "\" of shape ", ShapeText(sizes), " was not refused");
      } else if (!absl::StrContains(ran.message(), absl::StrCat("\"", input.name, "\""))) {
        differences->Add("input \"", input.name, "\" of shape ", ShapeText(sizes), " was refused without being named: ", ran.message());
      }
    }
  }
  return absl::OkStatus();
}

// {"tensor": key} or {"value": v}.
absl::StatusOr<std::vector<IValue>> FormChecker::ReadValues(const JsonView& call, const char* key) const {
  DDPOPT_ASSIGN_OR_RETURN(const JsonView list, call.Array(key));
  std::vector<IValue> values;
  for (std::size_t i = 0; i < list.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(IValue value, ReadValue(list[i]));
    values.push_back(std::move(value));
  }
  return values;
}
absl::StatusOr<IValue> FormChecker::ReadValue(const JsonView& view) const {
  if (view.is_object() && view.Has("tensor")) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, view.String("tensor"));
    DDPOPT_ASSIGN_OR_RETURN(at::Tensor tensor, file_->Read(name));
    return IValue(std::move(tensor));
  }
  DDPOPT_ASSIGN_OR_RETURN(const JsonView value, view.At("value"));
  switch (value.kind()) {
    case JsonView::Kind::kNull:
      return IValue();
    case JsonView::Kind::kBool:
      return IValue(value.value().boolean);
    case JsonView::Kind::kInt:
      return IValue(value.value().integer);
    case JsonView::Kind::kFloat:
      return IValue(value.value().number);
    case JsonView::Kind::kString:
      return IValue(value.value().text);
    default:
      return value.Expected("a number, a string or null");
  }
}

absl::Status FormChecker::CompareOutputs(const JsonView& call, const std::vector<IValue>& outputs, const std::vector<bool>& requires_grad,
                                         Differences* differences) const {
  DDPOPT_ASSIGN_OR_RETURN(const JsonView outs, call.Array("outs"));
  if (outs.size() != outputs.size()) {
    differences->Add("expected ", outs.size(), " outputs, got ", outputs.size());
    return absl::OkStatus();
  }
  for (std::size_t i = 0; i < outs.size(); ++i) {
    const JsonView out = outs[i];
    const std::string name = absl::StrCat("output ", i);
    DDPOPT_ASSIGN_OR_RETURN(const IValue expected, ReadValue(out));
    if (!expected.isTensor()) {
      if (expected.tagKind() != outputs[i].tagKind() || !(expected == outputs[i])) differences->Add(name, ": another value");
      continue;
    }
    if (!outputs[i].isTensor()) {
      differences->Add(name, ": expected a tensor, got ", outputs[i].tagKind());
      continue;
    }
    const at::Tensor& actual = outputs[i].toTensor();
    differences->AddTensor(name, actual.detach(), expected.toTensor());
    DDPOPT_ASSIGN_OR_RETURN(const JsonView stride_view, out.Array("stride"));
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<int64_t> strides, stride_view.AsInts());
    if (actual.strides().vec() != strides)
      differences->Add(name, ": expected strides ", ShapeText(strides), ", got ", ShapeText(actual.strides()));
    DDPOPT_ASSIGN_OR_RETURN(const bool wants_grad, out.BoolOr("requires_grad", false));
    if (requires_grad[i] != wants_grad) differences->Add(name, ": requires_grad is ", requires_grad[i] ? "true" : "false");
  }
  return absl::OkStatus();
}

}  // namespace ddpopt
