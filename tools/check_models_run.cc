#include "tools/check_models_run.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/abs.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/max.h"
#include "ATen/ops/sub.h"
#include "ATen/ops/sum.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status.h"
#include "ddpopt/backends/aot_eager.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/capture/pt2/safetensors.h"
#include "ddpopt/ddp/program_data_parallel.h"
#include "ddpopt/distributed/launcher.h"
#include "ddpopt/distributed/process_group.h"
#include "fx_graph/text/json_view.h"
#include "nlohmann/json.hpp"
#include "tools/fake_run.h"
#include "torch/csrc/autograd/autograd.h"

namespace ddpopt {
namespace {

namespace fs = std::filesystem;
using c10::IValue;
using fx::JsonView;

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
std::string Number(double value) { return absl::StrCat(absl::SixDigits(value)); }

// Everything that differs, a line each.
class Differences {
 public:
  template <typename... Parts>
  void Add(const Parts&... parts) {
    lines_.push_back(absl::StrCat(parts...));
  }
  void AddTensor(absl::string_view name, const at::Tensor& actual, const at::Tensor& expected, double floor = 0) {
    if (const std::string text = TensorDifference(actual, expected, floor); !text.empty()) Add(name, ": ", text);
  }
  // 1e-4 of the expected number.
  void AddNumber(absl::string_view name, double actual, double expected, double tolerance) {
    if (!(std::abs(actual - expected) <= tolerance) && !(std::isnan(actual) && std::isnan(expected))) {
      Add(name, ": expected ", Number(expected), ", got ", Number(actual));
    }
  }
  void AddStatus(const absl::Status& status) {
    if (!status.ok()) Add(status.message());
  }
  bool empty() const { return lines_.empty(); }
  const std::vector<std::string>& lines() const { return lines_; }
  std::string Text() const {
    constexpr std::size_t kMost = 5;
    std::vector<std::string> shown(lines_.begin(), lines_.begin() + std::min(lines_.size(), kMost));
    if (lines_.size() > kMost) shown.push_back(absl::StrCat("and ", lines_.size() - kMost, " more differences"));
    return absl::StrJoin(shown, "\n");
  }

 private:
  std::vector<std::string> lines_;
};

absl::StatusOr<double> FloatOf(const JsonView& view) {
  if (view.kind() == JsonView::Kind::kFloat) return view.value().number;
  if (view.kind() == JsonView::Kind::kInt) return static_cast<double>(view.value().integer);
  if (view.is_string() && view.value().text == "NaN") return std::nan("");
  return view.Expected("a number");
}

// A folder's manifest, kept with the text that its views point into.
struct Manifest {
  fx::JsonValue json;
  static absl::StatusOr<std::unique_ptr<Manifest>> Read(const fs::path& path) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path.string()));
    auto manifest = std::make_unique<Manifest>();
    absl::StatusOr<fx::JsonValue> json = fx::ParseJson(text);
    if (!json.ok()) return Annotate(json.status(), absl::StrCat("\"", path.string(), "\""));
    manifest->json = *std::move(json);
    return manifest;
  }
  JsonView root() const { return JsonView(json); }
};

absl::StatusOr<std::map<std::string, std::string>> ReadTied(const JsonView& manifest) {
  std::map<std::string, std::string> tied;
  DDPOPT_ASSIGN_OR_RETURN(const JsonView view, manifest.Object("tied"));
  for (std::size_t i = 0; i < view.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(tied[view.KeyAt(i)], view[i].AsString());
  }
  return tied;
}

// A program's tensor by a recorded name, or by the name of one that it is tied to: a graph file knows one of them.
absl::optional<at::Tensor> FindByAnyName(const ExportedProgram& program, const std::string& name, const std::map<std::string, std::string>& tied) {
  if (const auto tensor = program.FindTensor(name); tensor.has_value()) return tensor;
  for (const auto& [alias, first] : tied) {
    if (first != name) continue;
    if (const auto tensor = program.FindTensor(alias); tensor.has_value()) return tensor;
  }
  return absl::nullopt;
}

std::string DtypeWord(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float: return "float32";
    case c10::ScalarType::Double: return "float64";
    case c10::ScalarType::Half: return "float16";
    case c10::ScalarType::BFloat16: return "bfloat16";
    case c10::ScalarType::Long: return "int64";
    case c10::ScalarType::Int: return "int32";
    case c10::ScalarType::Short: return "int16";
    case c10::ScalarType::Char: return "int8";
    case c10::ScalarType::Byte: return "uint8";
    case c10::ScalarType::Bool: return "bool";
    default: return c10::toString(dtype);
  }
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
    if (tensor->sizes().vec() != shape) differences->Add("\"", name, "\": expected shape ", ShapeText(shape), ", got ", ShapeText(tensor->sizes()));
    if (DtypeWord(tensor->scalar_type()) != dtype) differences->Add("\"", name, "\": expected ", dtype, ", got ", DtypeWord(tensor->scalar_type()));
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
    if (ordered && (!a.has_value() || !b.has_value() || !a->is_same(*b))) differences->Add("\"", alias, "\" is not the tensor \"", first, "\"");
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

