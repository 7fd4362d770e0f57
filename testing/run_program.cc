#include "testing/run_program.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ddpopt::testing {
namespace {

std::string Content(std::FILE* file) {
  std::string text;
  char buffer[4096];
  std::rewind(file);
  for (std::size_t got; (got = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, got);
  std::fclose(file);
  return text;
}

}  // namespace

std::vector<std::string> ProgramResult::lines() const { return absl::StrSplit(out, '\n', absl::SkipEmpty()); }

std::string ProgramResult::last_line() const {
  const std::vector<std::string> all = lines();
  return all.empty() ? "" : all.back();
}

ProgramResult RunProgram(const std::string& command) {
  ProgramResult result;
  std::fflush(nullptr);
  // Files, not pipes: a process that is left behind may hold a pipe open.
  std::FILE* const out = std::tmpfile();
  std::FILE* const err = std::tmpfile();
  if (out == nullptr || err == nullptr) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    dup2(fileno(out), STDOUT_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    execl("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = Content(out);
  result.err = Content(err);
  return result;
}

}  // namespace ddpopt::testing
