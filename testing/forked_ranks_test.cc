#include "testing/forked_ranks.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>

#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

extern "C" void __tsan_on_report(const void* report);

namespace ddpopt::testing {
namespace {

// From here on the process's end is a death by SIGSYS, as a sanitizer makes another status of it.
bool EndBadly() {
  sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                          BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
                          BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0;
}

TEST(ForkedRanks, AResultIsWhatTheBodySaidAndHowTheProcessEnded) {
  ForkedRanks ranks(5, [](int rank) -> std::string {
    if (rank == 1) throw std::runtime_error("no");
    if (rank == 2) _exit(7);
    if (rank == 3) raise(SIGKILL);
    if (rank == 4 && !EndBadly()) return "the process can't be filtered";
    return "said";
  });
  EXPECT_EQ(ranks.Result(0), "said");
  EXPECT_EQ(ranks.Result(1), "thrown: no");
  EXPECT_EQ(ranks.Result(2), "(ended with status 7)");
  EXPECT_EQ(ranks.Result(3), "(ended with signal 9)");
  EXPECT_EQ(ranks.Result(4), "said (ended with signal 31)");
}

TEST(ForkedRanks, WhatTheThreadSanitizerFindsInARankFailsTheTest) {
  auto ranks = std::make_unique<ForkedRanks>(2, [](int rank) -> std::string {
    // More of them than a pipe holds.
    for (int i = 0; rank == 1 && i < 100'000; ++i) __tsan_on_report(nullptr);
    ForkedRanks::Ready();
    if (rank == 1) pause();
    return "well";
  });
  ranks->AwaitReady();
  EXPECT_EQ(ranks->Result(0), "well");
  EXPECT_NONFATAL_FAILURE(ranks.reset(), "the thread sanitizer has found something in rank 1");
}

}  // namespace
}  // namespace ddpopt::testing
