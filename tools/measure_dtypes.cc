// Measures which dtypes CPU kernels refuse ("not implemented for"), and by which dtype of a call they are chosen: lines for the table in
// fake_tensor/dtype_support.cc. See --help.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "c10/util/Exception.h"
#include "fake_tensor/cross_ref/cross_ref.h"
#include "fake_tensor/cross_ref/generator.h"
#include "fake_tensor/dtype_support.h"

namespace ddpopt {
namespace {

using c10::ScalarType;
using cross_ref::Call;
using cross_ref::MadeCall;
using Unless = DtypeRule::Unless;

constexpr char kHelp[] = R"(Calls functional ATen operators on real tensors of all dtypes and prints, in the form of the table of fake_tensor/dtype_support.cc, which
dtypes their kernels have no code for. Operators whose refusals no rule explains are listed at the end.

  measure_dtypes [--ops=TEXT,…] [--calls=N]

  --calls=N  calls of each operator (default 400)
)";

constexpr std::pair<ScalarType, const char*> kDtypes[] = {
    {ScalarType::Half, "f16"}, {ScalarType::BFloat16, "bf16"}, {ScalarType::Float, "f32"},         {ScalarType::Double, "f64"},
    {ScalarType::Byte, "u8"},  {ScalarType::Char, "i8"},       {ScalarType::Short, "i16"},         {ScalarType::Int, "i32"},
    {ScalarType::Long, "i64"}, {ScalarType::Bool, "bool"},     {ScalarType::ComplexFloat, "c64"},  {ScalarType::ComplexDouble, "c128"},
    {ScalarType::ComplexHalf, "c32"}};
constexpr int kCallDtypes = 12;  // not c32: only promotion makes it

class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

struct Observation {
  std::vector<std::vector<ScalarType>> selected;  // by each selector
  bool first_empty = false, any_empty = false;
  std::optional<std::string> refused;  // the dtype's name in the kernel's words
};

std::string Names(std::set<ScalarType> dtypes) {
  std::vector<std::string> names;
  const auto all = [&](std::initializer_list<ScalarType> wanted, const char* name) {
    if (!std::all_of(wanted.begin(), wanted.end(), [&](ScalarType type) { return dtypes.count(type) > 0; })) return;
    names.push_back(name);
    for (const ScalarType type : wanted) dtypes.erase(type);
  };
  all({ScalarType::Half, ScalarType::BFloat16}, "halves");
  all({ScalarType::Byte, ScalarType::Char, ScalarType::Short, ScalarType::Int, ScalarType::Long}, "ints");
  all({ScalarType::ComplexFloat, ScalarType::ComplexDouble}, "complex");
  for (const auto& [type, name] : kDtypes) {
    if (dtypes.count(type) > 0) names.push_back(name);
  }
  return absl::StrJoin(names, " ");
}

// The rule of one operator, in words; "" for none, "? …" where nothing fits.
std::string Measure(const c10::OperatorHandle& op, int calls) {
  std::vector<DtypeSelector> selectors;
  const c10::FunctionSchema& schema = op.schema();
  bool lists = false;
  // Where several explain the same, the first counts: kernels on TensorIterator go by what their operands promote to.
  const bool pointwise = op.hasTag(at::Tag::pointwise);
  if (pointwise) selectors.push_back(DtypeSelector::Parse("(common)"));
  for (const c10::Argument& argument : schema.arguments()) {
    const std::string type = argument.type()->str();
    if (!absl::StrContains(type, "Tensor")) continue;
    lists |= absl::StrContains(type, "[]") || absl::StartsWith(type, "List");
    selectors.push_back(DtypeSelector::Parse(argument.name()));
  }
  if (lists) selectors.insert(selectors.begin(), DtypeSelector::Parse("(each)"));
  selectors.push_back(DtypeSelector::Parse("(common)"));
  selectors.push_back(DtypeSelector::Parse("(common and numbers)"));
  selectors.push_back(DtypeSelector::Parse("(dtype)"));

  static const std::regex& refusal = *new std::regex("not implemented for '([A-Za-z0-9]+)'");
  std::vector<Observation> observations;
  for (int i = 0; i < calls; ++i) {
    std::optional<Call> call;
    cross_ref::CallOptions options{false, std::nullopt};
    if (i % 4 != 3) options.dtype = kDtypes[(i / 4 * 3 + i % 4) % kCallDtypes].first;
    for (uint64_t attempt = 0; attempt < 50 && !call.has_value(); ++attempt) call = RandomCall(op, i * 1000 + attempt, options);
    if (!call.has_value()) continue;
    MadeCall made = Make(*call);
    Observation seen;
    for (const DtypeSelector& selector : selectors) seen.selected.push_back(selector.Select(schema, made.arguments));
    seen.first_empty = IsTakenAnyway(schema, made.arguments, Unless::kFirstEmpty);
    seen.any_empty = IsTakenAnyway(schema, made.arguments, Unless::kAnyEmpty);
    try {
      cross_ref::Run(op, std::move(made.arguments));
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      std::smatch match;
      if (!std::regex_search(text, match, refusal)) continue;  // another reason says nothing
      seen.refused = match[1];
    } catch (const std::exception&) {
      continue;
    }
    observations.push_back(std::move(seen));
  }

  std::string best;
  int best_wrong = 1 << 30;
  for (std::size_t s = 0; s < selectors.size(); ++s) {
    // Refused dtypes are those that a kernel named.
    std::set<ScalarType> refused;
    for (const Observation& seen : observations) {
      if (!seen.refused.has_value()) continue;
      for (const ScalarType type : seen.selected[s]) {
        if (*seen.refused == c10::toString(type)) refused.insert(type);
      }
    }
    for (const Unless unless : {Unless::kNever, Unless::kFirstEmpty, Unless::kAnyEmpty}) {
      int wrong = 0;
      for (const Observation& seen : observations) {
        bool expect = false;
        for (const ScalarType type : seen.selected[s]) expect |= refused.count(type) > 0;
        if (unless == Unless::kFirstEmpty && seen.first_empty) expect = false;
        if (unless == Unless::kAnyEmpty && seen.any_empty) expect = false;
        wrong += expect != seen.refused.has_value();
      }
      if (wrong < best_wrong) {
        best_wrong = wrong;
        best = refused.empty() ? "" : absl::StrCat(selectors[s].ToString(), "; ", unless == Unless::kNever ? "" : unless == Unless::kAnyEmpty ? "?" : "1", Names(refused));
      }
    }
  }
  const auto count = std::count_if(observations.begin(), observations.end(), [](const Observation& seen) { return seen.refused.has_value(); });
  if (best_wrong > 0 && count > 0) return absl::StrCat("? ", best_wrong, " wrong of ", observations.size(), ": ", best);
  return best;
}

int Main(int argc, char** argv) {
  std::vector<std::string> ops;
  int calls = 400;
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::ConsumePrefix(&argument, "--ops=")) {
      ops = absl::StrSplit(argument, ',', absl::SkipEmpty());
    } else if (!absl::ConsumePrefix(&argument, "--calls=") || !absl::SimpleAtoi(argument, &calls)) {
      std::fputs(kHelp, argument == "--help" ? stdout : stderr);
      return argument == "--help" ? 0 : 2;
    }
  }
  at::set_num_threads(1);
  std::map<std::string, std::vector<std::string>> lines;       // rule → operators
  std::map<std::string, std::map<std::string, std::vector<std::string>>> by_name;  // operator → rule → overloads
  std::vector<std::string> unexplained;
  for (const c10::OperatorHandle& op : cross_ref::Operators(ops, /*with_unfinished=*/true)) {
    // Functional forms only: the others follow them.
    if (op.schema().is_mutable() || absl::EndsWith(op.schema().name(), "_")) continue;
    int fds[2];
    if (::pipe(fds) != 0) return 2;
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      Quiet quiet;
      const c10::WarningUtils::WarningHandlerGuard no_warnings(&quiet);
      const std::string rule = Measure(op, calls);
      if (::write(fds[1], rule.data(), rule.size()) < 0) ::_exit(1);
      ::_exit(0);
    }
    ::close(fds[1]);
    std::string rule;
    char buffer[4096];
    for (ssize_t n; (n = ::read(fds[0], buffer, sizeof buffer)) > 0;) rule.append(buffer, static_cast<std::size_t>(n));
    ::close(fds[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    const std::string name = c10::toString(op.operator_name());
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      unexplained.push_back(absl::StrCat(name, ": a kernel died"));
    } else if (absl::StartsWith(rule, "?")) {
      unexplained.push_back(absl::StrCat(name, ": ", rule));
    }
    std::string base(absl::StripPrefix(op.schema().name(), "aten::"));
    by_name[base][rule].push_back(op.schema().overload_name());
  }
  for (const auto& [name, rules] : by_name) {
    for (const auto& [rule, overloads] : rules) {
      if (rules.size() == 1) {
        lines[rule].push_back(name);
      } else {
        for (const std::string& overload : overloads) lines[rule].push_back(overload.empty() ? name : absl::StrCat(name, ".", overload));
      }
    }
  }
  for (const auto& [rule, names] : lines) {
    // Overloads that refuse nothing, beside others of their name.
    if (rule.empty()) {
      std::vector<std::string> overloads;
      for (const std::string& name : names) {
        if (by_name.count(name) == 0 || by_name[name].size() > 1) overloads.push_back(name);
      }
      if (!overloads.empty()) std::printf("self; ; %s\n", absl::StrJoin(overloads, " ").c_str());
    } else if (rule[0] != '?') std::printf("%s; %s\n", rule.c_str(), absl::StrJoin(names, " ").c_str());
  }
  for (const std::string& text : unexplained) std::printf("# %s\n", text.c_str());
  return 0;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
