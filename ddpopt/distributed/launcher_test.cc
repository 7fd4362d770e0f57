#include "ddpopt/distributed/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/environment.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::ddpopt::testing::StatusIs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

std::string TempPath(const std::string& name) { return absl::StrCat(::testing::TempDir(), "/", getpid(), "_", name); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct Outcome {
  absl::StatusOr<LaunchResult> result = absl::UnknownError("not run");
  std::string out, err;
  std::vector<std::string> lines() const { return absl::StrSplit(out, '\n', absl::SkipEmpty()); }
};

Outcome LaunchArguments(const std::vector<std::string>& argv, LaunchOptions options) {
  const std::string out = TempPath("out"), err = TempPath("err");
  options.stdout_fd = open(out.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  options.stderr_fd = open(err.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  Outcome outcome;
  outcome.result = Launch(argv, options);
  close(options.stdout_fd);
  close(options.stderr_fd);
  outcome.out = ReadFile(out);
  outcome.err = ReadFile(err);
  return outcome;
}

Outcome LaunchScript(int ranks, const std::string& script, LaunchOptions options = {}) {
  options.nproc_per_node = ranks;
  return LaunchArguments({"/bin/sh", "-c", script}, std::move(options));
}

// Gone, or a zombie that someone else has to reap.
bool Running(pid_t pid) {
  const std::string stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && stat.substr(name_end + 2, 1) != "Z";
}

bool EventuallyGone(pid_t pid) {
  for (int i = 0; i < 200 && Running(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return !Running(pid);
}

std::vector<pid_t> ReadPids(const std::string& path, size_t count) {
  std::vector<pid_t> pids;
  for (int i = 0; i < 500 && pids.size() < count; ++i) {
    pids.clear();
    for (const std::string& line : std::vector<std::string>(absl::StrSplit(ReadFile(path), '\n', absl::SkipEmpty()))) {
      int pid = 0;
      if (absl::SimpleAtoi(line, &pid)) pids.push_back(pid);
    }
    if (pids.size() < count) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return pids;
}

TEST(Launch, RefusesBadOptions) {
  EXPECT_THAT(LaunchScript(0, "true").result,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nproc_per_node must be between 1 and 1024, got 0")));
  EXPECT_THAT(LaunchScript(-3, "true").result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got -3")));
  LaunchOptions options;
  options.timeout_seconds = -1;
  EXPECT_THAT(LaunchScript(1, "true", options).result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the timeout must be")));
  EXPECT_THAT(Launch({}, {}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no program")));
  EXPECT_THAT(Launch({"no_such_program_anywhere"}, {}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no_such_program_anywhere")));
  EXPECT_THAT(Launch({"/"}, {}), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("'/'")));
}

TEST(Launch, GivesTorchrunsEnvironmentAndPrefixesOutput) {
  unsetenv("OMP_NUM_THREADS");
  LaunchOptions options;
  options.environment = {{"EXTRA", "yes"}};
  options.rank_environment = [](int rank) { return EnvironmentList{{"MINE", absl::StrCat("r", rank)}}; };
  const Outcome outcome =
      LaunchScript(2, "echo $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $OMP_NUM_THREADS $EXTRA $MINE; echo oops >&2; printf end", options);
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, 0);
  EXPECT_EQ(outcome.result->failed_rank, -1);
  EXPECT_THAT(outcome.lines(), UnorderedElementsAre("[rank 0] 0 0 2 127.0.0.1 1 yes r0", "[rank 1] 1 1 2 127.0.0.1 1 yes r1",
                                                    "[rank 0] end", "[rank 1] end"));
  EXPECT_THAT(std::vector<std::string>(absl::StrSplit(outcome.err, '\n', absl::SkipEmpty())),
              UnorderedElementsAre("[rank 0] oops", "[rank 1] oops"));
}

TEST(Launch, AllRanksGetOneFreePort) {
  const Outcome outcome = LaunchScript(2, "echo $MASTER_PORT");
  DDPOPT_ASSERT_OK(outcome.result);
  ASSERT_EQ(outcome.lines().size(), 2);
  EXPECT_EQ(outcome.lines()[0].substr(9), outcome.lines()[1].substr(9));
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(outcome.lines()[0].substr(9), &port));
  EXPECT_GT(port, 1023);
}

TEST(Launch, LongOutputArrivesWhole) {
  const Outcome outcome =
      LaunchScript(2, "i=0; while [ $i -lt 3000 ]; do echo line $i of a text that is long enough to fill pipes; i=$((i+1)); done");
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.lines().size(), 6000);
  EXPECT_THAT(outcome.lines(), Contains("[rank 1] line 2999 of a text that is long enough to fill pipes"));
}

TEST(Launch, Rank0PlainKeepsStandardOutputToRank0) {
  LaunchOptions options;
  options.rank0_plain = true;
  const Outcome outcome = LaunchScript(2, "test $RANK = 0 && sleep 0.2; echo from $RANK", options);
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.out, "from 0\n");
  EXPECT_EQ(outcome.err, "[rank 1] from 1\n");
}

TEST(Launch, FirstFailureEndsTheOthersAndIsNamed) {
  const Outcome outcome = LaunchScript(3, "test $RANK = 1 && exit 9; exec sleep 60");
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, 9);
  EXPECT_EQ(outcome.result->failed_rank, 1);
  EXPECT_EQ(outcome.result->reason, "rank 1 exited with status 9");
  EXPECT_TRUE(outcome.result->ranks[0].ended_by_launcher);
  EXPECT_EQ(outcome.result->ranks[0].signal, SIGTERM);
  EXPECT_LT(outcome.result->seconds, 30);
  EXPECT_THAT(outcome.err, HasSubstr("launcher: rank 1 (pid "));
  EXPECT_THAT(outcome.err, HasSubstr(") exited with status 9; ending the other ranks"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("rank 0")));
}

TEST(Launch, DeathBySignalIsNamed) {
  const Outcome outcome = LaunchScript(2, "test $RANK = 1 && kill -SEGV $$; exec sleep 60");
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, 128 + SIGSEGV);
  EXPECT_EQ(outcome.result->failed_rank, 1);
  EXPECT_THAT(outcome.err, HasSubstr("was killed by signal 11 (Segmentation fault)"));
}

TEST(Launch, AStoppedRankIsNamedAndEnded) {
  const Outcome outcome = LaunchScript(2, "test $RANK = 1 && kill -STOP $$; exec sleep 60");
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, 128 + SIGSTOP);
  EXPECT_EQ(outcome.result->failed_rank, 1);
  EXPECT_TRUE(outcome.result->ranks[1].stopped);
  EXPECT_LT(outcome.result->seconds, 30);
  EXPECT_THAT(outcome.err, HasSubstr("was stopped by signal 19"));
}

TEST(Launch, KillsWhatIgnoresSigterm) {
  LaunchOptions options;
  options.grace_seconds = 0.2;
  const Outcome outcome = LaunchScript(2, "test $RANK = 1 && { sleep 0.3; exit 4; }; trap '' TERM; while :; do sleep 0.05; done", options);
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, 4);
  EXPECT_EQ(outcome.result->ranks[0].signal, SIGKILL);
}

TEST(Launch, LingerLetsOthersFinish) {
  LaunchOptions options;
  options.linger_seconds = 20;
  const Outcome outcome = LaunchScript(2, "test $RANK = 1 && exit 4; sleep 0.3; echo done", options);
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, 4);
  EXPECT_EQ(outcome.result->ranks[0].exit_status, 0);
  EXPECT_THAT(outcome.lines(), ElementsAre("[rank 0] done"));
}

TEST(Launch, TimeLimit) {
  LaunchOptions options;
  options.timeout_seconds = 0.3;
  const Outcome outcome = LaunchScript(2, "test $RANK = 0 || exec sleep 60", options);
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, kTimeoutStatus);
  EXPECT_EQ(outcome.result->failed_rank, -1);
  EXPECT_LT(outcome.result->seconds, 30);
  EXPECT_THAT(outcome.err, HasSubstr("the time limit of 0.3 s is over; still running: rank 1"));
}

TEST(Launch, LeavesNoGrandchildren) {
  const std::string pids = TempPath("grandchildren");
  std::remove(pids.c_str());
  const Outcome outcome = LaunchScript(2, absl::StrCat("sleep 60 >/dev/null 2>&1 & echo $! >>", pids));
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, 0);
  const std::vector<pid_t> grandchildren = ReadPids(pids, 2);
  ASSERT_EQ(grandchildren.size(), 2);
  for (pid_t pid : grandchildren) EXPECT_TRUE(EventuallyGone(pid));
}

// Launches in a child process, so that signals can be sent to the launcher. Each rank is a shell with a child of its own.
pid_t ForkLauncher(const std::string& pids, int ignored = 0) {
  std::remove(pids.c_str());
  const pid_t launcher = fork();
  if (launcher == 0) {
    if (ignored != 0) signal(ignored, SIG_IGN);
    LaunchOptions options;
    options.nproc_per_node = 2;
    options.stderr_fd = open("/dev/null", O_WRONLY);
    const auto result = Launch({"/bin/sh", "-c", absl::StrCat("echo $$ >>", pids, "; sleep 60 & echo $! >>", pids, "; wait")}, options);
    _exit(result.ok() ? result->exit_status : 1);
  }
  return launcher;
}

TEST(Launch, SignalsToTheLauncherLeaveNothingBehind) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string path = TempPath(absl::StrCat("signal", signal));
    const pid_t launcher = ForkLauncher(path);
    const std::vector<pid_t> pids = ReadPids(path, 4);
    ASSERT_EQ(pids.size(), 4);
    kill(launcher, signal);
    int status = 0;
    ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + signal);
    for (pid_t pid : pids) {
      EXPECT_TRUE(EventuallyGone(pid)) << signal;
      EXPECT_TRUE(kill(-pid, 0) != 0 && errno == ESRCH) << "a process group is left after signal " << signal;
    }
  }
}

