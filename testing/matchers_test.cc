#include "testing/matchers.h"

#include <limits>
#include <string>

#include "ATen/ops/empty.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace ddpopt::testing {
namespace {

using ::testing::AllOf;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

template <typename T, typename M>
std::string Explain(const T& value, const M& matcher) {
  ::testing::StringMatchResultListener listener;
  const ::testing::Matcher<const T&> m = matcher;
  EXPECT_FALSE(m.MatchAndExplain(value, &listener));
  return listener.str();
}

TEST(StatusMatchers, Status) {
  const absl::Status error = absl::NotFoundError("no operator aten::foo");
  EXPECT_THAT(absl::OkStatus(), IsOk());
  EXPECT_THAT(error, Not(IsOk()));
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kNotFound, HasSubstr("aten::foo")));
  EXPECT_THAT(error, Not(StatusIs(absl::StatusCode::kInternal, HasSubstr("aten::foo"))));
  EXPECT_THAT(error, Not(StatusIs(absl::StatusCode::kNotFound, HasSubstr("aten::bar"))));
  EXPECT_THAT(Explain(error, IsOk()), HasSubstr("no operator aten::foo"));
  EXPECT_THAT(Explain(error, StatusIs(absl::StatusCode::kInternal)), HasSubstr("NOT_FOUND"));
}

TEST(StatusMatchers, StatusOr) {
  const absl::StatusOr<std::string> value = std::string("abc");
  const absl::StatusOr<std::string> error = absl::InternalError("broken");
  EXPECT_THAT(value, IsOk());
  EXPECT_THAT(value, IsOkAndHolds(Eq("abc")));
  EXPECT_THAT(value, IsOkAndHolds(SizeIs(3)));
  EXPECT_THAT(value, Not(IsOkAndHolds(Eq("abd"))));
  EXPECT_THAT(error, Not(IsOkAndHolds(Eq("abc"))));
  EXPECT_THAT(error, StatusIs(absl::StatusCode::kInternal, Eq("broken")));
  EXPECT_THAT(Explain(error, IsOkAndHolds(Eq("abc"))), HasSubstr("broken"));
}

TEST(TensorMatchers, Metadata) {
  const at::Tensor t = at::zeros({2, 3}).t();
  EXPECT_THAT(t, AllOf(HasShape({3, 2}), HasStrides({1, 3}), HasDtype(at::kFloat), HasDevice(at::kCPU)));
  EXPECT_THAT(Explain(t, HasShape({2, 3})), Eq("which has shape [3, 2], not [2, 3]"));
  EXPECT_THAT(Explain(t, HasStrides({2, 1})), Eq("which has strides [1, 3], not [2, 1]"));
  EXPECT_THAT(Explain(t, HasDtype(at::kDouble)), Eq("which has dtype Float, not Double"));
  EXPECT_THAT(Explain(t, HasDevice(at::kMeta)), Eq("which is on cpu, not meta"));
  EXPECT_THAT(at::empty({2}, at::TensorOptions().device(at::kMeta)), HasDevice(at::kMeta));
  EXPECT_THAT(Explain(at::Tensor(), HasShape({})), Eq("which is undefined"));
}

TEST(TensorMatchers, SharesStorage) {
  const at::Tensor base = at::zeros({2, 3});
  EXPECT_THAT(base.select(0, 1), SharesStorageWith(base));
  EXPECT_THAT(base.clone(), Not(SharesStorageWith(base)));
}

TEST(TensorMatchers, TensorEqComparesBits) {
  const at::Tensor expected = at::tensor({1.0, 2.0, 3.0, 4.0}).view({2, 2});
  EXPECT_THAT(expected.clone(), TensorEq(expected));
  EXPECT_THAT(expected.t().contiguous().t(), TensorEq(expected));  // strides don't matter
  at::Tensor other = expected.clone();
  other.view({-1}).select(0, 2).fill_(5);
  EXPECT_THAT(Explain(other, TensorEq(expected)), Eq("which differs in 1 of 4 elements, first at [1, 0]: 5, not 3"));
  EXPECT_THAT(at::tensor({-0.0}), Not(TensorEq(at::tensor({0.0}))));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(at::tensor({nan}), TensorEq(at::tensor({nan})));
  EXPECT_THAT(expected.to(at::kLong), Not(TensorEq(expected)));
  EXPECT_THAT(expected.view({4}), Not(TensorEq(expected)));
}

TEST(TensorMatchers, AllCloseShowsTheWorst) {
  const at::Tensor expected = at::ones({2, 2});
  at::Tensor other = expected.clone();
  other.view({-1}).select(0, 1).add_(1e-3);
  other.view({-1}).select(0, 3).add_(0.5);
  EXPECT_THAT(other, AllClose(expected, 0, 0.6));
  EXPECT_THAT(other, AllClose(expected, 0.6, 0));
  EXPECT_THAT(Explain(other, AllClose(expected, 1e-5, 1e-5)),
              Eq("which is off in 2 of 4 elements, most at [1, 1]: 1.5, not 1 (difference 0.5)"));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(at::tensor({nan}), Not(AllClose(at::tensor({1.0}), 1, 1)));
  EXPECT_THAT(at::tensor({nan}), AllClose(at::tensor({nan})));
}

}  // namespace
}  // namespace ddpopt::testing
