#include "testing/test_records.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace ddpopt::testing {
namespace {

std::string Key(const MergedCase& c) { return absl::StrCat(c.suite, ".", c.name); }

// For attributes and text: no byte that XML 1.0 forbids.
std::string Escape(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&apos;";
        break;
      case '\n':
        out += "&#x0A;";
        break;
      case '\t':
        out += "&#x09;";
        break;
      default:
        if (byte >= 0x20 && byte != 0x7f) out += c;
    }
  }
  return out;
}

std::string Counts(const std::vector<const MergedCase*>& cases) {
  int failures = 0, disabled = 0, skipped = 0;
  double seconds = 0;
  for (const MergedCase* c : cases) {
    failures += c->failures.empty() ? 0 : 1;
    disabled += c->disabled ? 1 : 0;
    skipped += c->skipped ? 1 : 0;
    seconds += c->seconds;
  }
  return absl::StrCat("tests=\"", cases.size(), "\" failures=\"", failures, "\" disabled=\"", disabled, "\" skipped=\"", skipped,
                      "\" errors=\"0\" time=\"", seconds, "\"");
}

}  // namespace

std::vector<MergedCase> MergeRecords(const std::vector<RankRecord>& records) {
  std::vector<MergedCase> cases;  // in the order of the plans
  std::map<std::string, size_t> index;
  std::vector<std::set<std::string>> planned(records.size()), ended(records.size());
  std::map<std::string, size_t> skips;
  std::vector<std::string> running(records.size());
  std::vector<bool> any_failed(records.size(), false);

  for (size_t rank = 0; rank < records.size(); ++rank) {
    for (const absl::string_view line : absl::StrSplit(records[rank].lines, '\n', absl::SkipEmpty())) {
      const nlohmann::json event = nlohmann::json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
      if (!event.is_object()) continue;  // cut off by the rank's death
      if (event.contains("plan")) {
        const nlohmann::json& plan = event["plan"];
        MergedCase c;
        c.suite = plan.value("suite", "");
        c.name = plan.value("name", "");
        c.file = plan.value("file", "");
        c.line = plan.value("line", 0);
        c.disabled = plan.value("disabled", false);
        const std::string key = Key(c);
        if (!c.disabled) planned[rank].insert(key);
        if (index.emplace(key, cases.size()).second) cases.push_back(std::move(c));
      } else if (event.contains("start")) {
        running[rank] = event["start"].get<std::string>();
      } else if (event.contains("end")) {
        const std::string key = event["end"].get<std::string>();
        const auto found = index.find(key);
        if (found == index.end()) continue;
        MergedCase& c = cases[found->second];
        running[rank].clear();
        ended[rank].insert(key);
        c.seconds = std::max(c.seconds, event.value("seconds", 0.0));
        const std::string result = event.value("result", "");
        if (result == "skipped") ++skips[key];
        if (result == "failed") {
          any_failed[rank] = true;
          std::string text;
          for (const auto& message : event.value("messages", nlohmann::json::array())) {
            absl::StrAppend(&text, text.empty() ? "" : "\n", message.get<std::string>());
          }
          c.failures.push_back(absl::StrCat("rank ", rank, ": ", text));
        }
      }
    }
  }

  for (MergedCase& c : cases) {
    if (c.disabled) continue;
    const std::string key = Key(c);
    for (size_t rank = 0; rank < records.size(); ++rank) {
      if (ended[rank].count(key) != 0) continue;
      any_failed[rank] = true;
      c.failures.push_back(absl::StrCat("rank ", rank, ": ",
                                        planned[rank].count(key) == 0 ? "never knew of this case"
                                        : running[rank] == key        ? "did not finish this case"
                                                                      : "did not come to this case",
                                        "; its process ", records[rank].fate));
    }
    c.skipped = c.failures.empty() && skips[key] == records.size();
  }

  MergedCase succeeds;
  succeeds.suite = "DistributedTest";
  succeeds.name = "RankSucceeds";
  for (size_t rank = 0; rank < records.size(); ++rank) {
    if (!records[rank].succeeded && !any_failed[rank]) {
      succeeds.failures.push_back(absl::StrCat("rank ", rank, ": no case failed, but its process ", records[rank].fate));
    }
  }
  if (!succeeds.failures.empty()) cases.push_back(std::move(succeeds));
  return cases;
}

std::string ToXml(const std::vector<MergedCase>& cases) {
  std::vector<const MergedCase*> all;
  std::vector<std::string> order;
  std::map<std::string, std::vector<const MergedCase*>> suites;
  for (const MergedCase& c : cases) {
    all.push_back(&c);
    auto& suite = suites[c.suite];
    if (suite.empty()) order.push_back(c.suite);
    suite.push_back(&c);
  }
  std::string xml = absl::StrCat("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites ", Counts(all), " name=\"AllTests\">\n");
  for (const std::string& name : order) {
    absl::StrAppend(&xml, "  <testsuite name=\"", Escape(name), "\" ", Counts(suites[name]), ">\n");
    for (const MergedCase* c : suites[name]) {
      absl::StrAppend(&xml, "    <testcase name=\"", Escape(c->name), "\" file=\"", Escape(c->file), "\" line=\"", c->line, "\" status=\"",
                      c->disabled ? "notrun" : "run", "\" result=\"",
                      c->disabled  ? "suppressed"
                      : c->skipped ? "skipped"
                                   : "completed",
                      "\" time=\"", c->seconds, "\" classname=\"", Escape(c->suite), "\">\n");
      if (c->skipped) absl::StrAppend(&xml, "      <skipped/>\n");
      for (const std::string& failure : c->failures) {
        absl::StrAppend(&xml, "      <failure message=\"", Escape(failure), "\" type=\"\"></failure>\n");
      }
      absl::StrAppend(&xml, "    </testcase>\n");
    }
    absl::StrAppend(&xml, "  </testsuite>\n");
  }
  absl::StrAppend(&xml, "</testsuites>\n");
  return xml;
}

}  // namespace ddpopt::testing
