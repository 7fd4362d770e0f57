// For launcher_test: a program that launches itself. Usage: launch_self_program RANKS [RANK STATUS]; RANK ends with STATUS.

#include <cstdio>
#include <cstdlib>

#include "absl/types/optional.h"
#include "ddpopt/distributed/launcher.h"

int main(int argc, char** argv) {
  if (const absl::optional<int> status = ddpopt::MaybeLaunchSelf(argc, argv, std::atoi(argv[1]))) return *status;
  const int rank = std::atoi(std::getenv("RANK"));
  std::printf("hello from %d of %s\n", rank, std::getenv("WORLD_SIZE"));
  return argc == 4 && rank == std::atoi(argv[2]) ? std::atoi(argv[3]) : 0;
}
