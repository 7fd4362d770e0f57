#ifndef DDPOPT_TESTING_FAULT_KINDS_H_
#define DDPOPT_TESTING_FAULT_KINDS_H_

// What can go wrong in the runs of the fault campaign, where, and what the run's output must then say of it.

#include <functional>
#include <string>
#include <vector>

namespace ddpopt::testing {

// Where a fault happens in fault_program's run; see its usage.
enum FaultPoint { kBeforeForward, kBeforeBackward, kBeforeStep, kAfterSave, kInBackward, kAtStart, kFaultPoints };

// One run.
struct FaultRun {
  int world = 2;
  int rank = 0;                   // with which it goes wrong
  int step = 0;                   // at which
  FaultPoint point = kBeforeForward;
  int after_us = -1;              // what a timer waits from there, so that the fault comes in the midst of what runs then; -1: none
  int master_port = 0;            // where it is known
};

struct FaultKind {
  const char* name;
  // Regular expressions, each of which the output must match somewhere; none: nothing goes wrong that anyone has to be told of, and nothing
  // is restarted.
  std::function<std::vector<std::string>(const FaultRun&)> causes;
  std::vector<FaultPoint> points;  // where it can happen
  bool timer = false;              // or at any time after one of these, or in set-up
  int fixed_rank = -1;             // -1: any
  int first_step = 0;              // from which on it can happen
  bool middle = false;             // not in the last step
  bool restarts = true;            // the launcher starts the ranks again, once
  std::function<std::string()> refused = nullptr;  // why this machine can't do it; empty: it can
};

const std::vector<FaultKind>& FaultKinds();

// The newest checkpoint when the fault comes.
int NewestCheckpoint(const FaultRun& run);

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_FAULT_KINDS_H_
