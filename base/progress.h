#ifndef DDPOPT_BASE_PROGRESS_H_
#define DDPOPT_BASE_PROGRESS_H_

// Tells the people at a terminal what takes long.
//
//   const ProgressScope progress(rank == 0, "capturing forward");
//   ... seconds of work ...
//
// Says nothing unless standard error is a terminal, or DDPOPT_PROGRESS=1 is set (the launcher sets it for its ranks if it has a terminal;
// DDPOPT_PROGRESS=0 keeps it quiet there), and the work has taken a while. On a terminal it is one line that is written over and goes with
// the scope; else a line each time that the time has doubled. A scope within another is quiet. Thread-safe.

#include <chrono>
#include <memory>
#include <string>

namespace ddpopt {

class ProgressScope {
 public:
  // `on`: whether this process is the one that tells. `patience`: after which time it does.
  ProgressScope(bool on, std::string what, std::chrono::milliseconds patience = std::chrono::milliseconds(1500));
  ~ProgressScope();
  ProgressScope(const ProgressScope&) = delete;
  ProgressScope& operator=(const ProgressScope&) = delete;

  // Whether there is anyone to tell.
  static bool Wanted();

 private:
  struct Teller;
  std::unique_ptr<Teller> teller_;  // null: quiet
};

}  // namespace ddpopt

#endif  // DDPOPT_BASE_PROGRESS_H_