absl::StatusOr<std::vector<IValue>> ReadBatch(const SafetensorsFile& file, const std::string& prefix) {
  std::vector<IValue> batch;
  for (int i = 0; file.Has(absl::StrCat(prefix, ".arg", i)); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(at::Tensor tensor, file.Read(absl::StrCat(prefix, ".arg", i)));
    batch.emplace_back(std::move(tensor));
  }
  if (batch.empty()) return absl::NotFoundError(absl::StrCat("there is no batch \"", prefix, ".arg0\""));
  return batch;
}

void ClearGradients(const ExportedProgram& program) {
  for (const auto& parameter : program.parameters()) parameter.tensor.mutable_grad().reset();
}

double LargestGradient(const ExportedProgram& program) {
  double largest = 0;
  for (const auto& parameter : program.parameters()) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined() && gradient.numel() > 0) largest = std::max(largest, gradient.abs().max().item().toDouble());
  }
  return largest;
}

// Gradients are sums of many parts. Where the parts cancel (the bias of a convolution before a batch norm) what is left is rounding, which another CPU rounds
// otherwise: nothing is held to less than this fraction of the model's largest gradient.
constexpr double kCancelled = 5e-7;

// Recorded gradients against the parameters', both ways; `prefix` is what the file puts before the names. `floor` becomes what differences are allowed at least.
absl::Status CompareGradients(const ExportedProgram& program, const SafetensorsFile& file, const std::string& prefix, Differences* differences,
                              double* floor = nullptr) {
  std::map<std::string, at::Tensor> expected;
  double largest = 0;
  for (const auto& [name, entry] : file.entries()) {
    if (!absl::StartsWith(name, prefix)) continue;
    DDPOPT_ASSIGN_OR_RETURN(const at::Tensor gradient, file.Read(name));
    if (gradient.numel() > 0 && gradient.scalar_type() == at::kFloat) largest = std::max(largest, gradient.abs().max().item().toDouble());
    expected.emplace(name.substr(prefix.size()), gradient);
  }
  if (!std::isfinite(largest)) largest = 0;
  if (floor != nullptr) *floor = kCancelled * largest;
  std::set<const c10::TensorImpl*> recorded;
  for (const auto& [parameter, gradient] : expected) {
    const absl::optional<at::Tensor> tensor = program.FindTensor(parameter);
    if (!tensor.has_value()) {
      differences->Add("there is no parameter \"", parameter, "\"");
      continue;
    }
    recorded.insert(tensor->unsafeGetTensorImpl());
    if (!tensor->grad().defined()) {
      differences->Add("\"", parameter, "\" has no gradient");
      continue;
    }
    differences->AddTensor(absl::StrCat("gradient of \"", parameter, "\""), tensor->grad(), gradient,
                           gradient.scalar_type() == at::kFloat ? kCancelled * largest : 0);
  }
  for (const auto& parameter : program.parameters()) {
    if (parameter.tensor.grad().defined() && !recorded.contains(parameter.tensor.unsafeGetTensorImpl())) {
      differences->Add("\"", parameter.name, "\" has a gradient, which PyTorch's has not");
    }
  }
  return absl::OkStatus();
}

// Of one tensor, in float64.
struct Statistics {
  double l2 = 0, sum = 0, abssum = 0, first = 0;
  double largest = 0;
  int64_t numel = 0;

  static Statistics Of(const at::Tensor& tensor) {
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
};

using FindTensor = std::function<absl::optional<at::Tensor>(const std::string&)>;
// What differences are allowed beside the tolerance of the dtype: of a tensor's statistics.
using Allowance = std::function<Statistics(const std::string& name, const Statistics& own)>;

// {name: {"l2", "sum", "abssum", "first"}} against tensors. Sums cancel: they are held to the size of what was added up too.
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
      differences->AddNumber(absl::StrCat("\"", name, "\": ", key), actual, expected, std::max(tolerance * std::max(std::abs(expected), scale), more));
      return absl::OkStatus();
    };
    DDPOPT_RETURN_IF_ERROR(compare("l2", own.l2, 0, allowed.l2));
    DDPOPT_RETURN_IF_ERROR(compare("sum", own.sum, 1e-2 * own.abssum, allowed.sum));
    DDPOPT_RETURN_IF_ERROR(compare("abssum", own.abssum, 0, allowed.abssum));
    if (own.numel > 0) DDPOPT_RETURN_IF_ERROR(compare("first", own.first, 1e-2 * own.largest, allowed.first));
  }
  return absl::OkStatus();
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

void CompareLosses(absl::string_view name, const std::vector<double>& actual, const std::vector<double>& expected, const std::vector<double>& allowed,
                   Differences* differences) {
  if (actual.size() != expected.size()) differences->Add(name, ": expected ", expected.size(), " losses, got ", actual.size());
  for (std::size_t i = 0; i < std::min(actual.size(), expected.size()); ++i) {
    differences->AddNumber(absl::StrCat(name, "[", i, "]"), actual[i], expected[i],
                           std::max(1e-4 * std::abs(expected[i]), i < allowed.size() ? allowed[i] : 0.0));
  }
}

