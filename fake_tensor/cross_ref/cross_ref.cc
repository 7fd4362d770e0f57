#include "fake_tensor/cross_ref/cross_ref.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/ops/empty_strided.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "c10/core/DispatchKey.h"
#include "c10/util/Exception.h"
#include "fake_tensor/cross_ref/recipe.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "interpreter/mode_stack.h"
#include "testing/call_outcome.h"

namespace ddpopt::cross_ref {
namespace {

using testing::Outcome;

// Warnings (a resized out=, say) would be most of the output.
class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

bool Matches(const std::string& name, const std::string& overload, absl::string_view wanted) {
  const std::string full = overload.empty() ? name : absl::StrCat(name, ".", overload);
  if (absl::ConsumeSuffix(&wanted, "$")) return absl::EndsWith(full, wanted) || absl::EndsWith(name, wanted);
  return absl::StrContains(full, wanted);
}

// Types of arguments that the generator has no values for.
bool HasUnknownArguments(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    const std::string type = argument.type()->str();
    if (absl::StrContains(type, "Storage") || absl::StrContains(type, "Dimname") || absl::StrContains(type, "Stream") ||
        absl::StrContains(type, "__torch__")) {
      return true;
    }
  }
  return absl::StrContains(schema.overload_name(), "names") || absl::StrContains(schema.overload_name(), "Dimname");
}

// Whether the operator's results may depend on data in more than their data. Some out= overloads lack the tag that the others have.
bool IsData(const c10::OperatorHandle& op) {
  static const std::set<std::string>& names = *[] {
    auto* tagged = new std::set<std::string>{"aten::_pack_padded_sequence"};
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      const std::optional<c10::OperatorHandle> each = c10::Dispatcher::singleton().findSchema(name);
      if (each.has_value() && (each->hasTag(at::Tag::data_dependent_output) || each->hasTag(at::Tag::dynamic_output_shape))) {
        tagged->insert(name.name);
      }
    }
    return tagged;
  }();
  return names.count(op.schema().name()) > 0;
}

std::string KindOf(const Outcome& real, const Outcome& fake, const std::string& difference) {
  using Kind = Outcome::Kind;
  if (real.kind == Kind::kRejected) return fake.kind == Kind::kDataDependent ? "data-dependent" : "accepts";
  if (fake.kind == Kind::kDataDependent) return "data-dependent";
  if (fake.kind == Kind::kRejected) return absl::StrContains(fake.error, "has no fake rule") ? "no rule" : "rejects";
  const std::size_t colon = difference.find(':');
  std::string field = difference.substr(0, colon);
  const std::size_t comma = field.find(", ");
  if (comma != std::string::npos) field = absl::StrCat(absl::StartsWith(field, "input") ? "input's " : "", field.substr(comma + 2));
  return field;
}

// Whether an out= tensor is an operand or a view of one, or has a conj or neg bit. What kernels do with those follows no rule that fakes
// know of all operators.
bool HasUnusualOut(const Call& call) {
  using Layout = TensorSpec::Layout;
  const auto& arguments = call.op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].is_out()) continue;
    for (const TensorSpec& tensor : call.arguments[i].tensors) {
      if (tensor.layout == Layout::kViewOf || tensor.layout == Layout::kSameAs || tensor.conj || tensor.neg) return true;
    }
  }
  return false;
}

// Where there is nothing to compute, what a kernel refuses depends on where it looks first, which none of them promises.
bool IsDamagedWithoutElements(const Call& call) {
  if (call.damage.empty()) return false;
  for (const auto& argument : call.arguments) {
    for (const TensorSpec& tensor : argument.tensors) {
      for (const int64_t size : tensor.sizes) {
        if (size == 0) return true;
      }
    }
  }
  return false;
}

// What a fake refuses by name, since LibTorch's layers above it pass on no other tensor than the one to write to: the real kernel returned
// another.
bool IsKnownRefusal(const Call& call, const Outcome& real, const Outcome& fake) {
  return absl::StartsWith(call.op.schema().name(), "aten::_add_relu") && call.op.schema().is_mutable() &&
         fake.kind == Outcome::Kind::kRejected && absl::StrContains(fake.error, "returns another tensor than the one to write to") &&
         real.kind == Outcome::Kind::kReturned && real.results.size() == 1 && real.results[0].same < 0;
}

