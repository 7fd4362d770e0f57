// What a rank hears of the others when something goes wrong: each rank is a process of its own, which the test stops, kills or misleads.

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/full.h"
#include "ATen/ops/zeros_like.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/distributed/process_group.h"
#include "ddpopt/distributed/process_group_c10d.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/environment.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Runs `body` on each rank, in a process forked from this one; what it returns comes back. "ready" may be told on the way, by Ready().
class Ranks {
 public:
  using Body = std::function<std::string(int rank)>;

  Ranks(int count, const Body& body, const std::function<std::string(int)>& world_size = nullptr) {
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", std::to_string(testing::FreePort()).c_str(), 1);
    std::fflush(nullptr);
    for (int rank = 0; rank < count; ++rank) {
      int result[2], ready[2];
      if (pipe(result) != 0 || pipe(ready) != 0) std::abort();
      const pid_t pid = fork();
      if (pid == 0) {
        setenv("RANK", std::to_string(rank).c_str(), 1);
        setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
        setenv("WORLD_SIZE", (world_size ? world_size(rank) : std::to_string(count)).c_str(), 1);
        at::set_num_threads(1);
        ready_fd = ready[1];
        close(ready[0]);
        std::string text;
        try {
          text = body(rank);
        } catch (const std::exception& e) {
          text = "thrown: " + ExceptionMessage(e);
        }
        if (write(result[1], text.data(), text.size()) < 0) _exit(1);
        _exit(0);
      }
      close(result[1]);
      close(ready[1]);
      pids_.push_back(pid);
      results_.push_back(result[0]);
      readies_.push_back(ready[0]);
    }
  }
  ~Ranks() {
    for (const pid_t pid : pids_) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    for (const int fd : results_) close(fd);
    for (const int fd : readies_) close(fd);
  }

  static void Ready() {
    if (write(ready_fd, "r", 1) != 1) _exit(1);
  }
  // Until all ranks are ready.
  void AwaitReady() {
    for (const int fd : readies_) {
      char byte;
      pollfd wait = {fd, POLLIN, 0};
      ASSERT_GT(poll(&wait, 1, 20'000), 0);
      ASSERT_EQ(read(fd, &byte, 1), 1);
    }
  }
  void Signal(int rank, int signal) { kill(pids_[rank], signal); }
  // What the rank's body returned; fails after a while.
  std::string Result(int rank, int seconds = 20) {
    std::string text;
    char buffer[4096];
    while (true) {
      pollfd wait = {results_[rank], POLLIN, 0};
      if (poll(&wait, 1, seconds * 1000) <= 0) return text + "(nothing came)";
      const ssize_t got = read(results_[rank], buffer, sizeof(buffer));
      if (got <= 0) break;
      text.append(buffer, static_cast<std::size_t>(got));
    }
    siginfo_t info = {};
    if (text.empty() && waitid(P_PID, static_cast<id_t>(pids_[rank]), &info, WEXITED | WNOWAIT) == 0) {
      text = absl::StrCat("(ended with ", info.si_code == CLD_EXITED ? "status " : "signal ", info.si_status, ")");
    }
    return text;
  }

 private:
  static inline int ready_fd = -1;
  std::vector<pid_t> pids_;
  std::vector<int> results_, readies_;
};

InitOptions Quick(int stall_ms = 1000) {
  InitOptions options;
  options.timeout = std::chrono::seconds(30);
  options.stall_timeout = std::chrono::milliseconds(stall_ms);
  return options;
}

std::string AllReduce(const ProcessGroup& group, int64_t size = 4) {
  at::Tensor tensor = at::full({size}, 1.0);
  const absl::Status status = group.AllReduceSum(tensor);
  return status.ok() ? absl::StrCat("sum ", tensor[0].item<double>())
                     : absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
}

// A group in which every rank has summed once.
#define GROUP_OR_RETURN(options)                               \
  const auto made = InitProcessGroup(options);                 \
  if (!made.ok()) return "setup: " + made.status().ToString(); \
  const ProcessGroup& group = *made;                           \
  if (AllReduce(group).rfind("sum ", 0) != 0) return "the first sum failed"

TEST(GroupFaults, ARankThatDoesNotComeIsNamed) {
  Ranks ranks(3, [](int rank) -> std::string {
    GROUP_OR_RETURN(Quick());
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(6));
      return "slept";
    }
    return AllReduce(group, 77);
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ranks.Result(rank),
                AllOf(HasSubstr("DEADLINE_EXCEEDED: AllReduceSum on rank " + std::to_string(rank)), HasSubstr("(allreduce of 77 Float)"),
                      HasSubstr("has not ended within 1 s"), HasSubstr("rank 1 has not come: it ended #2 (allreduce of 4 Float) "),
                      Not(HasSubstr("rank 1 doesn't answer"))));
  }
}

