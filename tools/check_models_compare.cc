#include "tools/check_models_compare.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ATen/ops/abs.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/max.h"
#include "ATen/ops/sub.h"
#include "ATen/ops/sum.h"
#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

using c10::IValue;
using fx::JsonView;

std::string Number(double value) { return absl::StrCat(absl::SixDigits(value)); }

absl::StatusOr<std::map<std::string, std::string>> ReadTied(const JsonView& manifest) {
  std::map<std::string, std::string> tied;
  DDPOPT_ASSIGN_OR_RETURN(const JsonView view, manifest.Object("tied"));
  for (std::size_t i = 0; i < view.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(tied[view.KeyAt(i)], view[i].AsString());
  }
  return tied;
}

// A program's tensor by a recorded name, or by the name of one that it is tied to: a graph file knows one of them.
absl::optional<at::Tensor> FindByAnyName(const ExportedProgram& program, const std::string& name,
                                         const std::map<std::string, std::string>& tied) {
  if (const auto tensor = program.FindTensor(name); tensor.has_value()) return tensor;
  for (const auto& [alias, first] : tied) {
    if (first != name) continue;
    if (const auto tensor = program.FindTensor(alias); tensor.has_value()) return tensor;
  }
  return absl::nullopt;
}

std::string DtypeWord(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return "float32";
    case c10::ScalarType::Double:
      return "float64";
    case c10::ScalarType::Half:
      return "float16";
    case c10::ScalarType::BFloat16:
      return "bfloat16";
    case c10::ScalarType::Long:
      return "int64";
    case c10::ScalarType::Int:
      return "int32";
    case c10::ScalarType::Short:
      return "int16";
    case c10::ScalarType::Char:
      return "int8";
    case c10::ScalarType::Byte:
      return "uint8";
    case c10::ScalarType::Bool:
      return "bool";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace

double ToleranceOf(c10::ScalarType dtype) {
  switch (c10::isComplexType(dtype) ? c10::toRealValueType(dtype) : dtype) {
    case c10::ScalarType::Float:
      return 1e-4;
    case c10::ScalarType::Double:
      return 1e-9;
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Half:
      return 2e-2;
    default:
      return 0;
  }
}

std::string ShapeText(at::IntArrayRef shape) { return absl::StrCat("[", absl::StrJoin(shape.vec(), ", "), "]"); }

std::string TensorDifference(const at::Tensor& actual, const at::Tensor& expected, double floor) {
  if (actual.sizes() != expected.sizes())
    return absl::StrCat("expected shape ", ShapeText(expected.sizes()), ", got ", ShapeText(actual.sizes()));
  if (actual.scalar_type() != expected.scalar_type()) {
    return absl::StrCat("expected ", c10::toString(expected.scalar_type()), ", got ", c10::toString(actual.scalar_type()));
  }
  if (expected.numel() == 0 || at::equal(actual, expected)) return "";
  const double tolerance = ToleranceOf(expected.scalar_type());
  if (tolerance == 0) return "the values differ";
  const c10::ScalarType wide = c10::isComplexType(expected.scalar_type()) ? at::kComplexDouble : at::kDouble;
  const at::Tensor a = actual.to(wide), e = expected.to(wide);
  const at::Tensor finite = at::isfinite(e);
  if (!at::equal(at::isfinite(a), finite)) return "another element is not finite";
  const double largest = e.masked_fill(~finite, 0).abs().max().item().toDouble();
  const double difference = a.sub(e).masked_fill(~finite, 0).abs().max().item().toDouble();
  if (difference <= std::max(tolerance * largest, floor)) return "";
  return absl::StrCat("differs by ", Number(difference), ", where the largest value is ", Number(largest), " (allowed is ",
                      Number(tolerance), " of it)");
}

void Differences::AddTensor(absl::string_view name, const at::Tensor& actual, const at::Tensor& expected, double floor) {
  ++compared_;
  const std::string text = TensorDifference(actual, expected, floor);
  if (!text.empty()) {
    Add(name, ": ", text);
  } else if (at::equal(actual, expected)) {
    ++same_;
  }
}

void Differences::AddNumber(absl::string_view name, double actual, double expected, double tolerance, double scale) {
  ++compared_;
  const double difference = std::abs(actual - expected);
  const bool nan = std::isnan(actual) && std::isnan(expected);
  // Float64 sums of the same numbers.
  if (nan || difference <= 1e-12 * std::max(std::abs(expected), scale)) ++same_;
  if (!nan && !(difference <= tolerance)) Add(name, ": expected ", Number(expected), ", got ", Number(actual));
}

void Differences::AddStatus(const absl::Status& status) {
  if (!status.ok()) Add(status.message());
}

void Differences::Append(const Differences& others) { lines_.insert(lines_.end(), others.lines_.begin(), others.lines_.end()); }

std::string Differences::Text() const {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> shown(lines_.begin(), lines_.begin() + static_cast<std::ptrdiff_t>(std::min(lines_.size(), kMost)));
  if (lines_.size() > kMost) shown.push_back(absl::StrCat("and ", lines_.size() - kMost, " more differences"));
  return absl::StrJoin(shown, "\n");
}

absl::StatusOr<std::unique_ptr<Manifest>> Manifest::Read(const std::string& path) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  auto manifest = std::make_unique<Manifest>();
  absl::StatusOr<fx::JsonValue> json = fx::ParseJson(text);
  if (!json.ok()) return Annotate(json.status(), absl::StrCat("\"", path, "\""));
  manifest->json = *std::move(json);
  return manifest;
}

