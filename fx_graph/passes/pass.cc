#include "fx_graph/passes/pass.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status.h"

namespace ddpopt::fx {
namespace {

bool IsNameCharacter(char c) { return absl::ascii_isalnum(c) || c == '_'; }

bool IsName(absl::string_view text) {
  return !text.empty() && !absl::ascii_isdigit(text[0]) && std::all_of(text.begin(), text.end(), IsNameCharacter);
}

// Reads "name{option=value},name" from the left.
class PipelineReader {
 public:
  explicit PipelineReader(absl::string_view text) : text_(text) {}

  bool AtEnd() {
    SkipBlanks();
    return at_ == text_.size();
  }
  bool Take(char c) {
    SkipBlanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  absl::StatusOr<std::string> Name(absl::string_view what) {
    SkipBlanks();
    const std::size_t start = at_;
    while (at_ < text_.size() && IsNameCharacter(text_[at_])) ++at_;
    if (!IsName(text_.substr(start, at_ - start))) return Error(start, absl::StrCat("expected ", what));
    return std::string(text_.substr(start, at_ - start));
  }
  std::string Value() {
    SkipBlanks();
    const std::size_t start = at_;
    while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '}') ++at_;
    return std::string(absl::StripTrailingAsciiWhitespace(text_.substr(start, at_ - start)));
  }
  absl::Status Expected(absl::string_view what) { return Error(at_, absl::StrCat("expected ", what)); }

 private:
  absl::Status Error(std::size_t at, absl::string_view message) const {
    return absl::InvalidArgumentError(absl::StrCat("pipeline \"", text_, "\", at column ", at + 1, ": ", message));
  }
  void SkipBlanks() {
    while (at_ < text_.size() && absl::ascii_isspace(text_[at_])) ++at_;
  }

  absl::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

absl::Status PassRegistry::Add(absl::string_view name, absl::string_view description, Factory factory) {
  if (!IsName(name)) return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" can't be the name of a pass"));
  if (!entries_.emplace(std::string(name), Entry{std::string(description), std::move(factory)}).second) {
    return absl::AlreadyExistsError(absl::StrCat("there is a pass \"", name, "\" already"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Pass>> PassRegistry::Create(absl::string_view name, const PassOptions& options) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("there is no pass \"", name, "\"; there are: ", absl::StrJoin(names(), ", ")));
  }
  absl::StatusOr<std::unique_ptr<Pass>> pass = entry->second.factory(options);
  if (!pass.ok()) return Annotate(pass.status(), absl::StrCat("pass ", name));
  return pass;
}

absl::StatusOr<std::vector<std::unique_ptr<Pass>>> PassRegistry::CreatePipeline(absl::string_view text) const {
  std::vector<std::unique_ptr<Pass>> passes;
  PipelineReader reader(text);
  if (reader.AtEnd()) return passes;
  do {
    DDPOPT_ASSIGN_OR_RETURN(const std::string name, reader.Name("the name of a pass"));
    PassOptions options;
    if (reader.Take('{') && !reader.Take('}')) {
      do {
        DDPOPT_ASSIGN_OR_RETURN(const std::string option, reader.Name("the name of an option"));
        if (!reader.Take('=')) return reader.Expected(absl::StrCat("'=' after option ", option));
        if (!options.emplace(option, reader.Value()).second) return reader.Expected(absl::StrCat("option ", option, " only once"));
      } while (reader.Take(','));
      if (!reader.Take('}')) return reader.Expected("'}'");
    }
    DDPOPT_ASSIGN_OR_RETURN(std::unique_ptr<Pass> pass, Create(name, options));
    passes.push_back(std::move(pass));
  } while (reader.Take(','));
  if (!reader.AtEnd()) return reader.Expected("',' or the end");
  return passes;
}

std::vector<std::string> PassRegistry::names() const {
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

const std::string& PassRegistry::description(absl::string_view name) const {
  const auto entry = entries_.find(name);
  CHECK(entry != entries_.end()) << "there is no pass \"" << std::string(name) << "\"";
  return entry->second.description;
}

absl::Status CheckPassOptions(const PassOptions& options, const std::vector<std::string>& known) {
  for (const auto& [name, value] : options) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("there is no option \"", name, "\"; there are: ", known.empty() ? "none" : absl::StrJoin(known, ", ")));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> BoolPassOption(const PassOptions& options, const std::string& name, bool default_value) {
  const auto option = options.find(name);
  if (option == options.end()) return default_value;
  if (option->second == "true") return true;
  if (option->second == "false") return false;
  return absl::InvalidArgumentError(absl::StrCat("option ", name, " must be true or false, not \"", option->second, "\""));
}

}  // namespace ddpopt::fx
