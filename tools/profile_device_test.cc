#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "ddpopt/optimizer/device_profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

using ::testing::HasSubstr;

std::string RunProfile(const std::string& arguments, int expected_status = 0) {
  FILE* pipe = popen(absl::StrCat("tools/profile_device ", arguments, " 2>&1").c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const std::size_t got = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, got);
  EXPECT_EQ(WEXITSTATUS(pclose(pipe)), expected_status) << output;
  return output;
}

TEST(ProfileDeviceTest, WritesAProfileThatReadsBack) {
  const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/profile.json");
  const std::string printed = RunProfile(absl::StrCat("--size=64 --repeat=1 --name=here --json --out=", path));
  const absl::StatusOr<DeviceProfile> profile = ParseDeviceProfile(printed);
  ASSERT_TRUE(profile.ok()) << profile.status() << printed;
  EXPECT_EQ(profile->name, "here");
  EXPECT_EQ(profile->matmul_flops_per_second.size(), 3u);
  EXPECT_EQ(printed.find('\n'), printed.size() - 1);
  const absl::StatusOr<std::string> written = ReadFile(path);
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(ParseDeviceProfile(*written)->ToJson(), profile->ToJson());
}

TEST(ProfileDeviceTest, RefusesWrongFlags) {
  EXPECT_THAT(RunProfile("--size=1", 2), HasSubstr("--size=1"));
  EXPECT_THAT(RunProfile("--colour", 2), HasSubstr("--colour"));
  EXPECT_THAT(RunProfile("--help"), HasSubstr("--threads=N"));
}

}  // namespace
}  // namespace ddpopt
