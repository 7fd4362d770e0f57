#include "base/file.h"

#include <cstdlib>

#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"
#include "zlib.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::IsOkAndHolds;
using ::ddpopt::testing::StatusIs;
using ::testing::HasSubstr;

std::string Zip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string zipped(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(zipped.data());
  stream.avail_out = static_cast<uInt>(zipped.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  zipped.resize(stream.total_out);
  deflateEnd(&stream);
  return zipped;
}

TEST(File, ReadsPlainAndZippedFiles) {
  const std::string path = ::testing::TempDir() + "/file_test";
  DDPOPT_ASSERT_OK(WriteFile(path, "plain"));
  EXPECT_THAT(ReadFile(path), IsOkAndHolds("plain"));
  std::string large(300000, 'a');  // unzips to far more than four times its zipped size
  DDPOPT_ASSERT_OK(WriteFile(path, Zip(large) + Zip("more")));
  EXPECT_THAT(ReadFile(path), IsOkAndHolds(large + "more"));
  DDPOPT_ASSERT_OK(WriteFile(path, ""));
  EXPECT_THAT(ReadFile(path), IsOkAndHolds(""));
}

TEST(File, ErrorsNameThePath) {
  EXPECT_THAT(ReadFile("/nowhere/at/all"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/at/all")));
  EXPECT_THAT(WriteFile("/nowhere/at/all", ""), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere/at/all")));
}

TEST(File, DamagedZippedDataIsAnError) {
  const std::string zipped = Zip("some text to zip, some text to zip");
  for (std::size_t length = 2; length < zipped.size(); ++length) {
    EXPECT_THAT(Unzip(zipped.substr(0, length)), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("cut off"))) << length;
  }
  std::string damaged = zipped;
  damaged[zipped.size() - 5] ^= 1;  // of the checksum
  EXPECT_THAT(Unzip(damaged), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged at byte")));
}

TEST(File, RelativePathsStartWhereTheUserCalled) {
  setenv("BUILD_WORKING_DIRECTORY", "/home/user", 1);
  EXPECT_EQ(UserPath("a/b"), "/home/user/a/b");
  EXPECT_EQ(UserPath("/a/b"), "/a/b");
  EXPECT_EQ(UserPath("-"), "-");
  unsetenv("BUILD_WORKING_DIRECTORY");
  EXPECT_EQ(UserPath("a/b"), "a/b");
}

}  // namespace
}  // namespace ddpopt
