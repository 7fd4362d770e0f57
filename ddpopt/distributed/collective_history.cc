#include "ddpopt/distributed/collective_history.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace ddpopt {
namespace {

// A summary has every one of the newest 16 positions, every 16th of the 256 newest, and so on: whatever moments two summaries are of, they
// have positions in common, the closer the newer.
constexpr uint64_t kEach = 16;
constexpr int kLevels = 4;

uint64_t Mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 1099511628211u;
  return hash ^ (hash >> 32);
}

struct Told {
  uint64_t hash = 0;
  std::string text;
};

std::map<uint64_t, Told> ParseSummary(const std::string& summary) {
  std::map<uint64_t, Told> told;
  for (const absl::string_view part : absl::StrSplit(summary, '\t', absl::SkipEmpty())) {
    const std::vector<absl::string_view> fields = absl::StrSplit(part, absl::MaxSplits(' ', 2));
    uint64_t position = 0;
    Told one;
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[0], &position) || !absl::SimpleAtoi(fields[1], &one.hash)) continue;
    one.text = std::string(fields[2]);
    // Those with texts come first.
    told.emplace(position, std::move(one));
  }
  return told;
}

}  // namespace

std::string CollectiveText(const CollectiveInfo& info) {
  return info.elements == 0 && info.dtype == c10::ScalarType::Undefined
             ? info.operation
             : absl::StrCat(info.operation, " of ", info.elements, " ", c10::toString(info.dtype));
}

void CollectiveHistory::Add(uint64_t number, const CollectiveInfo& info) {
  if (absl::StartsWith(info.operation, "exchange of ")) return;
  Entry entry;
  entry.number = number;
  entry.operation =
      static_cast<uint16_t>(std::find(operations_.begin(), operations_.end(), info.operation) - operations_.begin());
  if (entry.operation == operations_.size()) operations_.push_back(info.operation);
  for (const char c : info.operation) hash_ = Mixed(hash_, static_cast<unsigned char>(c));
  // Of other operations, what they run on may differ between ranks.
  if (info.operation == "allreduce" || info.operation == "broadcast" || info.operation == "reduce") {
    entry.elements = info.elements;
    entry.dtype = info.dtype;
  }
  hash_ = Mixed(Mixed(hash_, static_cast<uint64_t>(entry.elements)), static_cast<uint64_t>(entry.dtype) + 256);
  entry.hash = hash_;
  ++count_;
  entries_.push_back(entry);
  if (entries_.size() > kKept) entries_.pop_front();
}

const CollectiveHistory::Entry* CollectiveHistory::At(uint64_t position) const {
  if (position > count_ || position + entries_.size() <= count_) return nullptr;
  return &entries_[position + entries_.size() - count_ - 1];
}

std::string CollectiveHistory::TextAt(uint64_t position) const {
  const Entry* entry = At(position);
  if (entry == nullptr) return "";
  return absl::StrCat("#", entry->number, " ", CollectiveText({operations_[entry->operation], entry->elements, entry->dtype}));
}

std::string CollectiveHistory::Summary() const {
  std::string result;
  uint64_t step = 1;
  for (int level = 0; level < kLevels; ++level, step *= kEach) {
    const uint64_t newest = count_ - count_ % step;
    for (uint64_t i = std::min(kEach, newest / step); i-- > 0;) {
      const uint64_t position = newest - i * step;
      const Entry* entry = At(position);
      if (entry != nullptr) absl::StrAppend(&result, position, " ", entry->hash, " ", level == 0 ? TextAt(position) : "", "\t");
    }
  }
  return result;
}

std::string CollectiveHistory::Hashes(uint64_t from, uint64_t until) const {
  from = std::max({from, count_ - entries_.size() + 1, uint64_t{1}});
  until = std::min(until, count_);
  std::string result = absl::StrCat(from);
  for (uint64_t position = from; position <= until; ++position) absl::StrAppend(&result, " ", At(position)->hash);
  return result;
}

absl::optional<CollectiveHistory::Place> CollectiveHistory::FirstDifference(const std::string& hashes) const {
  const std::vector<absl::string_view> fields = absl::StrSplit(hashes, ' ');
  uint64_t position = 0;
  if (!absl::SimpleAtoi(fields[0], &position)) return absl::nullopt;
  // A hash is of all before too: only after one that is the same is a different one the first.
  bool same_before = position == 1;
  for (std::size_t i = 1; i < fields.size(); ++i, ++position) {
    const Entry* entry = At(position);
    uint64_t hash = 0;
    if (!absl::SimpleAtoi(fields[i], &hash)) return absl::nullopt;
    if (entry == nullptr) continue;
    if (entry->hash == hash) {
      same_before = true;
    } else if (same_before) {
      return Place{position, TextAt(position)};
    } else {
      return absl::nullopt;
    }
  }
  return absl::nullopt;
}

HistoryComparison CompareHistories(const std::string& first, const std::string& second, uint64_t same_until) {
  HistoryComparison result;
  result.same_until = same_until;
  const auto a = ParseSummary(first), b = ParseSummary(second);
  for (const auto& [position, told] : a) {
    const auto other = b.find(position);
    if (other == b.end() || position <= result.same_until) continue;
    if (told.hash == other->second.hash) {
      result.same_until = position;
      continue;
    }
    result.differs_at = position;
    if (position == result.same_until + 1) {
      result.first_text = told.text;
      result.second_text = other->second.text;
    }
    break;
  }
  return result;
}

}  // namespace ddpopt
