// What a rank hears of the others when something goes wrong: each rank is a process of its own, which the test stops, kills or misleads.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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
#include "testing/forked_ranks.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::ForkedRanks;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

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
  ForkedRanks ranks(3, [](int rank) -> std::string {
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
  ForkedRanks ranks(3, [](int rank) -> std::string {
    GROUP_OR_RETURN(Quick());
    ForkedRanks::Ready();
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(20));
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    return AllReduce(group);
  });
  ranks.AwaitReady();
  ranks.Signal(1, SIGSTOP);
  for (const int rank : {0, 2}) EXPECT_THAT(ranks.Result(rank), HasSubstr("rank 1 doesn't answer (killed, stopped, ended or cut off)"));
}

TEST(GroupFaults, AKilledRankIsNamedAtOnce) {
  ForkedRanks ranks(3, [](int rank) -> std::string {
    GROUP_OR_RETURN(Quick(25'000));
    ForkedRanks::Ready();
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
    ForkedRanks ranks(2, [](int rank) -> std::string {
      GROUP_OR_RETURN(Quick());
      ForkedRanks::Ready();
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
  ForkedRanks ranks(3, [](int rank) -> std::string {
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
  ForkedRanks ranks(3, [](int rank) -> std::string {
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
    ForkedRanks ranks(3, [&](int rank) -> std::string {
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

// Of every collective; after an error of the checks the ranks are still in step.
TEST(GroupFaults, EveryCollectiveIsCheckedBetweenRanks) {
  using Tensors = std::vector<at::Tensor>;
  using Work = c10::intrusive_ptr<c10d::Work>;
  const auto full = [](int64_t size) { return at::full({size}, 1.0); };
  struct Case {
    const char* operation;
    std::function<Work(c10d::Backend&, int64_t size, int rank)> run;
  };
  const std::vector<Case> cases = {
      {"BROADCAST",
       [=](c10d::Backend& backend, int64_t size, int) {
         Tensors tensors = {full(size)};
         return backend.broadcast(tensors, {});
       }},
      {"REDUCE",
       [=](c10d::Backend& backend, int64_t size, int) {
         Tensors tensors = {full(size)};
         return backend.reduce(tensors, {});
       }},
      {"ALLGATHER",
       [=](c10d::Backend& backend, int64_t size, int) {
         std::vector<Tensors> outputs = {{full(size), full(size)}};
         Tensors inputs = {full(size)};
         return backend.allgather(outputs, inputs, {});
       }},
      {"_ALLGATHER_BASE",
       [=](c10d::Backend& backend, int64_t size, int) {
         at::Tensor output = full(2 * size), input = full(size);
         return backend._allgather_base(output, input, {});
       }},
      {"GATHER",
       [=](c10d::Backend& backend, int64_t size, int rank) {
         std::vector<Tensors> outputs;
         if (rank == 0) outputs = {{full(size), full(size)}};
         Tensors inputs = {full(size)};
         return backend.gather(outputs, inputs, {});
       }},
      {"SCATTER",
       [=](c10d::Backend& backend, int64_t size, int rank) {
         std::vector<Tensors> inputs;
         if (rank == 0) inputs = {{full(size), full(size)}};
         Tensors outputs = {full(size)};
         return backend.scatter(outputs, inputs, {});
       }},
      {"REDUCE_SCATTER",
       [=](c10d::Backend& backend, int64_t size, int) {
         std::vector<Tensors> inputs = {{full(size), full(size)}};
         Tensors outputs = {full(size)};
         return backend.reduce_scatter(outputs, inputs, {});
       }},
      {"ALLTOALL",
       [=](c10d::Backend& backend, int64_t size, int) {
         Tensors outputs = {full(size), full(size)}, inputs = {full(size), full(size)};
         return backend.alltoall(outputs, inputs, {});
       }},
  };
  ForkedRanks ranks(2, [&](int rank) -> std::string {
    InitOptions options = Quick(10'000);
    options.debug = true;
    GROUP_OR_RETURN(options);
    c10d::Backend& backend = *group.impl()->group->getBackend(at::kCPU);
    for (const Case& c : cases) {
      const auto error_of = [&](const Case& run, int64_t size) -> std::string {
        try {
          run.run(backend, size, rank)->wait();
        } catch (const std::exception& e) {
          return ExceptionMessage(e);
        }
        return "";
      };
      const auto check = [&](const std::string& error, const std::vector<std::string>& parts) -> std::string {
        for (const std::string& part : parts) {
          if (error.find(part) == std::string::npos) return absl::StrCat(c.operation, " lacks \"", part, "\": ", error);
        }
        return "";
      };
      if (const std::string error = error_of(c, 4); !error.empty()) return absl::StrCat(c.operation, ": ", error);
      const std::string differ = "Detected mismatch between collectives on ranks", mine = absl::StrCat("on rank ", rank, " of 2 failed");
      // In an all-to-all ranks may give and take different amounts.
      const bool alike = std::string(c.operation) != "ALLTOALL";
      std::string wrong = !alike ? "" : check(error_of(c, rank == 1 ? 5 : 4), {differ, mine, "Tensor shapes", "Rank 1 is running", "OpType="});
      if (!wrong.empty()) return wrong;
      wrong = check(error_of(rank == 1 ? cases[0] : c, rank == 1 && &c == &cases[0] ? 6 : 4),
                    {differ, mine, "Rank 1 is running", &c == &cases[0] ? "Tensor shapes" : "Op type"});
      if (!wrong.empty()) return wrong;
    }
    return AllReduce(group);
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Result(rank), "sum 2");
}

// Rank 1's broadcast is refused when the ranks have agreed on it: so it has run one less.
TEST(GroupFaults, ASequenceThatDiffersIsNamedWithChecks) {
  ForkedRanks ranks(2, [](int rank) -> std::string {
    setenv("TORCH_DISTRIBUTED_DEBUG", "detail", 1);
    GROUP_OR_RETURN(Quick(4000));
    if (!group.options().debug) return "no checks";
    std::vector<at::Tensor> tensors = {rank == 1 ? at::full({4}, 1.0).to_sparse() : at::full({4}, 1.0)};
    std::string first;
    try {
      const auto work = group.impl()->group->getBackend(at::kCPU)->broadcast(tensors, {});
    } catch (const std::exception& e) {
      first = ExceptionMessage(e);
    }
    if (first.empty() != (rank == 0)) return absl::StrCat("the broadcast: ", first);
    return AllReduce(group);
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(ranks.Result(rank), AllOf(HasSubstr("FAILED_PRECONDITION: AllReduceSum on rank " + std::to_string(rank)),
                                          HasSubstr("Detected mismatch between collectives on ranks"), HasSubstr("Sequence number")));
  }
}

TEST(GroupFaults, ChecksOnOneRankAloneAreNamed) {
  ForkedRanks ranks(2, [](int rank) -> std::string {
    setenv("TORCH_DISTRIBUTED_DEBUG", rank == 1 ? "DETAIL" : "OFF", 1);
    return std::string(InitProcessGroup(Quick()).status().message());
  });
  EXPECT_THAT(ranks.Result(0), HasSubstr("rank 1 has backend gloo with checks of collectives, rank 0 has backend gloo"));
  EXPECT_THAT(ranks.Result(1), HasSubstr("rank 0 has backend gloo, rank 1 has backend gloo with checks of collectives"));
}

TEST(GroupFaults, ATransferThatNobodyAnswersIsNamed) {
  ForkedRanks ranks(3, [](int rank) -> std::string {
    GROUP_OR_RETURN(Quick());
    if (rank != 0) {
      std::this_thread::sleep_for(std::chrono::seconds(6));
      return "";
    }
    std::vector<at::Tensor> tensors = {at::full({4}, 1.0)};
    try {
      group.impl()->group->getBackend(at::kCPU)->recv(tensors, 2, 7)->wait();
    } catch (const std::exception& e) {
      return ExceptionMessage(e);
    }
    return "it came";
  });
  EXPECT_THAT(ranks.Result(0),
              AllOf(HasSubstr("recv of 4 Float from rank 2 with tag 7 on rank 0 of 3 failed"),
                    HasSubstr("rank 2 answers through rank 0's store at 127.0.0.1:"), HasSubstr(": it ended #2 (allreduce of 4 Float)")));
}

TEST(GroupFaults, TheEnvironmentsStallTimeoutHoldsWhereTheProgramNamesNone) {
  ForkedRanks ranks(2, [](int rank) -> std::string {
    setenv("DDPOPT_STALL_TIMEOUT", "1.5", 1);
    InitOptions options;
    options.timeout = std::chrono::seconds(30);
    GROUP_OR_RETURN(options);
    if (rank == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(6));
      return absl::StrCat(group.options().stall_timeout.count());
    }
    return AllReduce(group, 77);
  });
  EXPECT_THAT(ranks.Result(0), AllOf(HasSubstr("has not ended within 1.5 s"), HasSubstr("rank 1 has not come")));
  EXPECT_EQ(ranks.Result(1), "1500");
}

TEST(GroupFaults, WorldSizesThatDifferAreNamedAtOnce) {
  for (const int other : {2, 4}) {
    const auto begin = Clock::now();
    ForkedRanks ranks(
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
    ForkedRanks ranks(2, [&](int rank) -> std::string {
      GROUP_OR_RETURN(Quick(killed ? 20'000 : 1000));
      if (rank == 1) {
        ForkedRanks::Ready();
        std::this_thread::sleep_for(std::chrono::seconds(20));
      }
      std::vector<at::Tensor> tensors = {at::full({1000}, 1.0)};
      const auto future = group.impl()->group->allreduce(tensors)->getFuture();
      ForkedRanks::Ready();
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
    ForkedRanks ranks(2, [&](int rank) -> std::string {
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
  ForkedRanks ranks(2, [](int rank) -> std::string {
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

// Without checks of each collective. gloo may notice, by ending the process, or not; then rank 0 does.
TEST(GroupFaults, CollectivesThatDifferAreNamedAndWriteNothingBeyond) {
  struct Case {
    const char *name, *usual, *odd;
    std::function<absl::Status(const ProcessGroup&, bool odd, at::Tensor memory)> run;
  };
  const auto sum_of = [](int64_t usual, int64_t odd) {
    return [=](const ProcessGroup& group, bool is_odd, const at::Tensor& memory) {
      at::Tensor part = memory.narrow(0, 0, is_odd ? odd : usual);
      const absl::Status status = group.AllReduceSum(part);
      const bool beyond = memory.narrow(0, part.numel(), memory.numel() - part.numel()).eq(7.0).all().item<bool>();
      return beyond ? status : absl::InternalError("MEMORY WAS WRITTEN");
    };
  };
  const std::vector<Case> cases = {
      {"a larger sum", "allreduce of 4 Float", "allreduce of 5 Float", sum_of(4, 5)},
      {"a smaller sum", "allreduce of 1000 Float", "allreduce of 4 Float", sum_of(1000, 4)},
      {"large sums", "allreduce of 100000 Float", "allreduce of 300000 Float", sum_of(100'000, 300'000)},
      {"numbers of another kind", "allreduce of 4 Float", "allreduce of 4 Int",
       [](const ProcessGroup& group, bool is_odd, const at::Tensor&) {
         at::Tensor part = at::full({4}, 1, at::TensorOptions(is_odd ? at::kInt : at::kFloat));
         return group.AllReduceSum(part);
       }},
      {"another operation", "allreduce of 4 Float", "broadcast of 4 Float",
       [](const ProcessGroup& group, bool is_odd, const at::Tensor&) {
         at::Tensor part = at::full({4}, 1.0);
         return is_odd ? group.Broadcast(part, 1) : group.AllReduceSum(part);
       }},
  };
  for (const Case& c : cases) {
    const std::string errors = absl::StrCat(::testing::TempDir(), "/group_faults.", getpid(), ".");
    ForkedRanks ranks(3, [&](int rank) -> std::string {
      if (dup2(open(absl::StrCat(errors, rank).c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600), STDERR_FILENO) < 0) return "no file";
      GROUP_OR_RETURN(Quick());
      absl::Status status = c.run(group, rank == 1, at::full({600'000}, 7.0));
      // Histories are compared twice a second or more seldom.
      for (int i = 0; i < 2000 && status.ok(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
        at::Tensor tensor = at::full({4}, 1.0);
        status = group.AllReduceSum(tensor);
      }
      return status.ToString();
    });
    int named = 0;
    for (int rank = 0; rank < 3; ++rank) {
      std::string said = ranks.Result(rank);
      const std::string path = absl::StrCat(errors, rank);
      std::ifstream file(path);
      if (said == "(ended with signal 6)") said.append(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      std::remove(path.c_str());
      const auto names_both = AllOf(HasSubstr("#3"), HasSubstr(c.usual), HasSubstr(c.odd), HasSubstr("rank 1"));
      // Where gloo has ended rank 0, the others know no more.
      EXPECT_THAT(said, AllOf(AnyOf(names_both, HasSubstr("rank 0's store"), HasSubstr("rank 0 doesn't answer")), Not(HasSubstr("MEMORY"))))
          << c.name << " on rank " << rank;
      named += ::testing::Value(said, names_both);
    }
    EXPECT_GT(named, 0) << c.name;
  }
}

TEST(GroupFaults, NothingRunsAfterShutdown) {
  ForkedRanks ranks(2, [](int rank) -> std::string {
    GROUP_OR_RETURN(Quick(15'000));
    if (rank == 1) {
      std::vector<at::Tensor> tensors = {at::full({4}, 1.0)};
      const auto outstanding = group.impl()->group->allreduce(tensors)->getFuture();
      const ProcessGroup other_handle = group;
      other_handle.Shutdown();
      other_handle.Shutdown();
      outstanding->wait();
      std::string text = absl::StrCat(outstanding->tryRetrieveErrorMessage(), "|", AllReduce(group), "|", group.Barrier().message(), "|",
                                      group.AllGatherText("texts", "x").status().message(), "|");
      try {
        group.impl()->group->allreduce(tensors);
      } catch (const std::exception& e) {
        absl::StrAppend(&text, ExceptionMessage(e));
      }
      return text;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    at::Tensor two = at::full({2}, 1.0);
    return std::string(group.Broadcast(two, 1).message());
  });
  EXPECT_THAT(ranks.Result(1),
              AllOf(HasSubstr("taken down while it ran"), HasSubstr("AllReduceSum on rank 1 of 2: the process group has been shut down"),
                    HasSubstr("Barrier on rank 1 of 2: the process group has been shut down"),
                    HasSubstr("exchanging texts on rank 1 of 2: the process group has been shut down"),
                    HasSubstr("|allreduce on rank 1 of 2: the process group has been shut down")));
  EXPECT_THAT(ranks.Result(0), AnyOf(HasSubstr("rank 1 has taken its process group down"), HasSubstr("rank 1 doesn't answer")));
}

// c10d complains, with a backtrace, of a store that has gone before those who ask it.
TEST(GroupFaults, RanksThatLeaveOneAfterTheOtherAreSilent) {
  const std::string errors = absl::StrCat(::testing::TempDir(), "/group_faults_silent.", getpid());
  for (int last = 0; last < 3; ++last) {
    ForkedRanks ranks(3, [&](int rank) -> std::string {
      if (dup2(open(errors.c_str(), O_CREAT | O_APPEND | O_WRONLY, 0600), STDERR_FILENO) < 0) return "no file";
      GROUP_OR_RETURN(Quick(0));
      const std::string text = AllReduce(group);
      if (rank == last) std::this_thread::sleep_for(std::chrono::milliseconds(700));
      if (rank == 1) group.Shutdown();
      return text;
    });
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.Result(rank), "sum 3");
  }
  std::ifstream file(errors);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()), "");
  std::remove(errors.c_str());
}

// Else the others end first, and the launcher ends this one before it has said what was wrong.
TEST(GroupFaults, ARankThatLeavesForAReasonOfItsOwnIsNotHeldUpByTheOthers) {
  for (const bool thrown : {false, true}) {
    ForkedRanks ranks(3, [&](int rank) -> std::string {
      Clock::time_point begin;
      try {
        GROUP_OR_RETURN(Quick(15'000));
        if (rank > 0) {
          // One that is left alone fails, and stays.
          std::string text = thrown ? "stayed" : AllReduce(group);
          std::this_thread::sleep_for(std::chrono::seconds(4));
          return text;
        }
        begin = Clock::now();
        if (thrown) throw std::runtime_error("a reason");
      } catch (const std::runtime_error&) {
      }
      // (The store would be kept for two seconds.)
      return Clock::now() - begin < std::chrono::milliseconds(1900) ? "at once" : "late";
    });
    EXPECT_EQ(ranks.Result(0), "at once") << thrown;
    for (const int rank : {1, 2}) EXPECT_THAT(ranks.Result(rank), HasSubstr(thrown ? "stayed" : "failed"));
  }
}

TEST(GroupFaults, ExitWithACollectiveOutstanding) {
  ForkedRanks ranks(2, [](int rank) -> std::string {
    GROUP_OR_RETURN(Quick(15'000));
    if (rank == 1) return AllReduce(group, 1000);
    static const ProcessGroup kept = group;  // goes with the process
    std::vector<at::Tensor> tensors = {at::full({1000}, 1.0)};
    static const auto work = group.impl()->group->allreduce(tensors);
    std::exit(3);
  });
  EXPECT_EQ(ranks.Result(0), "(ended with status 3)");
  EXPECT_THAT(ranks.Result(1), AnyOf(HasSubstr("rank 0"), HasSubstr("sum 2")));
}

TEST(GroupFaults, TwoGroupsInOneProcessGoInAnyOrder) {
  const std::string second = std::to_string(testing::FreePort());
  ForkedRanks ranks(2, [&](int) -> std::string {
    const std::string first = std::getenv("MASTER_PORT");
    for (const bool first_goes_first : {true, false}) {
      setenv("MASTER_PORT", first.c_str(), 1);
      absl::StatusOr<ProcessGroup> a = InitProcessGroup(Quick(0));
      setenv("MASTER_PORT", second.c_str(), 1);
      absl::StatusOr<ProcessGroup> b = InitProcessGroup(Quick(0));
      if (!a.ok() || !b.ok()) return absl::StrCat(a.status().ToString(), " ", b.status().ToString());
      if (AllReduce(*a) != "sum 2" || AllReduce(*b) != "sum 2") return "no sum of two groups";
      (first_goes_first ? a : b) = absl::CancelledError("gone");
      if (AllReduce(first_goes_first ? *b : *a) != "sum 2") return "no sum after one has gone";
    }
    return "fine";
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Result(rank), "fine");
}

// Launchers of several machines count their own restarts.
TEST(GroupFaults, RanksWhoseLaunchersCountOtherwiseMeet) {
  for (const int rank0_is_at : {0, 1, 5}) {
    ForkedRanks ranks(3, [&](int rank) -> std::string {
      setenv("TORCHELASTIC_RESTART_COUNT", std::to_string(rank == 0 ? rank0_is_at : rank).c_str(), 1);
      GROUP_OR_RETURN(Quick(0));
      return AllReduce(group);
    });
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.Result(rank), "sum 3");
  }
}

// A rank that was started again waits until rank 0's earlier start, in which its predecessor took part, has gone.
TEST(GroupFaults, ARankOfALaterStartWaitsForItsGroup) {
  ForkedRanks ranks(2, [](int rank) -> std::string {
    InitOptions options = Quick(0);
    if (rank == 0) {
      {
        GROUP_OR_RETURN(options);
        std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      }
      setenv("TORCHELASTIC_RESTART_COUNT", "1", 1);
      GROUP_OR_RETURN(options);
      return AllReduce(group);
    }
    { GROUP_OR_RETURN(options); }
    setenv("TORCHELASTIC_RESTART_COUNT", "4", 1);
    GROUP_OR_RETURN(options);
    return AllReduce(group);
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Result(rank), "sum 2");
}

TEST(GroupFaults, TheMasterUnderAnyOfItsNames) {
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  for (const std::string& name : {std::string("LocalHost"), std::string(host), std::string("127.0.0.2"), std::string("0.0.0.0")}) {
    ForkedRanks ranks(2, [&](int) -> std::string {
      setenv("MASTER_ADDR", name.c_str(), 1);
      GROUP_OR_RETURN(Quick(0));
      return AllReduce(group);
    });
    const std::string first = ranks.Result(0);
    // A machine need not know its own name; then that is said.
    if (name == host && first.rfind("setup: ", 0) == 0) {
      EXPECT_THAT(first, HasSubstr("MASTER_ADDR=" + name));
      continue;
    }
    EXPECT_EQ(first, "sum 2") << name;
    EXPECT_EQ(ranks.Result(1), "sum 2") << name;
  }
}

TEST(GroupFaults, TheLongestTimeIsNoTimeInThePast) {
  ForkedRanks ranks(2, [](int rank) -> std::string {
    InitOptions options;
    options.timeout = rank == 0 ? std::chrono::milliseconds::max() : std::chrono::milliseconds(std::chrono::hours(1));
    GROUP_OR_RETURN(options);
    return AllReduce(group);
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Result(rank), "sum 2");
}

TEST(GroupFaults, AGroupCanBeMadeAgainOnTheSamePort) {
  ForkedRanks ranks(2, [](int) -> std::string {
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