absl::StatusOr<double> FloatOf(const JsonView& view) {
  if (view.kind() == JsonView::Kind::kFloat) return view.value().number;
  if (view.kind() == JsonView::Kind::kInt) return static_cast<double>(view.value().integer);
  if (view.is_string() && view.value().text == "NaN") return std::nan("");
  return view.Expected("a number");
}

absl::StatusOr<std::vector<double>> ReadFloats(const JsonView& list) {
  DDPOPT_RETURN_IF_ERROR(list.ExpectArray());
  std::vector<double> values;
  for (std::size_t i = 0; i < list.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(const double value, FloatOf(list[i]));
    values.push_back(value);
  }
  return values;
}

// Names, shapes, dtypes and requires_grad of parameters and buffers, and the shapes of inputs.
absl::Status CompareDescription(const ExportedProgram& program, const JsonView& manifest, bool ordered, Differences* differences) {
  DDPOPT_ASSIGN_OR_RETURN(const auto tied, ReadTied(manifest));
  DDPOPT_ASSIGN_OR_RETURN(const JsonView params, manifest.Array("params"));
  const auto compare = [&](const JsonView& entry, bool parameter) -> absl::StatusOr<std::string> {
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, entry.String("name"));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView shape_view, entry.Array("shape"));
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<int64_t> shape, shape_view.AsInts());
    DDPOPT_ASSIGN_OR_RETURN(const std::string dtype, entry.String("dtype"));
    const absl::optional<at::Tensor> tensor = FindByAnyName(program, name, tied);
    if (!tensor.has_value()) {
      differences->Add("\"", name, "\" is missing");
      return name;
    }
    if (tensor->sizes().vec() != shape)
      differences->Add("\"", name, "\": expected shape ", ShapeText(shape), ", got ", ShapeText(tensor->sizes()));
    if (DtypeWord(tensor->scalar_type()) != dtype)
      differences->Add("\"", name, "\": expected ", dtype, ", got ", DtypeWord(tensor->scalar_type()));
    DDPOPT_ASSIGN_OR_RETURN(const bool requires_grad, entry.BoolOr("requires_grad", parameter));
    if (tensor->requires_grad() != requires_grad) differences->Add("\"", name, "\": requires_grad is ", tensor->requires_grad());
    return name;
  };
  std::vector<std::string> names;
  for (std::size_t i = 0; i < params.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(std::string name, compare(params[i], true));
    names.push_back(std::move(name));
  }
  // A graph file doesn't tell that parameters are one.
  std::set<std::string> distinct;
  for (const auto& parameter : program.parameters()) {
    const auto it = tied.find(parameter.name);
    distinct.insert(it == tied.end() ? parameter.name : it->second);
  }
  if (distinct.size() != names.size()) differences->Add("expected ", names.size(), " parameters, got ", distinct.size());
  for (std::size_t i = 0; ordered && i < std::min(names.size(), program.parameters().size()); ++i) {
    if (program.parameters()[i].name == names[i]) continue;
    differences->Add("parameter ", i, " should be \"", names[i], "\", but is \"", program.parameters()[i].name, "\"");
    break;
  }
  for (const auto& [alias, first] : tied) {
    const auto a = program.FindTensor(alias), b = program.FindTensor(first);
    if (ordered && (!a.has_value() || !b.has_value() || !a->is_same(*b)))
      differences->Add("\"", alias, "\" is not the tensor \"", first, "\"");
  }
  DDPOPT_ASSIGN_OR_RETURN(const JsonView buffers, manifest.Array("buffers"));
  for (std::size_t i = 0; i < buffers.size(); ++i) DDPOPT_RETURN_IF_ERROR(compare(buffers[i], false).status());
  if (program.buffers().size() != buffers.size()) differences->Add("expected ", buffers.size(), " buffers, got ", program.buffers().size());
  DDPOPT_ASSIGN_OR_RETURN(const JsonView inputs, manifest.Array("inputs"));
  if (inputs.size() != program.inputs().size()) {
    differences->Add("expected ", inputs.size(), " inputs, got ", program.inputs().size());
    return absl::OkStatus();
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const JsonView input = inputs[i];  // {"shape", "dtype"} or [shape, dtype]
    const bool pair = input.is_array() && input.size() == 2;
    DDPOPT_ASSIGN_OR_RETURN(const JsonView shape_view, pair ? absl::StatusOr<JsonView>(input[0]) : input.Array("shape"));
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<int64_t> shape, shape_view.AsInts());
    DDPOPT_ASSIGN_OR_RETURN(const std::string dtype, pair ? input[1].AsString() : input.String("dtype"));
    const ProgramInput& own = program.inputs()[i];
    bool same = own.kind == ProgramInput::Kind::kTensor && own.sizes.size() == shape.size() && DtypeWord(own.dtype) == dtype;
    for (std::size_t d = 0; same && d < shape.size(); ++d) {
      const absl::StatusOr<int64_t> size = own.sizes[d].EvaluateInt({});
      same = !size.ok() || *size == shape[d];
    }
    if (!same) differences->Add("input \"", own.name, "\" is not the recorded ", dtype, " ", ShapeText(shape));
  }
  return absl::OkStatus();
}