// SGD as PyTorch's, with momentum, of the recorded rate.
class Sgd {
 public:
  static absl::StatusOr<Sgd> Read(const JsonView& manifest) {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView train, manifest.Object("train"));
    DDPOPT_ASSIGN_OR_RETURN(const std::string optimizer, train.String("optimizer"));
    if (optimizer != "SGD") return train.Error("the optimizer ", optimizer, " is not known here");
    Sgd sgd;
    DDPOPT_ASSIGN_OR_RETURN(const JsonView lr, train.At("lr"));
    DDPOPT_ASSIGN_OR_RETURN(sgd.rate_, FloatOf(lr));
    if (train.Has("momentum")) {
      DDPOPT_ASSIGN_OR_RETURN(const JsonView momentum, train.At("momentum"));
      DDPOPT_ASSIGN_OR_RETURN(sgd.momentum_, FloatOf(momentum));
    }
    return sgd;
  }
  // How far one gradient, the same in every step, moves a parameter at most.
  double Reach(std::size_t steps) const { return rate_ * static_cast<double>(steps) / (1 - std::min(momentum_, 0.99)); }
  void Step(const ExportedProgram& program) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : program.parameters()) {
      const at::Tensor gradient = parameter.tensor.grad();
      if (!gradient.defined()) continue;
      at::Tensor& velocity = velocities_[parameter.name];
      if (velocity.defined()) {
        velocity.mul_(momentum_).add_(gradient);
      } else {
        velocity = gradient.clone();
      }
      parameter.tensor.add_(velocity, -rate_);
    }
  }

 private:
  double rate_ = 0, momentum_ = 0;
  std::map<std::string, at::Tensor> velocities_;
};

std::vector<at::Tensor> Backward(const std::vector<IValue>& outputs) {
  std::vector<at::Tensor> losses;
  for (const IValue& output : outputs) {
    if (!output.isTensor() || !output.toTensor().requires_grad()) continue;
    losses.push_back(output.toTensor().dim() == 0 ? output.toTensor() : at::sum(output.toTensor()));
  }
  if (!losses.empty()) torch::autograd::backward(losses);
  return losses;
}

absl::Status OfField(absl::string_view what, const absl::Status& status) { return status.ok() ? status : Annotate(status, what); }

// What statistics may differ by if each element may by `floor`.
Statistics OfRounding(double floor, int64_t numel) {
  Statistics allowed;
  allowed.l2 = floor * std::sqrt(static_cast<double>(numel));
  allowed.sum = allowed.abssum = floor * static_cast<double>(numel);
  allowed.first = floor;
  return allowed;
}

// One folder of models/.
class ModelChecker {
 public:
  explicit ModelChecker(fs::path dir) : dir_(std::move(dir)) {}

