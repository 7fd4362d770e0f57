// out= tensors of every dtype: a fake takes and refuses those that the real kernel does, and leaves the dtype as the kernel leaves it.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "c10/util/Exception.h"
#include "fake_tensor/cross_ref/cross_ref.h"
#include "fake_tensor/cross_ref/generator.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "interpreter/mode_stack.h"
#include "testing/call_outcome.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::Outcome;

constexpr c10::ScalarType kDtypes[] = {c10::ScalarType::Bool,  c10::ScalarType::Byte,   c10::ScalarType::Int,
                                       c10::ScalarType::Long,  c10::ScalarType::Half,   c10::ScalarType::BFloat16,
                                       c10::ScalarType::Float, c10::ScalarType::Double, c10::ScalarType::ComplexFloat};

class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

// A call whose out= tensors are plain.
std::optional<cross_ref::Call> CallWithPlainOut(const c10::OperatorHandle& op, uint64_t first_seed, uint64_t* seed) {
  for (*seed = first_seed; *seed < first_seed + 100; ++*seed) {
    const std::optional<cross_ref::Call> call = cross_ref::RandomCall(op, *seed, {.damage = false, .dtype = std::nullopt});
    if (!call.has_value()) continue;
    bool plain = true;
    for (std::size_t i = 0; i < call->arguments.size(); ++i) {
      if (!op.schema().arguments()[i].is_out()) continue;
      for (const cross_ref::TensorSpec& spec : call->arguments[i].tensors) {
        plain &= spec.layout == cross_ref::TensorSpec::Layout::kContiguous && !spec.conj && !spec.neg;
      }
    }
    if (plain) return call;
  }
  return std::nullopt;
}

Outcome Fake(const std::shared_ptr<FakeTensorMode>& mode, const cross_ref::Call& call) {
  const cross_ref::MadeCall made = Make(call);
  std::vector<c10::IValue> arguments;
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& argument : made.arguments) arguments.push_back(mode->FromReal(argument));
  for (const at::Tensor& tensor : made.tensors) tensors.push_back(mode->FromReal(tensor));
  return ::ddpopt::testing::Observe(tensors, [&] {
    const ModeGuard on(mode);
    return cross_ref::Run(call.op, std::move(arguments));
  });
}

TEST(OutDtypesTest, EveryDtypeOfEveryOut) {
  at::set_num_threads(1);
  Quiet quiet;
  const c10::WarningUtils::WarningHandlerGuard no_warnings(&quiet);
  int calls = 0, refused = 0;
  std::map<std::string, std::vector<std::string>> differences;
  for (const c10::OperatorHandle& op : cross_ref::Operators({}, /*with_unfinished=*/false)) {
    const auto& arguments = op.schema().arguments();
    if (arguments.empty() || !arguments.back().is_out()) continue;
    uint64_t seed = 0;
    for (int round = 0; round < 2; ++round, ++seed) {
      std::optional<cross_ref::Call> call = CallWithPlainOut(op, seed, &seed);
      if (!call.has_value()) continue;
      const cross_ref::Call plain = *call;
      for (std::size_t out = 0; out < arguments.size(); ++out) {
        if (!arguments[out].is_out()) continue;
        for (const c10::ScalarType dtype : kDtypes) {
          call = plain;
          for (cross_ref::TensorSpec& spec : call->arguments[out].tensors) spec.dtype = dtype;
          cross_ref::MadeCall made = Make(*call);
          const Outcome real = ::ddpopt::testing::Observe(made.tensors, [&] { return cross_ref::Run(op, made.arguments); });
          const auto mode = FakeTensorMode::Create();
          ++calls;
          refused += real.kind == Outcome::Kind::kRejected;
          for (int pass = 0; pass < 2; ++pass) {
            const Outcome fake = Fake(mode, *call);
            if (fake.kind == Outcome::Kind::kDataDependent) continue;
            const std::string difference = ::ddpopt::testing::Difference(real, fake);
            // The refusal of fakes' own that cross_ref/README.md tells of.
            const bool returns_another = real.results.size() == 1 && real.results[0].same < 0;
            if (difference.empty() || (returns_another && absl::StrContains(fake.error, "returns another tensor than the one to write to"))) {
              continue;
            }
            differences[c10::toString(op.operator_name())].push_back(absl::StrCat(call->ToString(), ", seed ", seed, ": ", difference));
          }
        }
      }
    }
  }
  for (const auto& [name, all] : differences) ADD_FAILURE() << name << ": " << all.size() << " calls\n" << all.front();
  EXPECT_GT(calls, 5000);
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace ddpopt