void ClearGradients(const ExportedProgram& program) {
  for (const auto& parameter : program.parameters()) parameter.tensor.mutable_grad().reset();
}

void Backward(const std::vector<IValue>& outputs) {
  std::vector<at::Tensor> losses;
  for (const IValue& output : outputs) {
    if (!output.isTensor() || !output.toTensor().requires_grad()) continue;
    losses.push_back(output.toTensor().dim() == 0 ? output.toTensor() : at::sum(output.toTensor()));
  }
  if (!losses.empty()) torch::autograd::backward(losses);
}

absl::Status CompareGradients(const ExportedProgram& program, const std::map<std::string, at::Tensor>& gradients,
                              const SafetensorsFile& file, const std::string& prefix, const std::map<std::string, double>& floors,
                              Differences* differences) {
  std::map<const c10::TensorImpl*, std::string> first_names;
  for (const auto& parameter : program.parameters()) first_names.emplace(parameter.tensor.unsafeGetTensorImpl(), parameter.name);
  std::set<std::string> recorded;
  for (const auto& [name, entry] : file.entries()) {
    if (!absl::StartsWith(name, prefix)) continue;
    const std::string parameter = name.substr(prefix.size());
    DDPOPT_ASSIGN_OR_RETURN(const at::Tensor expected, file.Read(name));
    const absl::optional<at::Tensor> tensor = program.FindTensor(parameter);
    const auto first = tensor.has_value() ? first_names.find(tensor->unsafeGetTensorImpl()) : first_names.end();
    if (first == first_names.end()) {
      differences->Add("there is no parameter \"", parameter, "\"");
      continue;
    }
    recorded.insert(first->second);
    const auto gradient = gradients.find(first->second);
    if (gradient == gradients.end()) {
      differences->Add("\"", parameter, "\" has no gradient");
      continue;
    }
    const auto floor = floors.find(first->second);
    differences->AddTensor(absl::StrCat("gradient of \"", parameter, "\""), gradient->second, expected,
                           floor == floors.end() ? 0 : floor->second);
  }
  for (const auto& [name, gradient] : gradients) {
    if (!recorded.contains(name)) differences->Add("\"", name, "\" has a gradient, which PyTorch's has not");
  }
  return absl::OkStatus();
}

