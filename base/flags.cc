#include "base/flags.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ddpopt {

void Flags::Integer(const std::string& name, int64_t* value, int64_t low, int64_t high, const std::string& want) {
  entries_[name] = {Takes::kValue, want, [=](const std::string& text) {
                      int64_t number = 0;
                      if (!absl::SimpleAtoi(text, &number) || number < low || number > high) return false;
                      *value = number;
                      return true;
                    }};
}

void Flags::Number(const std::string& name, double* value, double above, const std::string& want) {
  entries_[name] = {Takes::kValue, want, [=](const std::string& text) {
                      double number = 0;
                      if (!absl::SimpleAtod(text, &number) || !std::isfinite(number) || number <= above) return false;
                      *value = number;
                      return true;
                    }};
}

void Flags::NumberFrom(const std::string& name, double* value, double least, const std::string& want) {
  Number(name, value, std::nextafter(least, -HUGE_VAL), want);
}

void Flags::Text(const std::string& name, std::string* value, const std::string& want) {
  entries_[name] = {Takes::kValue, want, [=](const std::string& text) {
                      *value = text;
                      return !text.empty();
                    }};
}

void Flags::Choice(const std::string& name, std::string* value, const std::vector<std::string>& choices) {
  entries_[name] = {Takes::kValue, absl::StrCat("one of ", absl::StrJoin(choices, ", ")), [=](const std::string& text) {
                      *value = text;
                      return std::find(choices.begin(), choices.end(), text) != choices.end();
                    }};
}

void Flags::Switch(const std::string& name, bool* value) {
  entries_[name] = {Takes::kNothing, "", [=](const std::string&) { return *value = true; }};
}

void Flags::OptionalText(const std::string& name, bool* on, std::string* value, const std::string& want) {
  entries_[name] = {Takes::kMaybe, want, [=](const std::string& text) {
                      *on = true;
                      *value = text;
                      return true;
                    }};
}

absl::Status Flags::Parse(const std::vector<std::string>& arguments, std::vector<std::string>* rest) const {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!absl::StartsWith(argument, "--")) {
      if (rest == nullptr || absl::StartsWith(argument, "-")) {
        return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", argument, "'"));
      }
      rest->push_back(argument);
      continue;
    }
    const size_t equals = argument.find('=');
    const bool has_value = equals != std::string::npos;
    const std::string name = argument.substr(2, has_value ? equals - 2 : std::string::npos);
    const auto it = entries_.find(name);
    if (it == entries_.end()) return absl::InvalidArgumentError(absl::StrCat("unknown flag '--", name, "'"));
    const Entry& entry = it->second;
    if (entry.takes == Takes::kNothing && has_value) return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
    std::string value;
    if (has_value) {
      value = argument.substr(equals + 1);
    } else if (entry.takes == Takes::kValue) {
      if (i + 1 == arguments.size()) return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
      value = arguments[++i];
    }
    const bool empty = entry.takes == Takes::kMaybe && has_value && value.empty();
    if (empty || !entry.set(value)) return absl::InvalidArgumentError(absl::StrCat("--", name, "=", value, ": must be ", entry.want));
  }
  return absl::OkStatus();
}

}  // namespace ddpopt