TEST(GroupFaults, AStoppedRankIsNamed) {
  Ranks ranks(3, [](int rank) -> std::string {
    GROUP_OR_RETURN(Quick());
    Ranks::Ready();
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(20));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return AllReduce(group);
  });
  ranks.AwaitReady();
  ranks.Signal(1, SIGSTOP);
  for (const int rank : {0, 2}) EXPECT_THAT(ranks.Result(rank), HasSubstr("rank 1 doesn't answer (killed, stopped, ended or cut off)"));
}

TEST(GroupFaults, AKilledRankIsNamedAtOnce) {
  Ranks ranks(3, [](int rank) -> std::string {
    GROUP_OR_RETURN(Quick(25'000));
    Ranks::Ready();
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(20));
    return AllReduce(group);
  });
  ranks.AwaitReady();
  ranks.Signal(1, SIGKILL);
  const auto begin = Clock::now();
  for (const int rank : {0, 2}) EXPECT_THAT(ranks.Result(rank), HasSubstr("rank 1 doesn't answer (killed, stopped, ended or cut off)"));
  EXPECT_LT(SecondsSince(begin), 10);
}

TEST(GroupFaults, TheRankWithTheStoreIsNamed) {
  for (const int signal : {SIGSTOP, SIGKILL}) {
    Ranks ranks(2, [](int rank) -> std::string {
      GROUP_OR_RETURN(Quick());
      Ranks::Ready();
      if (rank == 0) std::this_thread::sleep_for(std::chrono::seconds(20));
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      const std::string text = AllReduce(group);
      return absl::StrCat(text, " | ", group.AllGatherText("texts", "x").status().message());
    });
    ranks.AwaitReady();
    ranks.Signal(0, signal);
    EXPECT_THAT(ranks.Result(1), AllOf(HasSubstr("rank 0's store at 127.0.0.1:"),
                                       HasSubstr("doesn't answer: rank 0 has ended, is stopped, or can't be reached"),
                                       HasSubstr("| exchanging texts on rank 1 of 2"), Not(HasSubstr("nothing came"))));
  }
}

TEST(GroupFaults, ARankThatLeavesIsNamed) {
  Ranks ranks(3, [](int rank) -> std::string {
    {
      GROUP_OR_RETURN(Quick(20'000));
      if (rank != 2) return AllReduce(group, 9);
    }
    std::this_thread::sleep_for(std::chrono::seconds(5));
    return "left";
  });
  for (const int rank : {0, 1})
    EXPECT_THAT(ranks.Result(rank), HasSubstr("rank 2 has taken its process group down: it ended #2 (allreduce of 4 Float)"));
}

TEST(GroupFaults, AnExchangeOfTextsNamesToo) {
  Ranks ranks(3, [](int rank) -> std::string {
    GROUP_OR_RETURN(Quick());
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(8));
    return std::string(group.AllGatherText("plans", "x").status().message());
  });
  for (const int rank : {0, 2}) {
    EXPECT_THAT(ranks.Result(rank),
                AllOf(HasSubstr("exchanging plans on rank " + std::to_string(rank)), HasSubstr("waited 1 s for rank 1, which has not come"),
                      HasSubstr("rank 1 has not come: it ended #2")));
  }
}

TEST(GroupFaults, CollectivesThatDifferAreNamedWithChecks) {
  struct Case {
    const char* name;
    std::function<std::string(const ProcessGroup&, int)> run;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {"operation",
       [](const ProcessGroup& group, int rank) {
         at::Tensor tensor = at::full({4}, 1.0);
         return std::string((rank == 1 ? group.Broadcast(tensor, 0) : group.AllReduceSum(tensor)).message());
       },
       "Op type"},
      {"shape", [](const ProcessGroup& group, int rank) { return AllReduce(group, rank == 1 ? 5 : 4); }, "Tensor Tensor shapes"},
      {"dtype",
       [](const ProcessGroup& group, int rank) {
         at::Tensor tensor = at::full({4}, 1.0, at::TensorOptions(rank == 1 ? at::kDouble : at::kFloat));
         return std::string(group.AllReduceSum(tensor).message());
       },
       "Tensor Tensor dtypes"},
  };
  for (const Case& c : cases) {
    Ranks ranks(3, [&](int rank) -> std::string {
      InitOptions options = Quick(5000);
      options.debug = true;
      GROUP_OR_RETURN(options);
      return c.run(group, rank);
    });
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_THAT(ranks.Result(rank),
                  AllOf(HasSubstr("Detected mismatch between collectives on ranks"), HasSubstr("Rank 1 is running"), HasSubstr(c.expected)))
          << c.name;
    }
  }
}

TEST(GroupFaults, WorldSizesThatDifferAreNamedAtOnce) {
  for (const int other : {2, 4}) {
    const auto begin = Clock::now();
    Ranks ranks(
        3, [](int) -> std::string { return std::string(InitProcessGroup(Quick(0)).status().message()); },
        [&](int rank) { return std::to_string(rank == 1 ? other : 3); });
    const std::string text = absl::StrCat("rank 0 has WORLD_SIZE=3, rank 1 has WORLD_SIZE=", other);
    for (int rank = 0; rank < 3; ++rank) EXPECT_THAT(ranks.Result(rank), HasSubstr(text)) << rank;
    EXPECT_LT(SecondsSince(begin), 10);
  }
}

// As the Reducer waits: it keeps the future alone.
TEST(GroupFaults, AFutureWhoseWorkWasDroppedEnds) {
  for (const bool killed : {false, true}) {
    Ranks ranks(2, [&](int rank) -> std::string {
      GROUP_OR_RETURN(Quick(killed ? 20'000 : 1000));
      if (rank == 1) {
        Ranks::Ready();
        std::this_thread::sleep_for(std::chrono::seconds(20));
      }
      std::vector<at::Tensor> tensors = {at::full({1000}, 1.0)};
      const auto future = group.impl()->group->allreduce(tensors)->getFuture();
      Ranks::Ready();
      future->wait();
      return future->hasError() ? future->tryRetrieveErrorMessage() : "it ended";
    });
    ranks.AwaitReady();
    if (killed) ranks.Signal(1, SIGKILL);
    EXPECT_THAT(ranks.Result(0), HasSubstr(killed ? "rank 1 doesn't answer" : "rank 1 has not come"));
  }
}

// With an all-reduce outstanding that the other rank never joins.
TEST(GroupFaults, TakingDownNeverWaitsForOthers) {
  for (const bool keep_work : {false, true}) {
    Ranks ranks(2, [&](int rank) -> std::string {
      c10::intrusive_ptr<c10d::Work> work;
      Clock::time_point begin;
      std::string error;
      {
        GROUP_OR_RETURN(Quick(20'000));
        if (rank == 1) {
          std::this_thread::sleep_for(std::chrono::seconds(6));
          return "came late";
        }
        std::vector<at::Tensor> tensors = {at::full({1000}, 1.0)};
        work = group.impl()->group->allreduce(tensors);
        const auto future = work->getFuture();
        if (!keep_work) work.reset();
        begin = Clock::now();
        std::thread other([&, future] {
          future->wait();
          error = future->hasError() ? future->tryRetrieveErrorMessage() : "it ended";
        });
        const_cast<absl::StatusOr<ProcessGroup>&>(made) = absl::CancelledError("gone");
        other.join();
      }
      if (SecondsSince(begin) > 4) return absl::StrCat("it took ", SecondsSince(begin), " s");
      return error;
    });
    EXPECT_THAT(ranks.Result(0), HasSubstr("taken down"));
  }
}

TEST(GroupFaults, StridesThatDifferBetweenRanksDoNoHarm) {
  Ranks ranks(2, [](int rank) -> std::string {
    GROUP_OR_RETURN(Quick(0));
    const at::Tensor base = at::arange(24, at::TensorOptions(at::kFloat)).reshape({2, 3, 2, 2});
    for (const auto& other :
         {base.contiguous(at::MemoryFormat::ChannelsLast), base.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0})}) {
      at::Tensor tensor = rank == 0 ? base.clone() : other.clone(at::MemoryFormat::Preserve);
      if (rank == 1 && tensor.is_contiguous()) return "the strides are the same";
      if (!group.AllReduceSum(tensor).ok() || !tensor.equal(base * 2)) return "AllReduceSum mixes elements";
      tensor = rank == 0 ? base.clone() : at::zeros_like(other);
      if (!group.Broadcast(tensor, 0).ok() || !tensor.equal(base)) return "Broadcast mixes elements";
    }
    return "right";
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Result(rank), "right");
}

TEST(GroupFaults, AGroupCanBeMadeAgainOnTheSamePort) {
  Ranks ranks(2, [](int) -> std::string {
    for (int i = 0; i < 3; ++i) {
      setenv("TORCHELASTIC_RESTART_COUNT", std::to_string(i).c_str(), 1);
      GROUP_OR_RETURN(Quick(0));
    }
    return "three";
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Result(rank), "three");
}

}  // namespace
}  // namespace ddpopt
