#ifndef DDPOPT_DISTRIBUTED_COLLECTIVE_HISTORY_H_
#define DDPOPT_DISTRIBUTED_COLLECTIVE_HISTORY_H_

// Internal: which collectives a rank has begun, and where two ranks' differ. A rank tells a few hundred bytes twice a second; only when two
// of these differ, a rank is given the other's hashes of the stretch in which that must be, and finds the place.
//
//   history.Add(17, {"allreduce", 1024, at::kFloat});
//   const HistoryComparison found = CompareHistories(mine.Summary(), others_summary, agreed_before);
//   if (found.differs_at != 0) ask the other for theirs.FirstDifference(mine.Hashes(found.same_until, found.differs_at));
//
// Positions count the collectives that were added, from 1; a rank's numbers of them (which other threads' exchanges of texts count too) are
// in the texts alone. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "c10/core/ScalarType.h"

namespace ddpopt {

struct CollectiveInfo {
  std::string operation;
  int64_t elements = 0;  // of all tensors
  c10::ScalarType dtype = c10::ScalarType::Undefined;
};

// "allreduce of 1024 Float", or the operation alone where there are no tensors.
std::string CollectiveText(const CollectiveInfo& info);

class CollectiveHistory {
 public:
  // So many collectives are known by name: seconds of the fastest that a process begins. 2 MiB.
  static constexpr std::size_t kKept = std::size_t{1} << 16;

  struct Place {
    uint64_t position = 0;
    std::string text;  // "#17 allreduce of 4 Float"
  };

  // Exchanges of texts are left out: another thread may make them in between, and they are compared by their names already.
  void Add(uint64_t number, const CollectiveInfo& info);
  uint64_t size() const { return count_; }  // the newest position
  // For CompareHistories: one line.
  std::string Summary() const;
  // Of the positions from `from` to `until`, without those that are no longer known. For FirstDifference: one line.
  std::string Hashes(uint64_t from, uint64_t until) const;
  // The first position at which this history isn't the one whose Hashes() these are; nullopt: there is none, or it is no longer known.
  absl::optional<Place> FirstDifference(const std::string& hashes) const;
  // Empty: not known.
  std::string TextAt(uint64_t position) const;

 private:
  struct Entry {
    uint64_t hash = 0;  // of this and all before
    uint64_t number = 0;
    int64_t elements = 0;
    uint16_t operation = 0;  // in operations_
    c10::ScalarType dtype = c10::ScalarType::Undefined;
  };
  const Entry* At(uint64_t position) const;

  std::deque<Entry> entries_;  // the newest is at position count_
  std::vector<std::string> operations_;
  uint64_t count_ = 0;
  uint64_t hash_ = 14695981039346656037u;
};

struct HistoryComparison {
  uint64_t same_until = 0;              // position
  uint64_t differs_at = 0;              // here at the latest; 0: no difference was found
  std::string first_text, second_text;  // empty: the first difference is not among those that the summaries name
};

// Of two ranks' summaries, which are known to agree until a position (0: nothing is known). They need not be of one moment.
HistoryComparison CompareHistories(const std::string& first, const std::string& second, uint64_t same_until);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_COLLECTIVE_HISTORY_H_