// A call's arguments as fakes.
class Fakes {
 public:
  Fakes(FakeTensorMode& mode, const MadeCall& made) {
    for (const c10::IValue& argument : made.arguments) arguments_.push_back(mode.FromReal(argument));
    for (const at::Tensor& tensor : made.tensors) tensors_.push_back(mode.FromReal(tensor));
  }

  Outcome Run(const std::shared_ptr<FakeTensorMode>& mode, const c10::OperatorHandle& op) {
    return testing::Observe(tensors_, [&] {
      const ModeGuard on(mode);
      return cross_ref::Run(op, std::move(arguments_));
    });
  }

 private:
  std::vector<c10::IValue> arguments_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace

std::vector<c10::OperatorHandle> Operators(const std::vector<std::string>& substrings, bool with_unfinished) {
  std::vector<c10::OperatorHandle> operators;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value() || !op->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU) ||
        op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) || !WhyExcluded(name.name, name.overload_name).empty() ||
        HasUnknownArguments(op->schema()) || (!with_unfinished && IsUnfinished(name.name, name.overload_name))) {
      continue;
    }
    bool wanted = substrings.empty();
    for (const std::string& substring : substrings) wanted |= Matches(name.name, name.overload_name, substring);
    if (wanted) operators.push_back(*op);
  }
  std::sort(operators.begin(), operators.end(), [](const c10::OperatorHandle& a, const c10::OperatorHandle& b) {
    return std::pair(a.operator_name().name, a.operator_name().overload_name) <
           std::pair(b.operator_name().name, b.operator_name().overload_name);
  });
  return operators;
}

CrossRef::CrossRef(Options options) : options_(std::move(options)), operators_(Operators(options_.substrings, options_.with_unfinished)) {
  TORCH_CHECK(!operators_.empty(), "cross_ref: no operator's name contains any of the texts asked for");
}

const c10::OperatorHandle& CrossRef::OperatorAt(uint64_t index) const {
  // A new order in each round, so that every operator is called equally often.
  const uint64_t count = operators_.size();
  Random random(options_.seed * 0x9e3779b97f4a7c15 + index / count);
  const uint64_t start = random.Next() % count;
  uint64_t stride = random.Next() % count;
  while (std::gcd(stride, count) != 1) stride = (stride + 1) % count;
  if (count == 1) return operators_[0];
  return operators_[(start + stride * (index % count)) % count];
}

