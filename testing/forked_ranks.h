#ifndef DDPOPT_TESTING_FORKED_RANKS_H_
#define DDPOPT_TESTING_FORKED_RANKS_H_

// Ranks for tests of what goes wrong: each is a process forked from the test, which stops, kills or misleads it.
//
//   ForkedRanks ranks(3, [](int rank) -> std::string {
//     const auto group = InitProcessGroup();                     // MASTER_ADDR, RANK, ... are set
//     ForkedRanks::Ready();
//     return std::string(group->Barrier().message());            // comes back
//   });
//   ranks.AwaitReady();
//   ranks.Signal(1, SIGKILL);
//   EXPECT_THAT(ranks.Result(0), HasSubstr("rank 1"));
//
// The test itself must not have used threads of LibTorch's before. What still runs when this goes is killed. What the thread sanitizer finds
// in a rank fails the test.

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace ddpopt::testing {

class ForkedRanks {
 public:
  using Body = std::function<std::string(int rank)>;

  // Each rank has one thread for operators, WORLD_SIZE is `count` unless said otherwise, MASTER_PORT is a free port.
  ForkedRanks(int count, const Body& body, const std::function<std::string(int)>& world_size = nullptr);
  ~ForkedRanks();
  ForkedRanks(const ForkedRanks&) = delete;
  ForkedRanks& operator=(const ForkedRanks&) = delete;

  // In a body: the rank has come so far.
  static void Ready();
  // Until all ranks have; a failure of the test after 20 s.
  void AwaitReady();
  void Signal(int rank, int signal);
  // What the rank's body returned, or "thrown: ..." for an exception; then " (ended with status 3)", or signal 9, if the process did not end
  // well, alone if it said nothing. "(nothing came)" after a while.
  std::string Result(int rank, int seconds = 20);

 private:
  std::vector<pid_t> pids_;
  std::vector<int> results_, readies_, findings_;
};

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_FORKED_RANKS_H_
