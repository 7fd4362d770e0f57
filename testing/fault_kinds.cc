#include "testing/fault_kinds.h"

#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "testing/fault_processes.h"

namespace ddpopt::testing {
namespace {

namespace fs = std::filesystem;

std::string NamespacesRefused() {
  static const std::string& reason = *new std::string([] {
    int status = 0;
    const std::string name = absl::StrCat("ddpopt-try-", getpid());
    const std::string output = Shell(absl::StrCat("ip netns add ", name, " && ip -n ", name,
                                                  " link add try type veth peer name try2; s=$?; ip netns del ", name, "; exit $s"),
                                     &status);
    return status == 0 ? std::string() : absl::StrCat("needs root and network namespaces (ip netns, veth): ", output);
  }());
  return reason;
}

std::string MountRefused() {
  static const std::string& reason = *new std::string([] {
    std::string folder = absl::StrCat(fs::temp_directory_path().string(), "/ddpopt-mount.XXXXXX");
    if (mkdtemp(folder.data()) == nullptr) return absl::StrCat("can't make a folder: ", std::strerror(errno));
    const bool mounted = mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=64k") == 0;
    const std::string why = mounted ? "" : absl::StrCat("needs root, to mount a small disk: ", std::strerror(errno));
    if (mounted) umount(folder.c_str());
    rmdir(folder.c_str());
    return why;
  }());
  return reason;
}

std::string Checkpoint(int step) { return absl::StrFormat("\"[^\"]*checkpoint-%012d\\.ckpt\"", step); }
std::string Ends(const FaultRun& run, const char* how) { return absl::StrCat("launcher: rank ", run.rank, " \\(pid \\d+\\) was ", how); }

std::vector<std::string> None(const FaultRun&) { return {}; }

std::vector<std::string> OutOfOrder(const FaultRun& run) {
  const std::string rank = absl::StrCat("rank ", run.rank);
  // Where the others exchange texts meanwhile, they wait for the rank.
  return {absl::StrCat("Rank ", run.rank, " is running collective: CollectiveFingerPrint\\(SequenceNumber=\\d+, OpType=ALLREDUCE, ",
                       "TensorShape=\\[3\\]|", rank,
                       " (has not come|runs another collective|is further): it is in #\\d+ \\(allreduce of 3 Float\\)|waited [0-9.]+ s for ",
                       rank, ", which has not come")};
}

std::vector<std::string> WrongWorldSize(const FaultRun& run) {
  if (run.rank == 0) return {absl::StrCat("rank 0 has WORLD_SIZE=7, rank \\d has WORLD_SIZE=", run.world)};
  return {absl::StrCat("rank 0 has WORLD_SIZE=", run.world, ", rank ", run.rank, " has WORLD_SIZE=7")};
}

}  // namespace

const std::vector<FaultKind>& FaultKinds() {
  const std::vector<FaultPoint> around = {kBeforeForward, kBeforeBackward, kBeforeStep, kAfterSave};
  const std::vector<FaultPoint> everywhere = {kBeforeForward, kBeforeBackward, kBeforeStep, kAfterSave, kInBackward};
  const std::vector<FaultPoint> all_step = {kBeforeForward}, set_up = {kAtStart};
  const auto of = [](std::function<std::string(const FaultRun&)> cause) {
    return [cause = std::move(cause)](const FaultRun& run) { return std::vector<std::string>{cause(run)}; };
  };
  static const auto& kinds = *new std::vector<FaultKind>{
      {"kill", of([](const FaultRun& run) { return Ends(run, "killed by signal 9"); }), everywhere, true},
      {"stop", of([](const FaultRun& run) { return Ends(run, "stopped by signal 19"); }), everywhere, true},
      {"slow", None, everywhere, true, -1, 0, false, false},
      {"exception",
       [](const FaultRun& run) -> std::vector<std::string> {
         return {absl::StrCat("\\[rank ", run.rank, "\\] fault_program: training: .*an exception of the user's")};
       },
       everywhere},
      {"corrupt_checkpoint",
       [](const FaultRun& run) -> std::vector<std::string> {
         const int newest = NewestCheckpoint(run);
         return {absl::StrCat("\\[rank 0\\] passed over: ", Checkpoint(newest), ": .*(altered|cut short|end mark|expected a checkpoint)"),
                 absl::StrCat("resumed at step ", newest - 1)};
       },
       around, false, -1, 2},
      {"full_disk",
       [](const FaultRun& run) -> std::vector<std::string> {
         return {absl::StrCat("\\[rank 0\\] .*saving a checkpoint: ", Checkpoint(run.step + 1), ": No space left on device")};
       },
       all_step, false, 0, 0, false, true, MountRefused},
      {"file_size_limit",
       [](const FaultRun& run) -> std::vector<std::string> {
         return {absl::StrCat("\\[rank 0\\] .*saving a checkpoint: ", Checkpoint(run.step + 1), ": File too large")};
       },
       all_step, false, 0},
      {"port_taken",
       [](const FaultRun& run) -> std::vector<std::string> {
         return {absl::StrCat("master_port ", run.master_port, " is in use on this machine")};
       },
       set_up, false, -1, 0, false, false},
      {"wrong_world_size", WrongWorldSize, set_up},
      {"mismatching_models",
       [](const FaultRun& run) -> std::vector<std::string> {
         const std::string rank = absl::StrCat("rank ", run.rank, "\\b"), shape = "\\[1[67], 8\\]";
         return {absl::StrCat(rank, ".*first\\.weight.*", shape, ".*", shape, "|first\\.weight.*", shape, ".*", rank, ".*", shape)};
       },
       set_up},
      {"out_of_order", OutOfOrder, everywhere, false, -1, 0, true},
      {"recompiles_alone", None, all_step, false, -1, 1, false, false},
      {"falls_back_alone", None, all_step, false, -1, 0, false, false},
      {"interrupt",
       [](const FaultRun&) -> std::vector<std::string> { return {"launcher: the launcher got signal 2 "}; },
       around, true, -1, 1, false, false},
      // What each rank says is looked at one by one.
      {"link_down", None, around, true, -1, 2, true, false, NamespacesRefused},
  };
  return kinds;
}

int NewestCheckpoint(const FaultRun& run) { return run.point == kAfterSave ? run.step + 1 : run.step; }

}  // namespace ddpopt::testing