// As nohup and scripts' background jobs have it.
TEST(Launch, OfIgnoredSignalsOnlyHangupStaysIgnored) {
  for (const int signal : {SIGINT, SIGHUP}) {
    const std::string path = TempPath(absl::StrCat("ignored", signal));
    const pid_t launcher = ForkLauncher(path, signal);
    ASSERT_EQ(ReadPids(path, 4).size(), 4);
    kill(launcher, signal);
    int status = 0;
    if (signal == SIGHUP) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      EXPECT_EQ(waitpid(launcher, &status, WNOHANG), 0);
      kill(launcher, SIGTERM);
    }
    ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 128 + (signal == SIGHUP ? SIGTERM : signal));
  }
}

TEST(Launch, RanksDieWithAKilledLauncher) {
  const std::string path = TempPath("killed");
  const pid_t launcher = ForkLauncher(path);
  const std::vector<pid_t> pids = ReadPids(path, 4);
  ASSERT_EQ(pids.size(), 4);
  kill(launcher, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(launcher, &status, 0), launcher);
  // The shells, by their parent-death signal. Their own children are nobody's to end; the test does it.
  int gone = 0;
  for (pid_t pid : pids) gone += EventuallyGone(pid) ? 1 : 0;
  EXPECT_EQ(gone, 2);
  for (pid_t pid : pids) {
    if (Running(pid)) kill(pid, SIGKILL);
  }
}

