#include "fake_tensor/dtype_support.h"

#include <exception>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/softshrink.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "c10/util/Exception.h"
#include "fake_tensor/cross_ref/generator.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::ddpopt::testing::ErrorOf;
using ::ddpopt::testing::FindOperator;

constexpr c10::ScalarType kDtypes[] = {
    c10::ScalarType::Float, c10::ScalarType::Double, c10::ScalarType::Half, c10::ScalarType::BFloat16,     c10::ScalarType::Long,
    c10::ScalarType::Byte,  c10::ScalarType::Char,   c10::ScalarType::Bool, c10::ScalarType::ComplexFloat, c10::ScalarType::ComplexDouble};

bool Refuses(const c10::OperatorHandle& op, const DtypeRule& rule, const std::vector<c10::IValue>& arguments) {
  return !ErrorOf([&] { CheckDtypes(op, rule, arguments); }).empty();
}

// The functional overloads that a name of the table speaks of.
std::vector<c10::OperatorHandle> OverloadsOf(const std::string& name) {
  std::vector<c10::OperatorHandle> found;
  for (const c10::OperatorName& candidate : c10::Dispatcher::singleton().getAllOpNames()) {
    const std::string full = candidate.overload_name.empty() ? candidate.name : absl::StrCat(candidate.name, ".", candidate.overload_name);
    if (candidate.name != "aten::" + name && full != "aten::" + name) continue;
    const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(candidate);
    if (op.has_value() && !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
        (!op->schema().is_mutable() || candidate.name.back() == '_' || full == "aten::" + name)) found.push_back(*op);
  }
  return found;
}

TEST(DtypeSupportTest, EveryNameOfTheTableIsAnOperator) {
  std::vector<std::string> unknown;
  for (const std::string& name : OperatorsWithDtypeRules()) {
    if (OverloadsOf(name).empty()) unknown.push_back(name);
  }
  EXPECT_THAT(unknown, IsEmpty());
}

// The table was measured from LibTorch 2.15; other versions' kernels may have learnt dtypes, or not know them yet.
TEST(DtypeSupportTest, TableAgreesWithTheKernels) {
  at::set_num_threads(1);
  int refused = 0, calls = 0;
  for (const std::string& name : OperatorsWithDtypeRules()) {
    for (const c10::OperatorHandle& op : OverloadsOf(name)) {
      const DtypeRule* rule = DtypeRuleOf(op);
      if (rule == nullptr) continue;
      for (uint64_t i = 0; i < std::size(kDtypes); ++i) {
        const std::optional<cross_ref::Call> call = cross_ref::RandomCall(op, i + 7, {.damage = false, .dtype = kDtypes[i]});
        if (!call.has_value()) continue;
        const std::vector<c10::IValue> arguments = Make(*call).arguments;
        const bool expected = Refuses(op, *rule, arguments);
        std::string error;
        try {
          cross_ref::Run(op, arguments);
        } catch (const c10::Error& refusal) {
          error = refusal.what_without_backtrace();
        } catch (const std::exception& refusal) {
          error = refusal.what();
        }
        const bool got = absl::StrContains(error, "not implemented for");
        ++calls;
        refused += got;
        // Another reason to refuse the call may come before or after.
        if (!error.empty() && !got) continue;
        EXPECT_EQ(expected, got) << call->ToString() << "\n" << error;
      }
    }
  }
  EXPECT_GT(calls, 500);
  EXPECT_GT(refused, 200);
}

TEST(DtypeSupportTest, InPlaceAndOutFormsHaveTheFunctionalOnesRule) {
  const DtypeRule* rule = DtypeRuleOf(FindOperator("aten::erfinv"));
  ASSERT_NE(rule, nullptr);
  EXPECT_EQ(rule, DtypeRuleOf(FindOperator("aten::erfinv_")));
  EXPECT_EQ(rule, DtypeRuleOf(FindOperator("aten::erfinv", "out")));
  EXPECT_EQ(DtypeRuleOf(FindOperator("aten::t_")), nullptr);
}

TEST(DtypeSupportTest, FakesRefuseWhatTheKernelRefuses) {
  const auto mode = FakeTensorMode::Create();
  const at::Tensor fake = mode->FromReal(at::empty({2}, at::kLong));
  EXPECT_THAT(ErrorOf([&] { at::softshrink(fake); }), HasSubstr("softshrink isn't implemented for Long on the CPU"));
  at::softshrink(mode->FromReal(at::empty({2})));
}

}  // namespace
}  // namespace ddpopt
