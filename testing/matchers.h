#ifndef DDPOPT_TESTING_MATCHERS_H_
#define DDPOPT_TESTING_MATCHERS_H_

// googletest matchers for Status and tensors. All explain the difference.
//
//   EXPECT_THAT(Trace(module), IsOk());
//   EXPECT_THAT(Trace(module), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("aten::nonzero")));
//   EXPECT_THAT(Load(path), IsOkAndHolds(SizeIs(3)));
//   EXPECT_THAT(y, AllOf(HasShape({2, 3}), HasStrides({3, 1}), HasDtype(at::kFloat), HasDevice(at::kCPU)));
//   EXPECT_THAT(view, SharesStorageWith(base));
//   EXPECT_THAT(y, TensorEq(expected));               // same shape, dtype and bits
//   EXPECT_THAT(y, AllClose(expected, 1e-5, 1e-6));   // same shape and dtype, |y - expected| <= atol + rtol * |expected|

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt::testing {

namespace internal {

inline const absl::Status& GetStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& status) {
  return status.status();
}

// Each returns "" for a match, else what is different.
std::string ShapeDifference(const at::Tensor& tensor, const std::vector<int64_t>& shape);
std::string StridesDifference(const at::Tensor& tensor, const std::vector<int64_t>& strides);
std::string DtypeDifference(const at::Tensor& tensor, at::ScalarType dtype);
std::string DeviceDifference(const at::Tensor& tensor, const at::Device& device);
std::string StorageDifference(const at::Tensor& tensor, const at::Tensor& other);
std::string BitwiseDifference(const at::Tensor& tensor, const at::Tensor& expected);
std::string CloseDifference(const at::Tensor& tensor, const at::Tensor& expected, double rtol, double atol);

std::string ListText(const std::vector<int64_t>& list);
std::string TensorText(const at::Tensor& tensor);

// A matcher over a function of the kind above.
template <typename Difference>
class DifferenceMatcher {
 public:
  using is_gtest_matcher = void;
  DifferenceMatcher(std::string description, Difference difference)
      : description_(std::move(description)), difference_(std::move(difference)) {}
  bool MatchAndExplain(const at::Tensor& tensor, std::ostream* explanation) const {
    const std::string text = difference_(tensor);
    if (explanation != nullptr) *explanation << text;
    return text.empty();
  }
  void DescribeTo(std::ostream* os) const { *os << description_; }
  void DescribeNegationTo(std::ostream* os) const { *os << "not (" << description_ << ")"; }

 private:
  std::string description_;
  Difference difference_;
};

}  // namespace internal

MATCHER(IsOk, negation ? "is an error" : "is OK") {
  const absl::Status& status = internal::GetStatus(arg);
  if (!status.ok()) *result_listener << "which is " << status;
  return status.ok();
}

MATCHER_P(StatusIs, code, std::string(negation ? "isn't " : "is ") + absl::StatusCodeToString(code)) {
  const absl::Status& status = internal::GetStatus(arg);
  *result_listener << "which is " << status;
  return status.code() == code;
}

MATCHER_P2(StatusIs, code, message,
           std::string(negation ? "isn't (" : "is (") + absl::StatusCodeToString(code) + " with a message that " +
               ::testing::DescribeMatcher<std::string>(message) + ")") {
  const absl::Status& status = internal::GetStatus(arg);
  *result_listener << "which is " << status;
  return status.code() == code && ::testing::Matches(message)(std::string(status.message()));
}

MATCHER_P(IsOkAndHolds, value, negation ? "is an error or doesn't hold the value" : "is OK and holds the value") {
  if (!arg.ok()) {
    *result_listener << "which is " << arg.status();
    return false;
  }
  return ::testing::ExplainMatchResult(value, *arg, result_listener);
}

inline auto HasShape(std::vector<int64_t> shape) {
  std::string description = "has shape " + internal::ListText(shape);
  return internal::DifferenceMatcher(
      std::move(description), [shape = std::move(shape)](const at::Tensor& tensor) { return internal::ShapeDifference(tensor, shape); });
}
inline auto HasStrides(std::vector<int64_t> strides) {
  std::string description = "has strides " + internal::ListText(strides);
  return internal::DifferenceMatcher(std::move(description), [strides = std::move(strides)](const at::Tensor& tensor) {
    return internal::StridesDifference(tensor, strides);
  });
}
inline auto HasDtype(at::ScalarType dtype) {
  return internal::DifferenceMatcher(std::string("has dtype ") + c10::toString(dtype),
                                     [dtype](const at::Tensor& tensor) { return internal::DtypeDifference(tensor, dtype); });
}
inline auto HasDevice(at::Device device) {
  return internal::DifferenceMatcher("is on " + device.str(),
                                     [device](const at::Tensor& tensor) { return internal::DeviceDifference(tensor, device); });
}
inline auto SharesStorageWith(at::Tensor other) {
  return internal::DifferenceMatcher("shares its storage with " + internal::TensorText(other),
                                     [other](const at::Tensor& tensor) { return internal::StorageDifference(tensor, other); });
}
inline auto TensorEq(at::Tensor expected) {
  return internal::DifferenceMatcher("is bit for bit " + internal::TensorText(expected),
                                     [expected](const at::Tensor& tensor) { return internal::BitwiseDifference(tensor, expected); });
}
inline auto AllClose(at::Tensor expected, double rtol = 1e-5, double atol = 1e-8) {
  return internal::DifferenceMatcher(
      "is close to " + internal::TensorText(expected) + " (rtol " + ::testing::PrintToString(rtol) + ", atol " +
          ::testing::PrintToString(atol) + ")",
      [expected, rtol, atol](const at::Tensor& tensor) { return internal::CloseDifference(tensor, expected, rtol, atol); });
}

}  // namespace ddpopt::testing

#define DDPOPT_EXPECT_OK(expr) EXPECT_THAT(expr, ::ddpopt::testing::IsOk())
#define DDPOPT_ASSERT_OK(expr) ASSERT_THAT(expr, ::ddpopt::testing::IsOk())

#endif  // DDPOPT_TESTING_MATCHERS_H_
