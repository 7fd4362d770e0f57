#include "ddpopt/distributed/nccl_loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace ddpopt {
namespace {

constexpr char kVariable[] = "DDPOPT_NCCL_LIBRARY";
constexpr char kFile[] = "libddpopt_nccl.so";
constexpr char kInRunfiles[] = "ddpopt/ddpopt/distributed/libddpopt_nccl.so";  // by repository, in any workspace

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string ProgramPath() {
  char buffer[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", buffer, sizeof(buffer));
  return length > 0 ? std::string(buffer, static_cast<size_t>(length)) : std::string();
}

// The library, or the program, that this code is in.
std::string OwnPath() {
  Dl_info info;
  return dladdr(reinterpret_cast<void*>(&OwnPath), &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : std::string();
}

// The words of the object's marker, by name; empty if the file has none.
std::map<std::string, std::string> ReadMarker(const std::string& bytes) {
  const std::string begin = DDPOPT_NCCL_MARKER_BEGIN;
  for (size_t at = bytes.find(begin); at != std::string::npos; at = bytes.find(begin, at + 1)) {
    const size_t from = at + begin.size();
    const size_t to = bytes.find('\n', from);
    std::map<std::string, std::string> words;
    for (absl::string_view word : absl::StrSplit(absl::string_view(bytes).substr(from, to - from), ' ', absl::SkipWhitespace())) {
      words.insert(absl::StrSplit(word, absl::MaxSplits('=', 1)));
    }
    // A program that can load the object holds the marker's beginning as well.
    if (to != std::string::npos && words.count("interface") != 0 && words.count("libtorch") != 0) return words;
  }
  return {};
}

// What to add to an error on a machine where no CUDA program can run.
std::string DriverNote() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (driver == nullptr) return "; this machine has no NVIDIA driver (libcuda.so.1 is not found)";
  dlclose(driver);
  return "";
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string Hint(absl::string_view error) {
  if (absl::StrContains(error, "undefined symbol")) {
    return ". The program runs with another LibTorch than the object was linked to";
  }
  if (absl::StartsWith(error, "libtorch_cuda.so") || absl::StartsWith(error, "libc10_cuda.so")) {
    return ". The LibTorch of this program has no CUDA part: build with LIBTORCH_HOME set to a LibTorch with CUDA, or name its lib folder in "
           "LD_LIBRARY_PATH";
  }
  return ". LibTorch's CUDA part needs it: install NVIDIA's wheels beside LibTorch as pip does, or name its folder in LD_LIBRARY_PATH";
}

}  // namespace

std::vector<std::string> NcclObjectCandidates() {
  if (const std::string given = Variable(kVariable); !given.empty()) return {given};
  std::vector<std::string> result;
  const auto add = [&](const std::string& folder, const char* file) {
    const std::string path = absl::StrCat(folder, "/", file);
    if (!folder.empty() && std::find(result.begin(), result.end(), path) == result.end()) result.push_back(path);
  };
  const std::string program = ProgramPath();
  add(Variable("RUNFILES_DIR"), kInRunfiles);
  add(Variable("TEST_SRCDIR"), kInRunfiles);
  if (!program.empty()) add(absl::StrCat(program, ".runfiles"), kInRunfiles);
  add(FolderOf(OwnPath()), kFile);
  if (!program.empty()) add(FolderOf(program), kFile);
  const std::string folders = Variable("LD_LIBRARY_PATH");
  for (const absl::string_view folder : absl::StrSplit(folders, ':', absl::SkipEmpty())) add(std::string(folder), kFile);
  return result;
}

absl::StatusOr<const NcclObject*> LoadNcclObject(int local_rank) { return LoadNcclObject(NcclObjectCandidates(), local_rank); }

absl::StatusOr<const NcclObject*> LoadNcclObject(const std::vector<std::string>& candidates, int local_rank) {
  std::string path;
  for (const std::string& candidate : candidates) {
    if (access(candidate.c_str(), F_OK) == 0) {
      path = candidate;
      break;
    }
  }
  if (path.empty()) {
    return absl::NotFoundError(
        Variable(kVariable).empty()
            ? absl::StrCat("there is no ", kFile, ", which NCCL needs; a build with --config=cuda makes it (docs/cuda.md). Looked for: ",
                           absl::StrJoin(candidates, ", "), DriverNote())
            : absl::StrCat(kVariable, "=", candidates.front(), ": no such file; it should name ", kFile));
  }

  errno = 0;
  std::ostringstream bytes;
  if (std::ifstream file(path, std::ios::binary); !file || !(bytes << file.rdbuf())) {
    return absl::FailedPreconditionError(absl::StrCat("can't read ", path, ": ", errno != 0 ? std::strerror(errno) : "it is empty"));
  }
  std::map<std::string, std::string> marker = ReadMarker(bytes.str());
  if (marker.empty()) return absl::InvalidArgumentError(absl::StrCat(path, " is not the NCCL object of ddpopt (", kFile, ")"));
  if (marker["interface"] != DDPOPT_NCCL_INTERFACE) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is of another version of ddpopt than this program (interface ",
                                                      marker["interface"], ", here " DDPOPT_NCCL_INTERFACE
                                                                           "); build both from the same sources"));
  }
  if (marker["libtorch"] != TORCH_VERSION) {
    return absl::FailedPreconditionError(absl::StrCat(path, " was built with LibTorch ", marker["libtorch"],
                                                      ", this program with " TORCH_VERSION "; build both with the same"));
  }

  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const std::string error = dlerror();
    return absl::FailedPreconditionError(absl::StrCat("can't load ", path, ": ", error, Hint(error), DriverNote()));
  }
  const auto get = reinterpret_cast<NcclObjectFunction>(dlsym(library, kNcclObjectFunction));
  if (get == nullptr) return absl::InvalidArgumentError(absl::StrCat(path, " does not export ", kNcclObjectFunction, "()"));
  const NcclObject* object = get();
  try {
    const int devices = object->device_count();
    if (local_rank >= devices) {
      const std::string visible = Variable("CUDA_VISIBLE_DEVICES");
      return absl::InvalidArgumentError(absl::StrCat("LOCAL_RANK=", local_rank, ", but there ", devices == 1 ? "is " : "are ", devices,
                                                     devices == 1 ? " CUDA device" : " CUDA devices",
                                                     visible.empty() ? "" : absl::StrCat(" (CUDA_VISIBLE_DEVICES=", visible, ")"),
                                                     "; NCCL needs one for each rank of a machine"));
    }
    const std::string wrong = object->check();
    if (!wrong.empty()) return absl::FailedPreconditionError(absl::StrCat("can't use ", path, ": ", wrong));
  } catch (const std::exception& e) {
    return absl::FailedPreconditionError(absl::StrCat("no CUDA device can be used: ", FirstLine(ExceptionMessage(e)), DriverNote()));
  }
  return object;
}

}  // namespace ddpopt