  absl::Status Load(Differences* differences) {
    DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read(dir_ / "manifest.json"));
    DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadProgram());
    DDPOPT_RETURN_IF_ERROR(program->module()->Lint());
    DDPOPT_RETURN_IF_ERROR(program->CheckExecutable());
    DDPOPT_RETURN_IF_ERROR(program->CheckData());
    DDPOPT_RETURN_IF_ERROR(CompareDescription(*program, manifest->root(), /*ordered=*/true, differences));
    DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile weights, SafetensorsFile::Open((dir_ / "weights.safetensors").string()));
    for (const auto& [name, entry] : weights.entries()) {
      const absl::optional<at::Tensor> tensor = program->FindTensor(name);
      if (!tensor.has_value()) {
        differences->Add("there is no parameter or buffer \"", name, "\"");
        continue;
      }
      DDPOPT_ASSIGN_OR_RETURN(const at::Tensor expected, weights.Read(name));
      if (tensor->sizes() != expected.sizes() || tensor->scalar_type() != expected.scalar_type() || !at::equal(tensor->detach(), expected)) {
        differences->Add("the weight \"", name, "\" differs from weights.safetensors");
      }
    }
    return absl::OkStatus();
  }

  absl::Status Loss(Differences* differences) {
    DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read(dir_ / "manifest.json"));
    const JsonView root = manifest->root();
    DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadProgram());
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<IValue> batch, Batch(0));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView loss_view, root.At("loss0"));
    DDPOPT_ASSIGN_OR_RETURN(const double expected, FloatOf(loss_view));
    return CatchAsStatus("forward", [&] {
      const std::vector<IValue> outputs = program->RunFlat(batch);
      differences->AddNumber("loss0", outputs.at(0).toTensor().item().toDouble(), expected, 1e-4 * std::abs(expected));
    });
  }

  absl::Status Grads(Differences* differences) {
    DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read(dir_ / "manifest.json"));
    const JsonView root = manifest->root();
    DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadProgram());
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<IValue> batch, Batch(0));
    DDPOPT_RETURN_IF_ERROR(CatchAsStatus("forward and backward", [&] { Backward(program->RunFlat(batch)); }));
    DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile grads, SafetensorsFile::Open((dir_ / "grads.safetensors").string()));
    double floor = 0;
    DDPOPT_RETURN_IF_ERROR(CompareGradients(*program, grads, "", differences, &floor));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView stats, root.Object("grad_stats"));
    DDPOPT_RETURN_IF_ERROR(CompareStatistics(
        stats,
        [&](const std::string& name) -> absl::optional<at::Tensor> {
          const auto tensor = program->FindTensor(name);
          return tensor.has_value() ? absl::optional<at::Tensor>(tensor->grad()) : absl::nullopt;
        },
        [&](const std::string&, const Statistics& own) {
          return OfRounding(floor, own.numel);
        },
        differences));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView none, root.Array("no_grad_params"));
    for (std::size_t i = 0; i < none.size(); ++i) {
      DDPOPT_ASSIGN_OR_RETURN(const std::string name, none[i].AsString());
      const auto tensor = program->FindTensor(name);
      if (!tensor.has_value() || tensor->grad().defined()) differences->Add("\"", name, "\" must be there and have no gradient");
    }
    return absl::OkStatus();
  }

  absl::Status Trajectory(Differences* differences) {
    DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read(dir_ / "manifest.json"));
    const JsonView root = manifest->root();
    DDPOPT_ASSIGN_OR_RETURN(const JsonView single_view, root.Array("losses_single"));
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<double> expected, ReadFloats(single_view));
    DDPOPT_ASSIGN_OR_RETURN(const Training training, Train(root, expected.size(), 0));
    const auto compare = [&](const Allowances& allowed, Differences* found) -> absl::Status {
      CompareLosses("losses_single", training.losses, expected, allowed.losses, found);
      if (root.Has("losses_exported_module")) {
        DDPOPT_ASSIGN_OR_RETURN(const JsonView exported_view, root.Array("losses_exported_module"));
        DDPOPT_ASSIGN_OR_RETURN(const std::vector<double> exported, ReadFloats(exported_view));
        CompareLosses("losses_exported_module", training.losses, exported, allowed.losses, found);
      }
      const auto find = [&](const std::string& name) { return training.program->FindTensor(name); };
      DDPOPT_ASSIGN_OR_RETURN(const JsonView params, root.Object("final_param_stats_single"));
      DDPOPT_RETURN_IF_ERROR(OfField("final_param_stats_single", CompareStatistics(params, find, allowed.Of(training.floor), found)));
      DDPOPT_ASSIGN_OR_RETURN(const JsonView buffers, root.Object("final_buffer_stats_single"));
      return OfField("final_buffer_stats_single", CompareStatistics(buffers, find, allowed.Of(training.floor), found));
    };
    Differences strict;
    DDPOPT_RETURN_IF_ERROR(compare(Allowances(), &strict));
    if (strict.empty()) return absl::OkStatus();
    DDPOPT_ASSIGN_OR_RETURN(const Allowances allowed, Sensitivity(root, expected.size()));
    return compare(allowed, differences);
  }

  // On one of the ranks of a training: its gradients of the first step, and its losses, parameters and buffers after the last.
  absl::Status TrainOnRanks(Differences* grads, Differences* trajectory) {
    DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read(dir_ / "manifest.json"));
    const JsonView root = manifest->root();
    DDPOPT_ASSIGN_OR_RETURN(const JsonView ddp, root.Object("ddp"));
    DDPOPT_ASSIGN_OR_RETURN(const ProcessGroup group, InitProcessGroup());
    DDPOPT_ASSIGN_OR_RETURN(const int64_t world_size, ddp.Int("world_size"));
    if (world_size != group.world_size()) {
      return ddp.Error("the training of ", world_size, " ranks can't be repeated on ", group.world_size());
    }
    const std::string rank = absl::StrCat("rank", group.rank());
    DDPOPT_ASSIGN_OR_RETURN(const JsonView all_losses, ddp.Object("losses"));
    DDPOPT_ASSIGN_OR_RETURN(const JsonView losses_view, all_losses.Array(rank));
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<double> expected, ReadFloats(losses_view));
    DDPOPT_ASSIGN_OR_RETURN(const Training training, TrainAsRank(root, group, expected.size(), 0, grads));
    const auto compare = [&](const Allowances& allowed, Differences* found) -> absl::Status {
      CompareLosses(absl::StrCat("ddp.losses.", rank), training.losses, expected, allowed.losses, found);
      const auto find = [&](const std::string& name) { return training.program->FindTensor(name); };
      DDPOPT_ASSIGN_OR_RETURN(const JsonView params, ddp.Object("final_param_stats"));
      DDPOPT_RETURN_IF_ERROR(OfField("ddp.final_param_stats", CompareStatistics(params, find, allowed.Of(training.floor), found)));
      DDPOPT_ASSIGN_OR_RETURN(const JsonView all_buffers, ddp.Object("final_buffer_stats"));
      DDPOPT_ASSIGN_OR_RETURN(const JsonView buffers, all_buffers.Object(rank));
      return OfField(absl::StrCat("ddp.final_buffer_stats.", rank), CompareStatistics(buffers, find, allowed.Of(training.floor), found));
    };
    Differences strict;
    DDPOPT_RETURN_IF_ERROR(compare(Allowances(), &strict));
    // Whether the training is repeated is for all ranks to decide: repeating it is collective.
    DDPOPT_ASSIGN_OR_RETURN(const auto verdicts, group.AllGatherText("verdicts", strict.empty() ? "" : "differs"));
    if (absl::StrJoin(verdicts, "").empty()) return absl::OkStatus();
    // Ranks draw each other's batch norms along, and amplify more than one process does: as much as they do is allowed, whatever that is.
    Allowances allowed;
    constexpr double kMargin = 3;  // of so few samples
    for (const uint64_t seed : {1, 2, 3, 4}) {
      DDPOPT_ASSIGN_OR_RETURN(const Training moved, TrainAsRank(root, group, expected.size(), seed, nullptr));
      allowed.Widen(training, moved, kMargin);
    }
    return compare(allowed, trajectory);
  }

  void set_aot(bool aot) { aot_ = aot; }
  // Starts the ranks once; what they found, for both cases.
  absl::Status RunRanks(const std::string& program, const std::string& backend) {
    if (ranks_ran_) return ranks_status_;
    ranks_ran_ = true;
    ranks_status_ = [&]() -> absl::Status {
      if (program.empty()) return absl::FailedPreconditionError("there is no program to start on the ranks");
      std::string folder = (fs::temp_directory_path() / "check_models.XXXXXX").string();
      if (mkdtemp(folder.data()) == nullptr) {
        return absl::UnavailableError(absl::StrCat("no temporary folder can be made: \"", folder, "\""));
      }
      struct Remove {
        std::string folder;
        ~Remove() {
          std::error_code error;
          fs::remove_all(folder, error);
        }
      } remove{folder};
      LaunchOptions options;
      options.nproc_per_node = 2;
      options.timeout_seconds = 300;
      options.stdout_fd = 2;
      const std::string result = absl::StrCat(folder, "/result");
      const std::vector<std::string> command = {program, absl::StrCat("--rank_model=", dir_.string()), absl::StrCat("--rank_result=", result),
                                                absl::StrCat("--backend=", backend)};
      DDPOPT_ASSIGN_OR_RETURN(const LaunchResult launched, Launch(command, options));
      for (int rank = 0; rank < options.nproc_per_node; ++rank) {
        const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(result, ".", rank));
        if (!text.ok()) return absl::InternalError(absl::StrCat("rank ", rank, " left no result: ", launched.reason));
        const nlohmann::json json = nlohmann::json::parse(*text);
        const auto add = [&](const char* name, Differences* differences) {
          for (const auto& line : json.at(name)) differences->Add("rank ", rank, ": ", line.get<std::string>());
        };
        add("grads", &rank_grads_);
        add("trajectory", &rank_trajectory_);
      }
      return absl::OkStatus();
    }();
    return ranks_status_;
  }
  const Differences& rank_grads() const { return rank_grads_; }
  const Differences& rank_trajectory() const { return rank_trajectory_; }

  struct Training {
    std::shared_ptr<ExportedProgram> program;
    std::vector<double> losses;
    double floor = 0;  // how far gradients that are rounding alone have moved a parameter
  };

  // What training amplifies rounding to.
  struct Allowances {
    std::vector<double> losses;
    std::map<std::string, Statistics> tensors;
    Allowance Of(double floor) const {
      return [this, floor](const std::string& name, const Statistics& own) {
        Statistics allowed = OfRounding(floor, own.numel);
        const auto it = tensors.find(name);
        if (it == tensors.end()) return allowed;
        allowed.l2 = std::max(allowed.l2, it->second.l2);
        allowed.sum = std::max(allowed.sum, it->second.sum);
        allowed.abssum = std::max(allowed.abssum, it->second.abssum);
        allowed.first = std::max(allowed.first, it->second.first);
        return allowed;
      };
    }
    // By how much a training begun from moved weights differs, times `margin`.
    void Widen(const Training& base, const Training& moved, double margin) {
      losses.resize(base.losses.size());
      for (std::size_t i = 0; i < losses.size(); ++i) losses[i] = std::max(losses[i], margin * std::abs(moved.losses[i] - base.losses[i]));
      for (const auto& [name, attr] : base.program->module()->attrs()) {
        if (!attr.value.isTensor() || !c10::isFloatingType(attr.value.toTensor().scalar_type())) continue;
        const Statistics a = Statistics::Of(attr.value.toTensor()), b = Statistics::Of(*moved.program->FindTensor(name));
        Statistics& of = tensors[name];
        of.l2 = std::max(of.l2, margin * std::abs(a.l2 - b.l2));
        of.abssum = std::max(of.abssum, margin * std::abs(a.abssum - b.abssum));
        of.sum = std::max(of.sum, margin * std::abs(a.sum - b.sum));
        of.first = std::max(of.first, margin * std::abs(a.first - b.first));
      }
    }
    // No figure may differ by more than 1 % of itself; numbers that cancel: of what was added up, a little less.
    void Limit(const Training& base) {
      constexpr double kMost = 1e-2;
      for (std::size_t i = 0; i < losses.size(); ++i) losses[i] = std::min(losses[i], kMost * std::abs(base.losses[i]));
      for (auto& [name, of] : tensors) {
        const Statistics a = Statistics::Of(*base.program->FindTensor(name));
        of.l2 = std::min(of.l2, kMost * a.l2);
        of.abssum = std::min(of.abssum, kMost * a.abssum);
        of.sum = std::min(of.sum, std::max(kMost * std::abs(a.sum), 2e-3 * a.abssum));
        of.first = std::min(of.first, std::max(kMost * std::abs(a.first), 5e-3 * a.largest));
      }
    }
  };

  // Some trainings amplify a rounding error a thousandfold in ten steps, and another CPU rounds otherwise. So a training that differs by more
  // than the tolerance is held against itself, begun from weights moved by about a unit in their last place: it may differ by as much, but
  // by no more than 1 %.
  absl::StatusOr<Allowances> Sensitivity(const JsonView& root, std::size_t steps) const {
    DDPOPT_ASSIGN_OR_RETURN(const Training base, Train(root, steps, 0));
    Allowances allowed;
    for (const uint64_t seed : {1, 2}) {
      DDPOPT_ASSIGN_OR_RETURN(const Training moved, Train(root, steps, seed));
      allowed.Widen(base, moved, 1);
    }
    allowed.Limit(base);
    return allowed;
  }

 private:
  absl::StatusOr<std::shared_ptr<ExportedProgram>> LoadProgram() const { return LoadExportedProgram((dir_ / "model.pt2").string()); }
  // `seed` 0: from the recorded weights.
  absl::StatusOr<Training> Train(const JsonView& root, std::size_t steps, uint64_t seed) const {
    Training training;
    DDPOPT_ASSIGN_OR_RETURN(training.program, LoadProgram());
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<IValue> batch, Batch(0));
    DDPOPT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Read(root));
    DDPOPT_RETURN_IF_ERROR(CatchAsStatus("training", [&] {
      if (seed != 0) Move(*training.program, seed);
      double largest = 0;
      for (std::size_t step = 0; step < steps; ++step) {
        ClearGradients(*training.program);
        const std::vector<IValue> outputs = training.program->RunFlat(batch);
        training.losses.push_back(outputs.at(0).toTensor().item().toDouble());
        Backward(outputs);
        largest = std::max(largest, LargestGradient(*training.program));
        sgd.Step(*training.program);
      }
      training.floor = kCancelled * largest * sgd.Reach(steps);
    }));
    return training;
  }
  // The same on one of several ranks, with the recorded options; `grads`, unless null, becomes what differs in the first step's gradients.
  absl::StatusOr<Training> TrainAsRank(const JsonView& root, const ProcessGroup& group, std::size_t steps, uint64_t seed,
                                       Differences* grads) const {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView ddp, root.Object("ddp"));
    DdpOptions options;
    if (aot_) {
      options.backend = AotEagerBackend();
      options.eager_fallback = false;
    }
    DDPOPT_ASSIGN_OR_RETURN(const JsonView cap, ddp.At("bucket_cap_mb"));
    DDPOPT_ASSIGN_OR_RETURN(options.bucket_cap_mb, FloatOf(cap));
    DDPOPT_ASSIGN_OR_RETURN(options.find_unused_parameters, ddp.BoolOr("find_unused_parameters", false));
    DDPOPT_ASSIGN_OR_RETURN(options.broadcast_buffers, ddp.BoolOr("broadcast_buffers", true));
    Training training;
    DDPOPT_ASSIGN_OR_RETURN(training.program, LoadProgram());
    if (seed != 0) Move(*training.program, seed);
    DDPOPT_ASSIGN_OR_RETURN(const auto wrapped, ProgramDataParallel::Create(training.program, group, options));
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<IValue> batch, Batch(group.rank()));
    std::vector<at::Tensor> tensors;
    for (const IValue& value : batch) tensors.push_back(value.toTensor());
    DDPOPT_ASSIGN_OR_RETURN(Sgd sgd, Sgd::Read(root));
    DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile gradients, SafetensorsFile::Open((dir_ / "ddp_grads.safetensors").string()));
    double largest = 0;
    for (std::size_t step = 0; step < steps; ++step) {
      DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("step ", step), [&] {
        ClearGradients(*training.program);
        const at::Tensor loss = wrapped->Forward(tensors);
        training.losses.push_back(loss.item().toDouble());
        torch::autograd::backward({loss});
        largest = std::max(largest, LargestGradient(*training.program));
      }));
      if (step == 0 && grads != nullptr) DDPOPT_RETURN_IF_ERROR(CompareGradients(*training.program, gradients, "", grads));
      sgd.Step(*training.program);
    }
    training.floor = kCancelled * largest * sgd.Reach(steps);
    return training;
  }
  static void Move(const ExportedProgram& program, uint64_t seed) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : program.parameters()) {
      if (parameter.tensor.scalar_type() != at::kFloat) continue;
      at::Tensor moved = parameter.tensor.contiguous().clone();
      float* data = moved.mutable_data_ptr<float>();
      for (int64_t k = 0; k < moved.numel(); ++k) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        data[k] *= static_cast<float>(1 + ((seed >> 40) / 8388608.0 - 1) * 6e-8 * 2);
      }
      parameter.tensor.copy_(moved);
    }
  }
  absl::StatusOr<std::vector<IValue>> Batch(int rank) const {
    DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open((dir_ / "batches.safetensors").string()));
    return ReadBatch(file, absl::StrCat("rank", rank));
  }

  const fs::path dir_;
  bool aot_ = false;
  bool ranks_ran_ = false;
  absl::Status ranks_status_;
  Differences rank_grads_, rank_trajectory_;
};

