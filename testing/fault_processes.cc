#include "testing/fault_processes.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/strip.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"

extern char** environ;

namespace ddpopt::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

void Ip(const std::string& arguments) {
  int status = 0;
  const std::string output = Shell("ip " + arguments, &status);
  if (status != 0) std::fprintf(stderr, "ip %s: %s\n", arguments.c_str(), output.c_str());
}

}  // namespace

std::string Shell(const std::string& command, int* status) {
  std::string output;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::array<char, 4096> buffer;
  for (std::size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) output.append(buffer.data(), got);
  *status = pclose(pipe);
  return std::string(absl::StripTrailingAsciiWhitespace(output));
}

MarkedProgram::MarkedProgram(const std::vector<std::string>& argv, const std::string& output, const std::string& marker) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const std::string mark = absl::StrCat("DDPOPT_FAULT_RUN=", marker);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(const_cast<char*>(mark.c_str()));
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  if (posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environment.data()) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
}

MarkedProgram::~MarkedProgram() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void MarkedProgram::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

bool MarkedProgram::Wait(Clock::time_point deadline, int* status) {
  if (pid_ < 0) {
    *status = 127;
    return true;
  }
  while (true) {
    int raw = 0;
    if (waitpid(pid_, &raw, WNOHANG) == pid_) {
      pid_ = 0;
      *status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 128 + WTERMSIG(raw);
      return true;
    }
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

int EndMarked(const std::string& marker) {
  const std::string mark = absl::StrCat("DDPOPT_FAULT_RUN=", marker);
  const auto find = [&] {
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      int pid = 0;
      if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
      const absl::StatusOr<std::string> environment = ReadFile(entry.path().string() + "/environ");
      if (!environment.ok()) continue;
      const std::vector<std::string> variables = absl::StrSplit(*environment, '\0');
      if (std::find(variables.begin(), variables.end(), mark) != variables.end()) found.push_back(pid);
    }
    return found;
  };
  std::vector<pid_t> left = find();
  for (int i = 0; i < 20 && !left.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    left = find();
  }
  for (const pid_t pid : left) kill(pid, SIGKILL);
  return static_cast<int>(left.size());
}

int ListenSomewhere(int* fd) {
  *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t length = sizeof(address);
  if (bind(*fd, reinterpret_cast<sockaddr*>(&address), length) != 0 || listen(*fd, 1) != 0 ||
      getsockname(*fd, reinterpret_cast<sockaddr*>(&address), &length) != 0)
    return -1;
  return ntohs(address.sin_port);
}

TwoMachines::TwoMachines(const std::string& id) : a_(absl::StrCat("ddpopt-a-", id)), b_(absl::StrCat("ddpopt-b-", id)) {
  Ip(absl::StrCat("netns add ", a_));
  Ip(absl::StrCat("netns add ", b_));
  Ip(absl::StrCat("-n ", a_, " link add link0 type veth peer name link0 netns ", b_));
  for (const auto& [name, address] : {std::pair(a_, "10.77.0.1/24"), std::pair(b_, "10.77.0.2/24")}) {
    Ip(absl::StrCat("-n ", name, " addr add ", address, " dev link0"));
    Ip(absl::StrCat("-n ", name, " link set lo up"));
    Ip(absl::StrCat("-n ", name, " link set link0 up"));
  }
}

TwoMachines::~TwoMachines() {
  Ip(absl::StrCat("netns del ", a_));
  Ip(absl::StrCat("netns del ", b_));
}

void TwoMachines::SetLink(bool up) const { Ip(absl::StrCat("-n ", b_, " link set link0 ", up ? "up" : "down")); }

}  // namespace ddpopt::testing