TEST(Launch, RestoresSignalHandlers) {
  struct sigaction before = {}, after = {};
  sigaction(SIGINT, nullptr, &before);
  DDPOPT_ASSERT_OK(LaunchScript(1, "true").result);
  sigaction(SIGINT, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
}

TEST(Launch, StartsAllRanksAgainAfterAFailure) {
  LaunchOptions options;
  options.max_restarts = 3;
  const std::string script = "echo $RANK start $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; ";
  Outcome outcome =
      LaunchScript(2, script + "test $TORCHELASTIC_RESTART_COUNT = 2 && exit 0; test $RANK = 1 && exit 3; exec sleep 60", options);
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, 0);
  EXPECT_EQ(outcome.result->restarts, 2);
  EXPECT_EQ(outcome.result->reason, "");
  EXPECT_THAT(outcome.lines(), Contains("[rank 0] 0 start 2 of 3"));
  EXPECT_THAT(outcome.err, HasSubstr("launcher: starting all ranks again (restart 1 of 3)"));
  options.max_restarts = 1;
  outcome = LaunchScript(2, script + "exit 7", options);
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, 7);
  EXPECT_EQ(outcome.result->restarts, 1);
  // The time limit is of the whole run.
  options.max_restarts = 1000;
  options.timeout_seconds = 0.5;
  outcome = LaunchScript(1, "sleep 0.1; exit 5", options);
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_EQ(outcome.result->exit_status, kTimeoutStatus);
  EXPECT_LT(outcome.result->seconds, 30);
}