Comparison CrossRef::Compare(uint64_t index) {
  const c10::OperatorHandle& op = OperatorAt(index);
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&quiet);
  Comparison comparison;
  comparison.index = index;
  comparison.op = c10::toString(op.operator_name());

  if (options_.progress != nullptr) {
    options_.progress->index = index;
    options_.progress->call[0] = '\0';
  }
  Enter(Progress::kGenerate);
  Random random((options_.seed * 0x2545f4914f6cdd1d) ^ (index * 0x9e3779b97f4a7c15));
  std::optional<Call> call;
  for (int attempt = 0; attempt < 200 && !call.has_value(); ++attempt) {
    call = RandomCall(op, random.Next());
    if (call.has_value() && !options_.with_unusual && (HasUnusualOut(*call) || IsDamagedWithoutElements(*call))) call.reset();
  }
  TORCH_CHECK(call.has_value(), "cross_ref: the recipe of ", comparison.op, " gives no call");
  comparison.call = call->ToString();
  if (options_.progress != nullptr) {
    const std::size_t length = std::min(comparison.call.size(), sizeof options_.progress->call - 1);
    comparison.call.copy(options_.progress->call, length);
    options_.progress->call[length] = '\0';
  }
  MadeCall made = Make(*call);

  const std::shared_ptr<FakeTensorMode> mode = FakeTensorMode::Create();
  Fakes fakes(*mode, made);
  // For the same call once more, which the mode's cache may answer.
  Fakes again(*mode, Make(*call));

  Enter(Progress::kReal);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  generator.set_current_seed(options_.seed + index);
  const Outcome real = testing::Observe(made.tensors, [&] { return Run(op, std::move(made.arguments)); });
  comparison.rejected_by_real = real.kind != Outcome::Kind::kReturned;
  comparison.real_error = real.error;

  Enter(Progress::kFake);
  const Outcome fake = fakes.Run(mode, op);
  const Outcome cached = again.Run(mode, op);
  Enter(Progress::kDone);

  const bool mask = absl::StrContains(comparison.op, "index") &&
                    (absl::StrContains(comparison.call, "bool[") || absl::StrContains(comparison.call, "u8["));
  const auto compare = [&](const Outcome& outcome) {
    if (outcome.kind == Outcome::Kind::kDataDependent && (IsData(op) || mask)) return;
    if (IsKnownRefusal(*call, real, outcome)) return;
    // How many elements a mask selects is data.
    if (mask && absl::StrContains(real.error, "indexing tensors could not be broadcast together")) return;
    if (mask && absl::StrContains(real.error, "cannot be broadcast to indexing result")) return;
    // Whether one number of a range fits the dtype, which is all that the kernel looks at then, is data where a tensor gives it.
    if (absl::StartsWith(comparison.op, "aten::logspace.Tensor") && absl::StrContains(real.error, "value cannot be converted to type"))
      return;
    // An index that was damaged into another dtype, and points elsewhere.
    if (absl::StrContains(comparison.op, "index") && absl::StrContains(real.error, "is out of bounds for dimension")) return;
    comparison.difference = testing::Difference(real, outcome);
    if (!comparison.difference.empty()) comparison.kind = KindOf(real, outcome, comparison.difference);
  };
  compare(fake);
  if (comparison.agrees()) {
    compare(cached);
    if (!comparison.agrees()) comparison.kind = absl::StrCat("second time: ", comparison.kind);
  }
  if (comparison.agrees() && real.kind == Outcome::Kind::kReturned && random.Chance(10)) CompareDevices(*call, random, &comparison);
  return comparison;
}

void CrossRef::CompareDevices(const Call& call, Random& random, Comparison* comparison) {
  if (!call.op.hasTag(at::Tag::pointwise) || call.op.schema().is_mutable()) return;
  MadeCall made = Make(call);
  if (made.tensors.size() < 2) return;
  const std::size_t moved = random.Between(0, static_cast<int64_t>(made.tensors.size()) - 1);
  const at::Tensor from = made.tensors[moved];
  if (from.dim() == 0 || from.is_conj() || from.is_neg()) return;
  const at::Tensor to = at::empty_strided(from.sizes(), from.strides(), from.options().device(c10::kMeta));
  // Another operand that isn't a mere number, on the CPU.
  bool mixed = false;
  for (std::size_t i = 0; i < made.tensors.size(); ++i) {
    if (i != moved && made.tensors[i].is_same(from)) return;
    mixed |= i != moved && made.tensors[i].dim() > 0;
  }
  for (c10::IValue& argument : made.arguments) {
    if (argument.isTensor() && argument.toTensor().is_same(from)) argument = to;
    if (argument.isList() && !argument.isIntList() && !argument.isDoubleList() && !argument.isBoolList()) return;
  }
  made.tensors[moved] = to;

  const auto run = [&] {
    const std::shared_ptr<FakeTensorMode> mode = FakeTensorMode::Create();
    return Fakes(*mode, made).Run(mode, call.op);
  };
  const Outcome fake = run();
  const auto disagree = [&](std::string difference) {
    comparison->kind = "devices";
    comparison->difference = absl::StrCat("tensor ", moved, " on the device meta: ", difference);
  };
  if (mixed) {
    if (fake.kind == Outcome::Kind::kReturned) disagree("want a rejection, got a result");
    return;
  }
  if (fake.kind != Outcome::Kind::kReturned) return disagree(absl::StrCat("want a result, got a rejection: ", fake.error));
  for (const testing::ResultFacts& result : fake.results) {
    if (result.tensor.defined && !result.tensor.device.is_meta()) return disagree("want a result there, got " + result.tensor.ToString());
  }
}

}  // namespace ddpopt::cross_ref
