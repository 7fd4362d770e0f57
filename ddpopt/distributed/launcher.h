#ifndef DDPOPT_DISTRIBUTED_LAUNCHER_H_
#define DDPOPT_DISTRIBUTED_LAUNCHER_H_

// Runs a program on several ranks of this machine, with torchrun's environment, and watches over them.
//
//   int main(int argc, char** argv) {
//     if (absl::optional<int> status = ddpopt::MaybeLaunchSelf(argc, argv, 2)) return *status;   // the parent ends here
//     auto group = ddpopt::InitProcessGroup();                                                   // each of the 2 ranks goes on
//
// Each rank gets MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE,
// TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS, as from torchrun, OMP_NUM_THREADS=1 unless set, an empty standard input, and a
// process group of its own. The first rank that exits with an error, dies of a signal or is stopped ends the others: SIGTERM, and SIGKILL
// after a grace period, to whole process groups. SIGINT, SIGTERM, SIGHUP or SIGQUIT to the launcher do the same. A reader of the output that
// stops reading holds up the ranks that write (after a megabyte), never the launcher; when the ranks have gone, what it has not read yet is
// waited for until a signal or the time limit.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace ddpopt {

using EnvironmentList = std::vector<std::pair<std::string, std::string>>;

struct LaunchOptions {
  int nproc_per_node = 1;
  // Several machines ("nodes"), each with a launcher of its own, all with the same nnodes, nproc_per_node, master_addr and master_port. The
  // master is the machine with node_rank 0. One node: 127.0.0.1 and a free port, unless given.
  int nnodes = 1;
  int node_rank = 0;
  std::string master_addr;
  int master_port = 0;
  // How often all ranks are started again after one has failed; they find the number of the start in TORCHELASTIC_RESTART_COUNT, and go on
  // from their last checkpoint if they have one. A signal to the launcher and its time limit end the run for good. With several nodes each
  // launcher starts its own ranks again: a rank that fails takes those of other nodes with it, since their collectives fail. The counts of
  // the nodes may differ; the ranks meet all the same (InitProcessGroup). A node whose ranks have all succeeded does not start them again.
  int max_restarts = 0;
  double timeout_seconds = 0;      // of the whole run; 0: none
  double grace_seconds = 3;        // between SIGTERM and SIGKILL
  double linger_seconds = 0;       // after the first failure, how long the other ranks may go on to end by themselves
  EnvironmentList environment;     // for all ranks, over what is inherited
  std::vector<std::string> unset;  // variables not handed on
  std::function<EnvironmentList(int rank)> rank_environment;
  // False: every line is prefixed by "[rank k] ". True: rank 0 has this process's own standard output and error, and the lines of the other
  // ranks go, prefixed, to standard error; so rank 0's last line is the last on standard output.
  bool rank0_plain = false;
  int stdout_fd = 1;
  int stderr_fd = 2;
};

struct RankOutcome {
  int exit_status = 0;             // 128 + signal if it died of one
  int signal = 0;                  // that it died of or was stopped by
  bool stopped = false;            // it was found stopped
  bool ended_by_launcher = false;  // the launcher had begun to end the ranks before this one ended
  std::string text;                // "exited with status 3", "was killed by signal 9 (Killed)", ...
};

struct LaunchResult {
  // 0 if all ranks succeeded; else the status of the first failure: a rank's exit status, 128 + signal for a rank that died of or was
  // stopped by one, kTimeoutStatus, or 128 + the signal that the launcher got.
  int exit_status = 0;
  int failed_rank = -1;  // in the whole group; -1 if it was no rank's failure
  std::string reason;    // empty if all succeeded; names the rank
  double seconds = 0;
  int restarts = 0;                // that were made
  std::vector<RankOutcome> ranks;  // of this node, of the last start
};

inline constexpr int kTimeoutStatus = 124;

// Blocks until all ranks have ended and nothing of their process groups is left. argv[0] is searched in PATH if it has no slash.
// Errors: InvalidArgument (no ranks, no program, bad limits, nodes without a master), NotFound/PermissionDenied naming the program,
// Unavailable for a master_port that is in use here. Not for concurrent use.
absl::StatusOr<LaunchResult> Launch(const std::vector<std::string>& argv, const LaunchOptions& options);

// If RANK isn't set: runs this very program with the same arguments on nproc ranks (rank0_plain) and returns the exit status for main.
// Inside a rank: nullopt.
absl::optional<int> MaybeLaunchSelf(int argc, char** argv, int nproc);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_LAUNCHER_H_
