// What can be missing when NCCL is asked for, on a machine without CUDA: a fake object stands for the real one.

#include "ddpopt/distributed/nccl_loader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ddpopt/distributed/fake_nccl.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class NcclLoader : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::UseFakeNccl("2");
    fake_ = testing::FakeNcclPath();
    char folder[] = "/tmp/nccl_loader_test.XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    unsetenv("CUDA_VISIBLE_DEVICES");
  }
  void TearDown() override {
    for (const std::string& file : made_) unlink(file.c_str());
    rmdir(folder_.c_str());
  }

  std::string Make(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    made_.push_back(path);
    return path;
  }
  // The fake, with `from` replaced by `to`, which is as long.
  std::string Damaged(const std::string& name, const std::string& from, const std::string& to) {
    std::string bytes = Read(fake_);
    EXPECT_EQ(from.size(), to.size());
    EXPECT_NE(bytes.find(from), std::string::npos) << from;
    for (size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at)) bytes.replace(at, from.size(), to);
    return Make(name, bytes);
  }
  absl::Status Load(const std::string& path, int local_rank = 0) {
    setenv("DDPOPT_NCCL_LIBRARY", path.c_str(), 1);
    return LoadNcclObject(local_rank).status();
  }

  std::string fake_;
  std::string folder_;
  std::vector<std::string> made_;
};

TEST_F(NcclLoader, LoadsTheObject) {
  const auto object = LoadNcclObject(1);
  DDPOPT_ASSERT_OK(object);
  EXPECT_EQ((*object)->device_count(), 2);
  EXPECT_EQ(*LoadNcclObject(0), *object);
}

TEST_F(NcclLoader, LooksForTheObjectInOrder) {
  EXPECT_THAT(NcclObjectCandidates(), ElementsAre(fake_));
  unsetenv("DDPOPT_NCCL_LIBRARY");
  setenv("LD_LIBRARY_PATH", ("/nonexistent::" + folder_).c_str(), 1);
  setenv("RUNFILES_DIR", "/some/runfiles", 1);
  const std::vector<std::string> candidates = NcclObjectCandidates();
  EXPECT_THAT(candidates, Contains("/some/runfiles/ddpopt/ddpopt/distributed/libddpopt_nccl.so"));
  EXPECT_THAT(candidates, Contains("/nonexistent/libddpopt_nccl.so"));
  EXPECT_THAT(candidates, Not(Contains("/libddpopt_nccl.so")));
  EXPECT_EQ(candidates.back(), folder_ + "/libddpopt_nccl.so");
  EXPECT_EQ(candidates.front(), "/some/runfiles/ddpopt/ddpopt/distributed/libddpopt_nccl.so");
  // Beside the program, which lies in a folder of this name.
  EXPECT_THAT(candidates, Contains(EndsWith("/bin/ddpopt/distributed/libddpopt_nccl.so")));
}

TEST_F(NcclLoader, TakesTheFirstThatThereIs) {
  unsetenv("DDPOPT_NCCL_LIBRARY");
  const std::vector<std::string> candidates = {"/nonexistent/libddpopt_nccl.so", folder_ + "/libddpopt_nccl.so"};
  EXPECT_THAT(LoadNcclObject(candidates, 0),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("there is no libddpopt_nccl.so"), HasSubstr("--config=cuda"),
                             HasSubstr("Looked for: /nonexistent/libddpopt_nccl.so, " + folder_ + "/libddpopt_nccl.so"))));
  Make("libddpopt_nccl.so", Read(fake_));
  DDPOPT_EXPECT_OK(LoadNcclObject(candidates, 0));
}

TEST_F(NcclLoader, AFileThatIsNotThere) {
  EXPECT_THAT(Load("/nonexistent/x.so"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("DDPOPT_NCCL_LIBRARY=/nonexistent/x.so: no such file")));
}

TEST_F(NcclLoader, AFileThatIsSomethingElse) {
  EXPECT_THAT(Load(Make("text.so", "hello")), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("text.so is not the NCCL object")));
  // This test itself holds the beginning of a marker.
  EXPECT_THAT(Load("/proc/self/exe"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not the NCCL object")));
  EXPECT_THAT(Load(folder_), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("can't read " + folder_)));
}

TEST_F(NcclLoader, AnotherLibTorch) {
  const std::string version = TORCH_VERSION;
  const std::string other = "9" + version.substr(1);
  EXPECT_THAT(Load(Damaged("libtorch.so", "libtorch=" + version, "libtorch=" + other)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("was built with LibTorch " + other), HasSubstr("this program with " + version))));
}

TEST_F(NcclLoader, AnotherDdpopt) {
  EXPECT_THAT(Load(Damaged("interface.so", "interface=" DDPOPT_NCCL_INTERFACE, "interface=x")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another version of ddpopt than this program (interface x")));
}

TEST_F(NcclLoader, ALibraryThatIsMissing) {
  EXPECT_THAT(Load(Damaged("needs.so", std::string("libc10.so\0", 10), std::string("libc1x.so\0", 10))),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("can't load "), HasSubstr("libc1x.so: cannot open shared object file"))));
}

TEST_F(NcclLoader, ASymbolThatIsMissing) {
  EXPECT_THAT(Load(Damaged("symbol.so", "torchCheckFail", "torchCheckNail")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("undefined symbol")));
}

TEST_F(NcclLoader, AFunctionThatIsMissing) {
  EXPECT_THAT(Load(Damaged("function.so", "ddpopt_nccl_object", "ddpopt_nccl_nobody")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does not export ddpopt_nccl_object()")));
}

TEST_F(NcclLoader, AnObjectThatRefuses) {
  setenv("FAKE_NCCL_DEVICES", "old", 1);
  EXPECT_THAT(Load(fake_), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("headers of another NCCL")));
}

TEST_F(NcclLoader, NoDevice) {
  setenv("FAKE_NCCL_DEVICES", "-", 1);
  EXPECT_THAT(Load(fake_), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    AllOf(HasSubstr("no CUDA device can be used: Found no NVIDIA driver"), Not(HasSubstr("More lines")))));
}

TEST_F(NcclLoader, FewerDevicesThanRanks) {
  setenv("CUDA_VISIBLE_DEVICES", "3,5", 1);
  EXPECT_THAT(Load(fake_, 2), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("LOCAL_RANK=2, but there are 2 CUDA devices (CUDA_VISIBLE_DEVICES=3,5)")));
  setenv("FAKE_NCCL_DEVICES", "1", 1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(Load(fake_, 1), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("LOCAL_RANK=1, but there is 1 CUDA device;")));
}

}  // namespace
}  // namespace ddpopt
