#ifndef DDPOPT_BENCHMARKS_MEASURE_H_
#define DDPOPT_BENCHMARKS_MEASURE_H_

// What the benchmarks share: flags, the clock, medians, and the scale of a run.
//
//   const double start = NowNs();
//   Work();
//   figures.push_back(NsSince(start));

#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/dispatch/Dispatcher.h"
#include "absl/types/optional.h"
#include "base/flags.h"

namespace ddpopt::benchmarks {

// Nanoseconds of this thread's processor time. One thread works: other programs that keep the machine busy don't count.
double NowNs();
double NsSince(double start);

double Median(std::vector<double> values);

// Keeps the compiler from dropping what computes `value`.
template <typename T>
void Keep(const T& value) {
  asm volatile("" : : "r,m"(value) : "memory");
}

// Of the dispatcher; throws c10::Error if there is none.
c10::OperatorHandle Operator(const char* name, const char* overload);

// The scale: nanoseconds of a boxed dispatcher add of 8 floats, grad mode as it is.
double RealAddNs();

// Flags that every benchmark has.
struct RunOptions {
  bool json = false;   // --json
  int64_t repeat = 1;  // --repeat=N: how often each figure is taken
};
// Parses them and those of `flags`. The exit status if main is to end: after --help, which shows `help`, or after an argument that isn't
// allowed.
absl::optional<int> ParseRunOptions(int argc, char** argv, const char* help, RunOptions* options, Flags flags = {});

// Tells on standard error how far a program is, if that is a terminal; an empty text clears the line.
void ShowProgress(const std::string& text);

}  // namespace ddpopt::benchmarks

#endif  // DDPOPT_BENCHMARKS_MEASURE_H_