Statistics Statistics::Of(const at::Tensor& tensor) {
  Statistics result;
  const at::Tensor values = tensor.detach().to(at::kDouble).contiguous();
  const double* data = values.const_data_ptr<double>();
  result.numel = values.numel();
  double squares = 0;
  for (int64_t k = 0; k < result.numel; ++k) {
    squares += data[k] * data[k];
    result.sum += data[k];
    result.abssum += std::abs(data[k]);
    result.largest = std::max(result.largest, std::abs(data[k]));
  }
  result.l2 = std::sqrt(squares);
  if (result.numel > 0) result.first = data[0];
  return result;
}

void Statistics::Widen(const Statistics& a, const Statistics& b) {
  l2 = std::max(l2, std::abs(a.l2 - b.l2));
  sum = std::max(sum, std::abs(a.sum - b.sum));
  abssum = std::max(abssum, std::abs(a.abssum - b.abssum));
  first = std::max(first, std::abs(a.first - b.first));
}

absl::Status CompareStatistics(const JsonView& stats, const FindTensor& find, const Allowance& allowance, Differences* differences) {
  DDPOPT_RETURN_IF_ERROR(stats.ExpectObject());
  for (std::size_t i = 0; i < stats.size(); ++i) {
    const std::string& name = stats.KeyAt(i);
    const JsonView entry = stats[i];
    const absl::optional<at::Tensor> found = find(name);
    if (!found.has_value() || !found->defined()) {
      differences->Add("\"", name, "\" is missing");
      continue;
    }
    const double tolerance = std::max(ToleranceOf(found->scalar_type()), 1e-12);
    const Statistics own = Statistics::Of(*found);
    const Statistics allowed = allowance ? allowance(name, own) : Statistics();
    const auto compare = [&](const char* key, double actual, double scale, double more) -> absl::Status {
      if (!entry.Has(key)) return absl::OkStatus();
      DDPOPT_ASSIGN_OR_RETURN(const JsonView view, entry.At(key));
      DDPOPT_ASSIGN_OR_RETURN(const double expected, FloatOf(view));
      double most = tolerance * std::abs(expected);
      most = std::max({most, 1e-14 * scale, allowance ? 1e-3 * tolerance * scale : 0, more});
      differences->AddNumber(absl::StrCat("\"", name, "\": ", key), actual, expected, most, scale);
      return absl::OkStatus();
    };
    DDPOPT_RETURN_IF_ERROR(compare("l2", own.l2, 0, allowed.l2));
    DDPOPT_RETURN_IF_ERROR(compare("sum", own.sum, own.abssum, allowed.sum));
    DDPOPT_RETURN_IF_ERROR(compare("abssum", own.abssum, 0, allowed.abssum));
    if (own.numel > 0) DDPOPT_RETURN_IF_ERROR(compare("first", own.first, own.largest, allowed.first));
  }
  return absl::OkStatus();
}

void CompareLosses(absl::string_view name, const std::vector<double>& actual, const std::vector<double>& expected,
                   const std::vector<double>& allowed, Differences* differences) {
  if (actual.size() != expected.size()) differences->Add(name, ": expected ", expected.size(), " losses, got ", actual.size());
  for (std::size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    differences->AddNumber(absl::StrCat(name, "[", i, "]"), actual[i], expected[i],
                           std::max(1e-4 * std::abs(expected[i]), i < allowed.size() ? allowed[i] : 0.0));
  }
}

}  // namespace ddpopt