// A graph file and the description beside it.
class GraphChecker {
 public:
  explicit GraphChecker(fs::path file) : file_(std::move(file)) {}

  absl::Status Load(Differences* differences) {
    DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadExportedProgram(file_.string()));
    const std::string name = file_.filename().string();
    const fs::path meta = file_.parent_path() / absl::StrCat(name.substr(0, name.find(".model.json")), ".meta.json");
    DDPOPT_ASSIGN_OR_RETURN(const auto manifest, Manifest::Read(meta));
    DDPOPT_RETURN_IF_ERROR(program->CheckExecutable());
    return CompareDescription(*program, manifest->root(), /*ordered=*/false, differences);
  }

  absl::Status Lint(Differences* /*differences*/) {
    DDPOPT_ASSIGN_OR_RETURN(const auto program, LoadExportedProgram(file_.string()));
    return program->module()->Lint();
  }

  absl::Status Fake(Differences* differences) {
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

 private:
  static void Compare(const std::string& name, const IValue& recorded, const IValue& value, std::size_t* compared, Differences* differences) {
    if (recorded.isNone()) return;
    if (recorded.isTuple()) {
      const auto& expected = recorded.toTupleRef().elements();
      std::vector<IValue> elements;
      if (value.isTuple()) elements = value.toTupleRef().elements().vec();
      if (value.isList()) elements = value.toListRef().vec();
      if (elements.size() != expected.size()) return differences->Add(name, ": expected ", expected.size(), " values, got ", elements.size());
      for (std::size_t i = 0; i < expected.size(); ++i) Compare(absl::StrCat(name, "[", i, "]"), expected[i], elements[i], compared, differences);
      return;
    }
    ++*compared;
    if (!recorded.isTensor()) {
      if (recorded.tagKind() != value.tagKind() || (recorded.isInt() && recorded.toInt() != value.toInt())) differences->Add(name, ": another value");
      return;
    }
    if (!value.isTensor()) return differences->Add(name, ": expected a tensor, got ", value.tagKind());
    const at::Tensor& expected = recorded.toTensor();
    const at::Tensor& actual = value.toTensor();
    if (actual.sizes() != expected.sizes()) return differences->Add(name, ": expected shape ", ShapeText(expected.sizes()), ", got ", ShapeText(actual.sizes()));
    if (actual.scalar_type() != expected.scalar_type()) {
      differences->Add(name, ": expected ", c10::toString(expected.scalar_type()), ", got ", c10::toString(actual.scalar_type()));
    }
    if (actual.device() != expected.device()) differences->Add(name, ": expected ", expected.device().str(), ", got ", actual.device().str());
    bool same = true;
    for (int64_t d = 0; expected.numel() > 0 && d < expected.dim(); ++d) same &= expected.size(d) <= 1 || actual.stride(d) == expected.stride(d);
    if (!same) differences->Add(name, ": expected strides ", ShapeText(expected.strides()), ", got ", ShapeText(actual.strides()));
  }

  const fs::path file_;
};

