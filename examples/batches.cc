#include "examples/batches.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/randn.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/status.h"
#include "ddpopt/capture/pt2/safetensors.h"
#include "fx_graph/graph.h"
#include "fx_graph/graph_module.h"

namespace ddpopt::examples {
namespace {

using c10::IValue;

std::vector<const fx::Node*> Placeholders(const ExportedProgram& program) {
  std::vector<const fx::Node*> nodes;
  for (const fx::Node* node : program.module()->graph().nodes()) {
    if (node->op() == fx::Op::kPlaceholder) nodes.push_back(node);
  }
  return nodes;
}

// What an integer input is an index into, found by following it through the graph.
class IndexLimit {
 public:
  explicit IndexLimit(const ExportedProgram& program) : program_(program) {}

  // Values must be below this; 2 if nothing tells.
  int64_t Of(const fx::Node* input) {
    limit_ = std::numeric_limits<int64_t>::max();
    seen_.clear();
    Follow(input);
    return limit_ == std::numeric_limits<int64_t>::max() ? 2 : std::max<int64_t>(1, limit_);
  }

 private:
  // Operators that hand the values on.
  static bool HandsOn(const std::string& name) {
    static const std::set<std::string>& names = *new std::set<std::string>{"aten::view",
                                                                           "aten::reshape",
                                                                           "aten::contiguous",
                                                                           "aten::to",
                                                                           "aten::_to_copy",
                                                                           "aten::clone",
                                                                           "aten::alias",
                                                                           "aten::detach",
                                                                           "aten::slice",
                                                                           "aten::select",
                                                                           "aten::unsqueeze",
                                                                           "aten::squeeze",
                                                                           "aten::transpose",
                                                                           "aten::permute",
                                                                           "aten::t",
                                                                           "aten::expand",
                                                                           "aten::flatten",
                                                                           "aten::unflatten",
                                                                           "aten::chunk",
                                                                           "aten::split",
                                                                           "aten::narrow",
                                                                           "aten::cat",
                                                                           "aten::stack",
                                                                           "aten::roll",
                                                                           "aten::flip",
                                                                           "aten::masked_fill",
                                                                           "aten::masked_fill_",
                                                                           "aten::where",
                                                                           "aten::clamp",
                                                                           "aten::lift_fresh",
                                                                           "aten::lift_fresh_copy",
                                                                           "aten::detach_",
                                                                           "aten::_unsafe_view",
                                                                           "aten::view_copy",
                                                                           "aten::slice_scatter",
                                                                           "aten::select_scatter",
                                                                           "aten::movedim",
                                                                           "aten::repeat",
                                                                           "aten::unbind"};
    return names.contains(name);
  }

  absl::optional<std::vector<int64_t>> Sizes(const fx::Node* node) const {
    if (node == nullptr) return absl::nullopt;
    if (node->meta().val.isTensor() && node->meta().val.toTensor().defined()) return node->meta().val.toTensor().sizes().vec();
    if (node->op() == fx::Op::kGetAttr) {
      if (const auto tensor = program_.FindTensor(node->path())) return tensor->sizes().vec();
    }
    return absl::nullopt;
  }
  void Limit(int64_t value) { limit_ = std::min(limit_, value); }
  void LimitBySize(const fx::Node* node, int64_t dim) {
    const auto sizes = Sizes(node);
    if (!sizes) return;
    if (dim < 0) dim += static_cast<int64_t>(sizes->size());
    if (dim >= 0 && dim < static_cast<int64_t>(sizes->size())) Limit((*sizes)[dim]);
  }

  void Follow(const fx::Node* node) {
    if (!seen_.insert(node).second) return;
    for (const fx::Node* user : node->users()) {
      if (!user->is_operator()) {
        if (std::holds_alternative<fx::OpaqueTarget>(user->target())) Follow(user);  // getitem of chunk and the like
        continue;
      }
      const std::string& name = user->operator_handle().schema().name();
      const auto args = user->args();
      const auto is = [&](std::size_t i) { return i < args.size() && args[i].node() == node; };
      const auto dim = [&](std::size_t i) {
        return i < args.size() && args[i].kind() == fx::Argument::Kind::kConstant && args[i].constant().isInt() ? args[i].constant().toInt()
                                                                                                                : int64_t{0};
      };
      if ((name == "aten::embedding" || name == "aten::embedding_bag" || name == "aten::_embedding_bag") && is(1)) {
        LimitBySize(args[0].node(), 0);
      } else if ((name == "aten::cross_entropy_loss" || name.rfind("aten::nll_loss", 0) == 0) && is(1)) {
        const auto sizes = Sizes(args[0].node());
        if (sizes && !sizes->empty()) Limit(sizes->size() == 1 ? (*sizes)[0] : (*sizes)[1]);
      } else if ((name == "aten::gather" || name == "aten::index_select" || name.rfind("aten::scatter", 0) == 0 ||
                  name.rfind("aten::index_add", 0) == 0 || name.rfind("aten::index_copy", 0) == 0) &&
                 is(2)) {
        LimitBySize(args[0].node(), dim(1));
      } else if (name == "aten::one_hot" && is(0) && args.size() > 1) {
        Limit(dim(1));
      } else if (name == "aten::index" && args.size() > 1 && args[1].kind() == fx::Argument::Kind::kList) {
        const auto& indices = args[1].elements();
        for (std::size_t i = 0; i < indices.size(); ++i) {
          if (indices[i].node() == node) LimitBySize(args[0].node(), static_cast<int64_t>(i));
        }
      } else if (name == "aten::copy_" && is(1)) {
        // Into a tensor, and what that is a view of.
        for (const fx::Node* to = args[0].node(); to != nullptr;
             to = to->is_operator() && !to->args().empty() ? to->args()[0].node() : nullptr)
          Follow(to);
      } else if (HandsOn(name)) {
        Follow(user);
      }
    }
  }

