#ifndef DDPOPT_EXAMPLES_PROGRAM_H_
#define DDPOPT_EXAMPLES_PROGRAM_H_

// What the example programs have in common: flags, and progress on standard error.
//
//   Flags flags;
//   flags.Integer("steps", &steps, 1, kMany, "a whole number above 0");
//   flags.Switch("json", &json);
//   DDPOPT_RETURN_IF_ERROR(flags.Parse({argv + 1, argv + argc}, &rest));      // --steps=3 --json, or --steps 3

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ddpopt::examples {

class Flags {
 public:
  // The targets must outlive Parse. `want` says what is allowed: "--steps=0: must be a whole number above 0".
  void Integer(const std::string& name, int64_t* value, int64_t low, int64_t high, const std::string& want);
  void Number(const std::string& name, double* value, double above, const std::string& want);      // finite, > above
  void NumberFrom(const std::string& name, double* value, double least, const std::string& want);  // finite, >= least
  void Text(const std::string& name, std::string* value, const std::string& want);                 // not empty
  void Choice(const std::string& name, std::string* value, const std::vector<std::string>& choices);
  void Switch(const std::string& name, bool* value);
  // A switch that may have a value: --name sets *on alone, --name=VALUE the text too.
  void OptionalText(const std::string& name, bool* on, std::string* value, const std::string& want);

  // Arguments that are no flags go to *rest; null: they are refused. Errors: InvalidArgument.
  absl::Status Parse(const std::vector<std::string>& arguments, std::vector<std::string>* rest = nullptr) const;

 private:
  enum class Takes { kValue, kNothing, kMaybe };
  struct Entry {
    Takes takes = Takes::kValue;
    std::string want;
    std::function<bool(const std::string& value)> set;  // false: the value isn't allowed
  };
  std::map<std::string, Entry> entries_;
};

double SecondsSince(std::chrono::steady_clock::time_point begin);

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

// Ranks that this program starts share the processors, unless the user has set OMP_NUM_THREADS.
void ShareProcessors(int64_t ranks);

}  // namespace ddpopt::examples

#endif  // DDPOPT_EXAMPLES_PROGRAM_H_