// One folder of forms/.
class FormChecker {
 public:
  explicit FormChecker(fs::path dir) : dir_(std::move(dir)) {}

  absl::Status Begin() {
    DDPOPT_ASSIGN_OR_RETURN(manifest_, Manifest::Read(dir_ / "manifest.json"));
    DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open((dir_ / "calls.safetensors").string()));
    file_ = std::make_unique<SafetensorsFile>(file);
    DDPOPT_ASSIGN_OR_RETURN(program_, LoadExportedProgram((dir_ / "model.pt2").string()));
    return program_->module()->Lint();
  }
  absl::StatusOr<std::size_t> NumCalls() const {
    const JsonView root = manifest_->root();
    DDPOPT_ASSIGN_OR_RETURN(const JsonView calls, root.Array("calls"));
    return calls.size();
  }

  // Calls run one after another on the same program.
  absl::Status Call(std::size_t k, Differences* differences) {
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
      outputs = program_->RunFlat(args);
      for (const IValue& output : outputs) requires_grad.push_back(output.isTensor() && output.toTensor().requires_grad());
      Backward(outputs);
    }));
    DDPOPT_RETURN_IF_ERROR(CompareOutputs(call, outputs, requires_grad, differences));
    DDPOPT_RETURN_IF_ERROR(CompareGradients(*program_, *file_, absl::StrCat("call", k, ".grad."), differences));

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

  // Each tensor input in turn with a size that the archive doesn't allow, and with another number of dimensions.
  absl::Status RefusedSize(Differences* differences) {
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

 private:
  // {"tensor": key} or {"value": v}.
  absl::StatusOr<std::vector<IValue>> ReadValues(const JsonView& call, const char* key) const {
    DDPOPT_ASSIGN_OR_RETURN(const JsonView list, call.Array(key));
    std::vector<IValue> values;
    for (std::size_t i = 0; i < list.size(); ++i) {
      DDPOPT_ASSIGN_OR_RETURN(IValue value, ReadValue(list[i]));
      values.push_back(std::move(value));
    }
    return values;
  }
  absl::StatusOr<IValue> ReadValue(const JsonView& view) const {
    if (view.is_object() && view.Has("tensor")) {
      DDPOPT_ASSIGN_OR_RETURN(const std::string name, view.String("tensor"));
      DDPOPT_ASSIGN_OR_RETURN(at::Tensor tensor, file_->Read(name));
      return IValue(std::move(tensor));
    }
    DDPOPT_ASSIGN_OR_RETURN(const JsonView value, view.At("value"));
    switch (value.kind()) {
      case JsonView::Kind::kNull: return IValue();
      case JsonView::Kind::kBool: return IValue(value.value().boolean);
      case JsonView::Kind::kInt: return IValue(value.value().integer);
      case JsonView::Kind::kFloat: return IValue(value.value().number);
      case JsonView::Kind::kString: return IValue(value.value().text);
      default: return value.Expected("a number, a string or null");
    }
  }

  absl::Status CompareOutputs(const JsonView& call, const std::vector<IValue>& outputs, const std::vector<bool>& requires_grad, Differences* differences) const {
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
      if (actual.strides().vec() != strides) differences->Add(name, ": expected strides ", ShapeText(strides), ", got ", ShapeText(actual.strides()));
      DDPOPT_ASSIGN_OR_RETURN(const bool wants_grad, out.BoolOr("requires_grad", false));
      if (requires_grad[i] != wants_grad) differences->Add(name, ": requires_grad is ", requires_grad[i] ? "true" : "false");
    }
    return absl::OkStatus();
  }

  // The recorded tree: "tensor", {"value": v}, {"tuple": [...]}, {"list": [...]}, {"dict": [[key, tree], ...]}.
  static void CompareTree(const std::string& place, const TreeSpec& spec, const JsonView& recorded, Differences* differences) {
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
      if (child.size() != 2 || (child[0].is_string() && spec.kind == TreeSpec::Kind::kDict && !(spec.keys[i].isString() && spec.keys[i].toStringRef() == child[0].value().text))) {
        return differ();
      }
      const JsonView tree = child[1];
      CompareTree(absl::StrCat(place, "[", i, "]"), spec.children[i], tree, differences);
    }
  }

  const fs::path dir_;
  std::unique_ptr<Manifest> manifest_;
  std::unique_ptr<SafetensorsFile> file_;
  std::shared_ptr<ExportedProgram> program_;
};