TEST(Launch, RanksOfSeveralNodes) {
  LaunchOptions options;
  options.nnodes = 3;
  options.node_rank = 1;
  options.master_addr = "10.1.2.3";
  options.master_port = 29555;
  // Rank 3 fails only when rank 2 has said what it has to say, since its failure ends rank 2.
  const std::string said = absl::StrCat(::testing::TempDir(), "/several_nodes.", getpid());
  const Outcome outcome = LaunchScript(2,
                                       absl::StrCat("echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE "
                                                    "$MASTER_ADDR $MASTER_PORT; if test $RANK = 2; then : > ",
                                                    said, "; else until test -e ", said, "; do sleep 0.02; done; exit 4; fi"),
                                       options);
  std::remove(said.c_str());
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_THAT(outcome.lines(), UnorderedElementsAre("[rank 2] 2 0 6 2 1 3 10.1.2.3 29555", "[rank 3] 3 1 6 2 1 3 10.1.2.3 29555"));
  EXPECT_EQ(outcome.result->failed_rank, 3);
  EXPECT_EQ(outcome.result->reason, "rank 3 exited with status 4");
}

TEST(Launch, RefusesNodesThatCannotBe) {
  LaunchOptions options;
  options.nnodes = 2;
  EXPECT_THAT(LaunchScript(1, "true", options).result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 nodes need master_addr")));
  options.master_addr = "localhost";
  EXPECT_THAT(LaunchScript(1, "true", options).result, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 nodes need master_port")));
  options.master_port = 70'000;
  EXPECT_THAT(LaunchScript(1, "true", options).result,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("between 1 and 65535, got 70000")));
  options.master_port = 29555;
  options.node_rank = 2;
  EXPECT_THAT(LaunchScript(1, "true", options).result,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("between 0 and 1 (nnodes is 2), got 2")));
  options = {};
  options.max_restarts = -1;
  EXPECT_THAT(LaunchScript(1, "true", options).result,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_restarts must be 0 or more")));
}

TEST(Launch, APortInUseIsNamed) {
  int fd = -1;
  LaunchOptions options;
  options.master_port = ::ddpopt::testing::FreePort(&fd);
  EXPECT_THAT(
      LaunchScript(1, "true", options).result,
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr(absl::StrCat("master_port ", options.master_port, " is in use on this machine"))));
  close(fd);
  const Outcome outcome = LaunchScript(1, "echo $MASTER_PORT", options);
  DDPOPT_ASSERT_OK(outcome.result);
  EXPECT_THAT(outcome.lines(), ElementsAre(absl::StrCat("[rank 0] ", options.master_port)));
}