  const ExportedProgram& program_;
  int64_t limit_ = 0;
  std::set<const fx::Node*> seen_;
};

// "rank0.arg1" → 0 and "arg1"; "arg1" → -1 and "arg1".
std::pair<int64_t, std::string> SplitName(const std::string& name) {
  const std::size_t dot = name.find('.');
  if (dot != std::string::npos) {
    std::size_t digits = dot;
    while (digits > 0 && absl::ascii_isdigit(name[digits - 1])) --digits;
    int64_t number = 0;
    if (digits < dot && absl::SimpleAtoi(name.substr(digits, dot - digits), &number)) return {number, name.substr(dot + 1)};
  }
  return {-1, name};
}

}  // namespace

absl::StatusOr<Batches> Batches::MakeUp(std::shared_ptr<ExportedProgram> program, int64_t seed) {
  Batches result;
  result.program_ = program;
  result.seed_ = seed;
  const std::vector<const fx::Node*> placeholders = Placeholders(*program);
  IndexLimit limit(*program);
  for (std::size_t i = 0; i < program->inputs().size(); ++i) {
    const ProgramInput& input = program->inputs()[i];
    if (input.kind == ProgramInput::Kind::kConstant) {
      result.examples_.push_back(input.constant);
      result.below_.push_back(0);
      continue;
    }
    if (i >= placeholders.size() || placeholders[i]->meta().val.isNone()) {
      return absl::FailedPreconditionError(
          absl::StrCat("input \"", input.name, "\": the archive doesn't tell the sizes of its example; give batches in a file"));
    }
    result.examples_.push_back(placeholders[i]->meta().val);
    const bool integers = input.kind == ProgramInput::Kind::kTensor && c10::isIntegralType(input.dtype, /*includeBool=*/false);
    result.below_.push_back(integers ? limit.Of(placeholders[i]) : 0);
  }
  return result;
}

absl::StatusOr<Batches> Batches::Open(std::shared_ptr<ExportedProgram> program, const std::string& path) {
  DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  // Symbolic numbers are the export's example's.
  Batches result;
  result.program_ = program;
  const std::vector<const fx::Node*> placeholders = Placeholders(*program);
  std::map<int64_t, std::map<std::string, std::string>> names;  // of each batch: input to tensor
  for (const auto& [name, entry] : file.entries()) {
    const auto [number, input] = SplitName(name);
    names[number][input] = name;
  }
  if (names.empty()) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" has no tensors"));
  for (auto& [number, tensors] : names) {
    const std::string context = absl::StrCat("\"", path, "\"", number < 0 ? std::string() : absl::StrCat(": batch ", number));
    std::vector<IValue> values;
    std::size_t position = 0;  // among the tensor inputs
    for (std::size_t i = 0; i < program->inputs().size(); ++i) {
      const ProgramInput& input = program->inputs()[i];
      if (input.kind == ProgramInput::Kind::kConstant) {
        values.push_back(input.constant);
        continue;
      }
      if (input.kind == ProgramInput::Kind::kSymbolic) {
        values.push_back(i < placeholders.size() ? placeholders[i]->meta().val : IValue());
        continue;
      }
      const std::string argument = absl::StrCat("arg", position++);
      const auto it = tensors.contains(input.name) ? tensors.find(input.name) : tensors.find(argument);
      if (it == tensors.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(context, " has no tensor \"", input.name, "\" (or \"", argument, "\"), which the program takes"));
      }
      DDPOPT_ASSIGN_OR_RETURN(at::Tensor tensor, file.Read(it->second));
      values.emplace_back(std::move(tensor));
      tensors.erase(it);
    }
    if (!tensors.empty())
      return absl::InvalidArgumentError(
          absl::StrCat(context, " has a tensor \"", tensors.begin()->second, "\", which is no input of the program"));
    DDPOPT_RETURN_IF_ERROR(Annotate(program->BindInputs(values).status(), context));
    result.batches_.push_back(std::move(values));
  }
  return result;
}

absl::StatusOr<std::vector<IValue>> Batches::Get(int64_t number) const {
  if (!batches_.empty()) return batches_[static_cast<std::size_t>(number % size())];
  return CatchAsStatus("making up a batch", [&] {
    at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed_) * 1'000'003 + static_cast<uint64_t>(number));
    std::vector<IValue> values;
    for (std::size_t i = 0; i < examples_.size(); ++i) {
      const ProgramInput& input = program_->inputs()[i];
      if (input.kind != ProgramInput::Kind::kTensor) {
        values.push_back(examples_[i]);
        continue;
      }
      const auto sizes = examples_[i].toTensor().sizes();
      if (input.dtype == c10::ScalarType::Bool) {
        values.emplace_back(at::randint(0, 2, sizes, generator, at::kLong).to(at::kBool));
      } else if (below_[i] > 0) {
        values.emplace_back(at::randint(0, below_[i], sizes, generator, at::kLong).to(input.dtype));
      } else {
        const bool complex = c10::isComplexType(input.dtype);
        values.emplace_back(
            at::randn(sizes, generator, at::TensorOptions(complex ? c10::ScalarType::ComplexDouble : c10::ScalarType::Float))
                .to(input.dtype));
      }
    }
    return values;
  });
}

}  // namespace ddpopt::examples
