#ifndef DDPOPT_BASE_FLAGS_H_
#define DDPOPT_BASE_FLAGS_H_

// A program's flags.
//
//   Flags flags;
//   flags.Integer("steps", &steps, 1, kMany, "a whole number above 0");
//   flags.Switch("json", &json);
//   DDPOPT_RETURN_IF_ERROR(flags.Parse({argv + 1, argv + argc}, &rest));      // --steps=3 --json, or --steps 3

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace ddpopt {

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

}  // namespace ddpopt

#endif  // DDPOPT_BASE_FLAGS_H_
