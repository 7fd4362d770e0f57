#ifndef DDPOPT_TESTING_FAULT_PROCESSES_H_
#define DDPOPT_TESTING_FAULT_PROCESSES_H_

// Processes and machines of the fault campaign.

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace ddpopt::testing {

// What a command of the shell writes, and its status as waitpid gives it.
std::string Shell(const std::string& command, int* status);

// A program and what it writes. Its descendants have a mark in their environment. Killed when this goes.
class MarkedProgram {
 public:
  MarkedProgram(const std::vector<std::string>& argv, const std::string& output, const std::string& marker);
  ~MarkedProgram();
  MarkedProgram(const MarkedProgram&) = delete;
  MarkedProgram& operator=(const MarkedProgram&) = delete;

  void Signal(int signal) const;
  // False if it has not ended by then. The status is 128 + signal if it died of one, 127 if it could not be started.
  bool Wait(std::chrono::steady_clock::time_point deadline, int* status);

 private:
  pid_t pid_ = 0;
};

// Processes that have this mark, a second after; they are ended.
int EndMarked(const std::string& marker);

// A socket that listens at a free port, which is returned; -1 if there is none.
int ListenSomewhere(int* fd);

// Two network namespaces with a link between them: 10.77.0.1 and 10.77.0.2.
class TwoMachines {
 public:
  explicit TwoMachines(const std::string& id);
  ~TwoMachines();
  TwoMachines(const TwoMachines&) = delete;
  TwoMachines& operator=(const TwoMachines&) = delete;
  void SetLink(bool up) const;
  const std::string& name(int node) const { return node == 0 ? a_ : b_; }

 private:
  std::string a_, b_;
};

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_FAULT_PROCESSES_H_