// A pipe that is read when `Read` is called, and not before.
class LazyReader {
 public:
  LazyReader() {
    if (pipe2(ends_, O_CLOEXEC) != 0) std::abort();
  }
  ~LazyReader() {
    if (thread_.joinable()) thread_.join();
    close(ends_[0]);
  }
  int fd() const { return ends_[1]; }
  // When it takes no more; false if it never gets full.
  bool AwaitFull() const {
    const int own = open(absl::StrCat("/proc/self/fd/", ends_[1]).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    for (int i = 0; i < 2000; ++i) {
      pollfd ready = {own, POLLOUT, 0};
      if (poll(&ready, 1, 0) == 0) return close(own) == 0;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    close(own);
    return false;
  }
  void Read() {
    thread_ = std::thread([this] {
      char buffer[65536];
      for (ssize_t got; (got = read(ends_[0], buffer, sizeof(buffer))) > 0;) bytes_ += got;
    });
  }
  void CloseWriteEnd() { close(ends_[1]); }
  int64_t bytes() {
    thread_.join();
    return bytes_;
  }

 private:
  int ends_[2];
  int64_t bytes_ = 0;
  std::thread thread_;
};

TEST(Launch, AReaderThatStopsReadingDoesNotHideADeadRank) {
  LazyReader reader;
  const std::string err = TempPath("err");
  LaunchOptions options;
  options.nproc_per_node = 2;
  options.stdout_fd = reader.fd();
  options.stderr_fd = open(err.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
  const std::string full = TempPath("full");
  bool named = false;
  std::thread watch([&] {
    if (reader.AwaitFull()) std::ofstream(full) << "yes";
    for (int i = 0; i < 1500 && !named; ++i) {
      named = ReadFile(err).find(") exited with status 3") != std::string::npos;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    reader.Read();
  });
  const auto result =
      Launch({"/bin/sh", "-c", absl::StrCat("test $RANK = 0 && exec yes 12345678901234567890; while ! test -e ", full, "; do sleep 0.05; done; exit 3")}, options);
  watch.join();
  reader.CloseWriteEnd();
  DDPOPT_ASSERT_OK(result);
  EXPECT_TRUE(named);
  EXPECT_EQ(result->exit_status, 3);
  EXPECT_THAT(result->reason, HasSubstr("rank 1 exited with status 3"));
  // What was in the reader's pipe, which was full, and what the launcher had taken in by then: a megabyte at most, and what is in the pipes.
  const int64_t bytes = reader.bytes();
  EXPECT_GT(bytes, 65'536);
  EXPECT_LT(bytes, 8'000'000);
  std::remove(full.c_str());
}

TEST(Launch, AReaderThatStopsReadingHoldsUpNeitherSignalsNorTheTimeLimit) {
  for (const bool signal : {true, false}) {
    for (const bool plain : {true, false}) {
      LazyReader reader;
      LaunchOptions options;
      options.nproc_per_node = 2;
      options.rank0_plain = plain;
      options.stdout_fd = options.stderr_fd = reader.fd();  // one pipe for both
      options.grace_seconds = 0.5;
      if (!signal) options.timeout_seconds = 1;
      bool full = false;
      std::thread watch([&] {
        full = reader.AwaitFull();
        if (signal) kill(getpid(), SIGTERM);
      });
      const auto result = Launch({"/bin/sh", "-c", "exec yes"}, options);
      watch.join();
      EXPECT_TRUE(full);
      reader.Read();
      reader.CloseWriteEnd();
      reader.bytes();
      DDPOPT_ASSERT_OK(result);
      EXPECT_EQ(result->exit_status, signal ? 128 + SIGTERM : kTimeoutStatus);
    }
  }
}

// As with a pager: the program has ended, and its output is read later.
TEST(Launch, WhatIsReadLateIsNotLost) {
  LazyReader reader;
  LaunchOptions options;
  options.stdout_fd = reader.fd();
  std::thread watch([&] {
    reader.AwaitFull();
    std::this_thread::sleep_for(std::chrono::seconds(2));
    reader.Read();
  });
  const auto result = Launch({"/bin/sh", "-c", "seq 100000 | head -c 500000"}, options);
  watch.join();
  reader.CloseWriteEnd();
  DDPOPT_ASSERT_OK(result);
  EXPECT_EQ(result->exit_status, 0);
  EXPECT_GT(reader.bytes(), 500'000);
}

TEST(Launch, AClosedOutputIsNamedOnceWhereBothAreOnePipe) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  LaunchOptions options;
  options.stdout_fd = options.stderr_fd = ends[1];
  const auto result = Launch({"/bin/sh", "-c", "exec yes"}, options);
  close(ends[1]);
  DDPOPT_ASSERT_OK(result);
  EXPECT_EQ(result->exit_status, 128 + SIGPIPE);
  EXPECT_THAT(result->reason, HasSubstr("standard output was closed"));
}

TEST(MaybeLaunchSelf, LaunchesThisProgramAndReturnsItsStatus) {
  const std::string program = "ddpopt/distributed/launch_self_program";
  const auto run = [&](const std::string& arguments) {
    const int status =
        std::system(absl::StrCat("env -u RANK ", program, " ", arguments, " >", TempPath("self"), " 2>", TempPath("self_err")).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  EXPECT_EQ(run("3"), 0);
  EXPECT_EQ(ReadFile(TempPath("self")), "hello from 0 of 3\n");
  EXPECT_THAT(ReadFile(TempPath("self_err")), HasSubstr("[rank 2] hello from 2 of 3\n"));
  EXPECT_EQ(run("2 1 6"), 6);
  EXPECT_EQ(run("0"), 2);
  EXPECT_THAT(ReadFile(TempPath("self_err")), HasSubstr("launcher: nproc_per_node must be between 1 and 1024, got 0"));
}

}  // namespace
}  // namespace ddpopt
