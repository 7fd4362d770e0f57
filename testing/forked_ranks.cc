#include "testing/forked_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "ATen/Parallel.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "gtest/gtest.h"
#include "testing/environment.h"

namespace ddpopt::testing {
namespace {

int ready_fd = -1, findings_fd = -1;  // of this rank

}  // namespace
}  // namespace ddpopt::testing

// The thread sanitizer calls this for each of its findings. A rank that is killed has no exit status that would tell of them.
extern "C" void __tsan_on_report(const void* /*report*/) {
  [[maybe_unused]] const ssize_t written = write(ddpopt::testing::findings_fd, "f", 1);
}

namespace ddpopt::testing {

ForkedRanks::ForkedRanks(int count, const Body& body, const std::function<std::string(int)>& world_size) {
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(FreePort()).c_str(), 1);
  std::fflush(nullptr);
  for (int rank = 0; rank < count; ++rank) {
    int result[2], ready[2], findings[2];
    if (pipe(result) != 0 || pipe(ready) != 0 || pipe(findings) != 0) std::abort();
    const pid_t pid = fork();
    if (pid == 0) {
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", (world_size ? world_size(rank) : std::to_string(count)).c_str(), 1);
      at::set_num_threads(1);
      ready_fd = ready[1];
      findings_fd = findings[1];
      close(ready[0]);
      close(findings[0]);
      fcntl(findings[1], F_SETFL, O_NONBLOCK);  // one is enough
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
    close(findings[1]);
    fcntl(findings[0], F_SETFL, O_NONBLOCK);
    findings_.push_back(findings[0]);
    pids_.push_back(pid);
    results_.push_back(result[0]);
    readies_.push_back(ready[0]);
  }
}

ForkedRanks::~ForkedRanks() {
  for (const pid_t pid : pids_) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  for (std::size_t rank = 0; rank < findings_.size(); ++rank) {
    char byte;
    if (read(findings_[rank], &byte, 1) == 1) ADD_FAILURE() << "the thread sanitizer has found something in rank " << rank;
  }
  for (const auto* fds : {&results_, &readies_, &findings_}) {
    for (const int fd : *fds) close(fd);
  }
}

void ForkedRanks::Ready() {
  if (write(ready_fd, "r", 1) != 1) _exit(1);
}

void ForkedRanks::AwaitReady() {
  for (const int fd : readies_) {
    char byte;
    pollfd wait = {fd, POLLIN, 0};
    ASSERT_GT(poll(&wait, 1, 20'000), 0);
    ASSERT_EQ(read(fd, &byte, 1), 1);
  }
}

void ForkedRanks::Signal(int rank, int signal) { kill(pids_[rank], signal); }

std::string ForkedRanks::Result(int rank, int seconds) {
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
  if (waitid(P_PID, static_cast<id_t>(pids_[rank]), &info, WEXITED | WNOWAIT) == 0 && (text.empty() || info.si_status != 0)) {
    absl::StrAppend(&text, text.empty() ? "" : " ", "(ended with ", info.si_code == CLD_EXITED ? "status " : "signal ", info.si_status, ")");
  }
  return text;
}

}  // namespace ddpopt::testing
