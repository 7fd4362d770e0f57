#include "base/progress.h"

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using std::chrono::milliseconds;

// What a child writes to its standard error, a terminal or a pipe.
std::string Written(bool terminal, const char* asked, const std::function<void()>& work) {
  int ends[2];
  if (terminal ? openpty(&ends[0], &ends[1], nullptr, nullptr, nullptr) != 0 : pipe(ends) != 0) return "no terminal";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    unsetenv("DDPOPT_PROGRESS");
    if (asked != nullptr) setenv("DDPOPT_PROGRESS", asked, 1);
    work();
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[1024];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<std::size_t>(got));
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return text;
}

void Work(bool on) {
  const ProgressScope progress(on, "carrying stones", milliseconds(1));
  const ProgressScope within(true, "lifting one", milliseconds(1));
  std::this_thread::sleep_for(milliseconds(300));
}

TEST(ProgressScope, OnATerminalALineThatGoes) {
  EXPECT_THAT(Written(true, nullptr, [] { Work(true); }),
              AllOf(HasSubstr("carrying stones, 0 s ..."), ::testing::EndsWith("\r\033[K"), Not(HasSubstr("\n"))));
}

TEST(ProgressScope, WithoutATerminalNothingUnlessAsked) {
  EXPECT_EQ(Written(false, nullptr, [] { Work(true); }), "");
  EXPECT_EQ(Written(true, "0", [] { Work(true); }), "");
  EXPECT_THAT(Written(false, "1", [] { Work(true); }), AllOf(HasSubstr("carrying stones, 0 s ...\n"), Not(HasSubstr("lifting"))));
}

TEST(ProgressScope, QuickWorkAndOtherRanksAreQuiet) {
  EXPECT_EQ(Written(true, nullptr, [] { const ProgressScope progress(true, "blinking", milliseconds(10'000)); }), "");
  EXPECT_THAT(Written(true, nullptr, [] { Work(false); }), Not(HasSubstr("carrying")));
}

TEST(ProgressScope, AScopeAfterAnotherTellsAgain) {
  EXPECT_THAT(Written(false, "1",
                      [] {
                        for (const char* what : {"first", "second"}) {
                          const ProgressScope progress(true, what, milliseconds(1));
                          std::this_thread::sleep_for(milliseconds(200));
                        }
                      }),
              AllOf(HasSubstr("first, 0 s"), HasSubstr("second, 0 s")));
}

}  // namespace
}  // namespace ddpopt
