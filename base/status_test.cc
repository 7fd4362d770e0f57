#include "base/status.h"

#include <stdexcept>
#include <string>

#include "absl/strings/match.h"
#include "base/logging.h"
#include "c10/util/Exception.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError("odd");
  return n / 2;
}

absl::StatusOr<int> Quarter(int n) {
  DDPOPT_ASSIGN_OR_RETURN(int half, Half(n));
  DDPOPT_ASSIGN_OR_RETURN(int quarter, Half(half));
  return quarter;
}

TEST(StatusTest, AssignOrReturnPassesValuesAndErrors) {
  EXPECT_EQ(Quarter(8).value(), 2);
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

TEST(StatusTest, AnnotateKeepsTheCode) {
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
  const absl::Status status = Annotate(absl::NotFoundError("b"), "a");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "a: b");
}

TEST(StatusTest, CatchAsStatusTakesEveryResultKind) {
  EXPECT_TRUE(CatchAsStatus("void", [] {}).ok());
  EXPECT_EQ(CatchAsStatus("value", [] { return 3; }).value(), 3);
  EXPECT_EQ(CatchAsStatus("status", [] { return absl::NotFoundError("n"); }).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(CatchAsStatus("or", [] { return Half(4); }).value(), 2);
}

TEST(StatusTest, LibTorchErrorsLoseTheirBacktrace) {
  const absl::Status status = CatchAsStatus("ctx", [] { TORCH_CHECK(false, "boom"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(status.message(), "ctx: boom");
  EXPECT_EQ(CatchAsStatus("ctx", [] { throw std::runtime_error("plain"); }).message(), "ctx: plain");
}

TEST(LoggingDeathTest, CheckIsGlogs) { EXPECT_DEATH(CHECK_EQ(1, 2) << "because", "Check failed: 1 == 2.*because"); }

}  // namespace
}  // namespace ddpopt
