#ifndef DDPOPT_EXAMPLES_PROGRAM_H_
#define DDPOPT_EXAMPLES_PROGRAM_H_

// What the example programs have in common: progress on standard error, and the flag --bucket_policy.

#include <chrono>
#include <cstdint>
#include <string>

#include "base/flags.h"
#include "ddpopt/ddpopt.h"
#include "nlohmann/json.hpp"

namespace ddpopt::examples {

double SecondsSince(std::chrono::steady_clock::time_point begin);
// Of seconds that a user has given: 0 or more, whatever their size.
std::chrono::milliseconds Milliseconds(double seconds);

// On a terminal one line that is written over; else a line now and then.
class Progress {
 public:
  // `unit`: what a step has several of, such as "tokens".
  Progress(bool on, int64_t steps, std::string unit);
  void Step(int64_t done, double loss, double units_per_step);

 private:
  bool on_, terminal_;
  int64_t steps_;
  std::string unit_;
  std::chrono::steady_clock::time_point begin_;
  int64_t first_done_ = 0;
  double first_ = 0, shown_ = 0;
};

// --bucket_policy=caps|auto.
void AddBucketPolicy(Flags* flags, std::string* value);
BucketPolicy BucketPolicyOf(const std::string& value);
// What auto chose, what it expects and what the steps got: as text, and for --json. Empty and null with another policy.
std::string AutoText(const DdpCore& core);
nlohmann::ordered_json AutoJson(const DdpCore& core);

// Ranks that this program starts share the processors, unless the user has set OMP_NUM_THREADS.
void ShareProcessors(int64_t ranks);

}  // namespace ddpopt::examples

#endif  // DDPOPT_EXAMPLES_PROGRAM_H_
