// Cases for distributed_test_main_test, each chosen by --gtest_filter.

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace {

bool IsRank(const char* rank) { return std::string(std::getenv("RANK")) == rank; }

TEST(Cases, Pass) {}
TEST(Cases, AlsoPass) {}
TEST(Cases, FailOnRank1) { EXPECT_FALSE(IsRank("1")) << "this is <rank 1>"; }
TEST(Cases, SkipOnRank0) {
  if (IsRank("0")) GTEST_SKIP();
}
TEST(Cases, SkipEverywhere) { GTEST_SKIP(); }
TEST(Cases, DISABLED_Never) { FAIL(); }
TEST(Death, KilledOnRank1) {
  if (IsRank("1")) raise(SIGKILL);
}
TEST(Death, ExitsOnRank1) {
  if (IsRank("1")) _exit(0);
}
TEST(Death, HangsOnRank1) {
  if (IsRank("1")) pause();
}
TEST(Death, StopsOnRank1) {
  if (IsRank("1")) raise(SIGSTOP);
}
TEST(Death, LaterCase) {}
TEST(Exit, StatusOfRank1) {
  if (IsRank("1")) std::atexit([] { _exit(5); });
}

}  // namespace
