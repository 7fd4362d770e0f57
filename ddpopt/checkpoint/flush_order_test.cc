// In which order a checkpoint reaches the disk: a name is given only to what is flushed, and what was before goes only after that.

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "ATen/ops/ones.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ddpopt/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"

namespace {

std::string* watched = nullptr;  // only what happens in this folder is written down
std::vector<std::string>* calls = nullptr;

void WriteDown(const char* what, absl::string_view path) {
  if (watched == nullptr || !absl::ConsumePrefix(&path, *watched)) return;
  // A file that has no name yet has a random one.
  if (const std::size_t random = path.find(".ckpt."); random != absl::string_view::npos) path = "the new file";
  calls->push_back(absl::StrCat(what, " ", path));
}

}  // namespace

// In place of the C library's.
extern "C" {
int fsync(int fd) {
  char path[PATH_MAX] = {};
  if (readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), path, sizeof(path) - 1) > 0) WriteDown("fsync", path);
  return static_cast<int>(syscall(SYS_fsync, fd));
}
int rename(const char* from, const char* to) {
  WriteDown("rename to", to);
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int mkdir(const char* path, mode_t mode) {
  const int result = static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (result == 0) WriteDown("mkdir", path);
  return result;
}
int unlink(const char* path) {
  WriteDown("unlink", path);
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
}

namespace ddpopt {
namespace {

using ::testing::ElementsAre;

TEST(FlushOrder, OfCheckpoints) {
  std::string folder = absl::StrCat(::testing::TempDir(), "/order.XXXXXX");
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  folder = std::filesystem::canonical(folder);  // as the system names it
  calls = new std::vector<std::string>();
  watched = &folder;
  CheckpointState state;
  state.AddTensor("weight", at::ones({3}));
  CheckpointOptions options;
  options.keep = 1;
  state.step = 1;
  DDPOPT_ASSERT_OK(SaveCheckpoint(folder + "/runs/first", state, options));
  const std::string first = "/runs/first/checkpoint-000000000001.ckpt", second = "/runs/first/checkpoint-000000000002.ckpt";
  EXPECT_THAT(*calls, ElementsAre("mkdir /runs", "fsync ", "mkdir /runs/first", "fsync /runs", "fsync the new file", "rename to " + first,
                                  "fsync /runs/first"));
  calls->clear();
  state.step = 2;
  DDPOPT_ASSERT_OK(SaveCheckpoint(folder + "/runs/first", state, options));
  EXPECT_THAT(*calls, ElementsAre("fsync the new file", "rename to " + second, "fsync /runs/first", "unlink " + first));
  watched = nullptr;
}

}  // namespace
}  // namespace ddpopt