// Subfolders, or graph files, of a part of the data; what index.json names comes too, so that something missing fails.
std::vector<std::string> NamesIn(const fs::path& dir, const char* index_key) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    const std::string name = entry.path().filename().string();
    if (index_key != nullptr) {
      if (entry.is_directory(error)) names.insert(name);
    } else if (absl::EndsWith(name, ".model.json.gz") || absl::EndsWith(name, ".model.json")) {
      names.insert(name);
    }
  }
  if (index_key == nullptr) return {names.begin(), names.end()};
  if (const auto manifest = Manifest::Read(dir / "index.json"); manifest.ok()) {
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

std::string TensorDifference(const at::Tensor& actual, const at::Tensor& expected, double floor) {
  if (actual.sizes() != expected.sizes()) return absl::StrCat("expected shape ", ShapeText(expected.sizes()), ", got ", ShapeText(actual.sizes()));
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
  return absl::StrCat("differs by ", Number(difference), ", where the largest value is ", Number(largest), " (allowed is ", Number(tolerance), " of it)");
}

absl::Status CheckModels(const CheckModelsOptions& options, const std::function<void(const ModelCase&)>& report) {
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
  const fs::path dir(options.dir);

  for (const std::string& name : NamesIn(dir / "models", "models")) {
    const std::string id = absl::StrCat("models/", name, "/");
    const auto checker = std::make_shared<ModelChecker>(dir / "models" / name);
    run(id + "load", [&](Differences* d) { return checker->Load(d); });
    run(id + "loss", [&](Differences* d) { return checker->Loss(d); });
    run(id + "grads", [&](Differences* d) { return checker->Grads(d); });
    run(id + "trajectory", [&](Differences* d) { return checker->Trajectory(d); });
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
      const fs::path folder = dir / part / name;
      // How many calls there are is the manifest's to say.
      FormChecker calls(folder);
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
  ModelChecker checker{fs::path(model_dir)};
  checker.set_aot(backend == "aot_eager");
  const absl::Status status = CatchAsStatus("unexpected", [&] { return checker.TrainOnRanks(&grads, &trajectory); });
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
