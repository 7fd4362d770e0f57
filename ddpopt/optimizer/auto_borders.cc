#include "ddpopt/optimizer/auto_borders.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace ddpopt {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A way to have all nodes before a position in closed buckets.
struct Label {
  double finish = 0;  // of the communication so far
  int collectives = 0;
  int buckets = 0;
  int position = 0;
  int before = -1;  // the label that it was reached from
};

class Search {
 public:
  Search(const StepModel& step, const AllReduceModel& all_reduce, const AutoBordersOptions& options)
      : step_(step), all_reduce_(all_reduce), options_(options), size_(static_cast<int>(step.nodes.size())) {
    computed_.push_back(0);
    bytes_.push_back(0);
    for (int i = 0; i < size_; ++i) {
      const StepNode& node = Node(i);
      computed_.push_back(computed_.back() + node.backward);
      bytes_.push_back(bytes_.back() + node.parameter_bytes);
      if (node.parameter_groups != 0) holders_.push_back(i);
    }
    FindLegalFrom();
    FindCandidates();
  }

  absl::StatusOr<AutoBorders> Run() {
    rest_.resize(static_cast<std::size_t>(size_) + 1);
    for (int position = 0; position <= size_; ++position) rest_[static_cast<std::size_t>(position)] = RestFrom(position);
    labels_.push_back({});
    at_.resize(static_cast<std::size_t>(size_) + 1);
    at_[0] = {0};
    Extend(0);
    for (const std::vector<int>& gap : candidates_) {
      for (const int position : gap) Extend(position);
    }
    return Best();
  }

 private:
  const StepNode& Node(int position) const { return step_.nodes[static_cast<std::size_t>(position)]; }
  template <typename T>
  static const T& At(const std::vector<T>& values, int index) {
    return values[static_cast<std::size_t>(index)];
  }

  // For each position, the least end of a bucket from there that has a value used outside; size + 1 if there is none.
  void FindLegalFrom() {
    legal_from_.assign(static_cast<std::size_t>(size_) + 1, size_ + 1);
    for (int begin = 0; begin < size_; ++begin) {
      for (int i = begin; i < size_; ++i) {
        if (Node(i).earliest_user >= begin) continue;
        legal_from_[static_cast<std::size_t>(begin)] = i + 1;
        break;
      }
    }
  }

  // Borders between two nodes that hold parameters make the same buckets. They differ in what reaches them, in how far the next bucket must
  // reach at least, and in memory: none is needed that is no better than a single later one, which more can reach, in both of the latter.
  void FindCandidates() {
    for (std::size_t k = 0; k + 1 < holders_.size(); ++k) {
      std::vector<int> kept;
      std::vector<std::pair<int, int64_t>> later;  // what those kept so far have of the two
      for (int position = holders_[k + 1]; position > holders_[k]; --position) {
        // The next bucket takes the next parameter in any case.
        const int next = std::max(At(legal_from_, position), holders_[k + 1] + 1);
        const int64_t held = options_.memory_limit_bytes > 0 ? Node(position - 1).live_bytes : 0;
        if (std::any_of(later.begin(), later.end(), [&](const auto& kept) { return kept.first <= next && kept.second <= held; })) continue;
        later.emplace_back(next, held);
        kept.push_back(position);
      }
      std::reverse(kept.begin(), kept.end());
      candidates_.push_back(std::move(kept));
    }
  }

  bool Fits(int end, int64_t bytes) const {
    if (options_.memory_limit_bytes <= 0) return true;
    const int64_t live = end > 0 ? Node(end - 1).live_bytes : 0;
    return step_.fixed_bytes + live + static_cast<int64_t>(options_.overlap.scratch * static_cast<double>(bytes)) <=
           options_.memory_limit_bytes;
  }

  double CommunicationBefore(const Label& label) const { return all_reduce_.Seconds(At(bytes_, label.position), label.collectives); }

  // When a bucket that follows the label finishes, as PredictTimeline has it.
  double Finish(const Label& label, double ready, int64_t bytes, int collectives) const {
    const OverlapModel& overlap = options_.overlap;
    const double own = ready + overlap.per_collective * (label.collectives + collectives) + overlap.slowdown * CommunicationBefore(label);
    return std::max(own, label.finish) + all_reduce_.Seconds(bytes, collectives);
  }

  // The last bucket, if it begins at a position.
  struct Rest {
    int64_t bytes = 0;
    int collectives = 0;
    double ready = 0;
    bool allowed = false;
  };
  Rest RestFrom(int position) const {
    Rest rest;
    uint64_t groups = step_.unused_groups;
    rest.ready = At(computed_, position);
    for (auto holder = std::lower_bound(holders_.begin(), holders_.end(), position); holder != holders_.end(); ++holder) {
      groups |= Node(*holder).parameter_groups;
      rest.ready = At(computed_, *holder + 1);
    }
    if (step_.unused_groups != 0) rest.ready = computed_.back();
    rest.bytes = bytes_.back() - At(bytes_, position) + step_.unused_bytes;
    rest.collectives = std::popcount(groups);
    const bool holds = !holders_.empty() && holders_.back() >= position;
    rest.allowed = (holds || position == 0) && Fits(size_, rest.bytes);
    return rest;
  }

  // When the step ends, from the beginning of backward, if the last bucket follows the label; as PredictTimeline has it.
  double End(const Label& label, const Rest& rest) const {
    const double finish = Finish(label, rest.ready, rest.bytes, rest.collectives);
    const double seconds = all_reduce_.Seconds(rest.bytes, rest.collectives), start = finish - seconds;
    const OverlapModel& overlap = options_.overlap;
    double end =
        computed_.back() + overlap.per_collective * (label.collectives + rest.collectives) + overlap.slowdown * CommunicationBefore(label);
    if (end > start) end += SlowedBy(overlap, seconds, end - start);
    return std::max(end, finish);
  }

  double Allowed() const { return best_ + std::max(options_.tolerance * computed_.back(), 1e-12 * best_); }

  // Adds the labels that are reached from those of `begin` by one bucket.
  void Extend(int begin) {
    const std::vector<int> from = At(at_, begin);
    if (from.empty()) return;
    if (const Rest& rest = At(rest_, begin); rest.allowed) {
      for (const int index : from) best_ = std::min(best_, End(labels_[static_cast<std::size_t>(index)], rest));
    }
    uint64_t groups = 0;
    double ready = At(computed_, begin);
    std::size_t next_holder = static_cast<std::size_t>(std::lower_bound(holders_.begin(), holders_.end(), begin) - holders_.begin());
    for (; next_holder < candidates_.size(); ++next_holder) {
      const int holder = holders_[next_holder];
      groups |= Node(holder).parameter_groups;
      ready = At(computed_, holder + 1);
      for (const int end : candidates_[next_holder]) {
        if (end <= begin || end < At(legal_from_, begin)) continue;
        const int64_t bytes = At(bytes_, end) - At(bytes_, begin);
        if (!Fits(end, bytes)) continue;
        const int collectives = std::popcount(groups);
        for (const int index : from) {
          const Label& label = labels_[static_cast<std::size_t>(index)];
          Add({Finish(label, ready, bytes, collectives), label.collectives + collectives, label.buckets + 1, end, index});
        }
      }
    }
  }

  // Unless another label at its position is no worse in both.
  void Add(const Label& label) {
    // What is left to send has to be sent.
    const Rest& rest = At(rest_, label.position);
    if (label.finish + all_reduce_.Seconds(rest.bytes, 0) > Allowed()) return;
    std::vector<int>& here = at_[static_cast<std::size_t>(label.position)];
    const auto beats = [](const Label& a, const Label& b) {
      if (a.finish != b.finish || a.collectives != b.collectives) return a.finish <= b.finish && a.collectives <= b.collectives;
      return a.buckets <= b.buckets;
    };
    for (const int other : here) {
      if (beats(labels_[static_cast<std::size_t>(other)], label)) return;
    }
    here.erase(std::remove_if(here.begin(), here.end(), [&](int other) { return beats(label, labels_[static_cast<std::size_t>(other)]); }),
               here.end());
    here.push_back(static_cast<int>(labels_.size()));
    labels_.push_back(label);
  }

  std::vector<int> BordersOf(int index) const {
    std::vector<int> borders;
    for (; index > 0; index = labels_[static_cast<std::size_t>(index)].before) {
      borders.push_back(labels_[static_cast<std::size_t>(index)].position);
    }
    std::reverse(borders.begin(), borders.end());
    return borders;
  }

  // The best way to end: each label with the rest of the graph as its last bucket.
  absl::StatusOr<AutoBorders> Best() const {
    struct Ending {
      double step;
      int buckets;
      int label;
    };
    std::vector<Ending> endings;
    for (std::size_t i = 0; i < labels_.size(); ++i) {
      const Rest& rest = At(rest_, labels_[i].position);
      if (rest.allowed) endings.push_back({End(labels_[i], rest), labels_[i].buckets + 1, static_cast<int>(i)});
    }
    if (endings.empty()) return TooLittleMemory();
    const double allowed = Allowed();
    const Ending* chosen = nullptr;
    for (const Ending& ending : endings) {
      if (ending.step > allowed) continue;
      if (chosen == nullptr || ending.buckets < chosen->buckets || (ending.buckets == chosen->buckets && ending.step < chosen->step)) {
        chosen = &ending;
      }
    }
    AutoBorders result;
    result.borders = EarliestBorders(BordersOf(chosen->label));
    result.timeline = PredictTimeline(step_, all_reduce_, result.borders, options_.overlap);
    if (options_.memory_limit_bytes > 0 && result.timeline.peak_bytes > options_.memory_limit_bytes) return TooLittleMemory();
    return result;
  }

  // The same buckets, each ending right after its last parameter where that is allowed: a compiled piece gives its gradients when all of it
  // has run.
  std::vector<int> EarliestBorders(std::vector<int> borders) const {
    for (std::size_t k = 0; k < borders.size(); ++k) {
      const int begin = k == 0 ? 0 : borders[k - 1];
      const int holder = *(std::lower_bound(holders_.begin(), holders_.end(), borders[k]) - 1);
      for (int position = std::max(holder + 1, At(legal_from_, begin)); position < borders[k]; ++position) {
        const bool next_is_legal = k + 1 == borders.size() || borders[k + 1] >= At(legal_from_, position);
        if (!next_is_legal || !Fits(position, At(bytes_, position) - At(bytes_, begin))) continue;
        borders[k] = position;
        break;
      }
    }
    return borders;
  }

  absl::Status TooLittleMemory() const {
    // The smallest buckets need the least.
    std::vector<int> borders;
    int begin = 0;
    for (const std::vector<int>& gap : candidates_) {
      for (const int position : gap) {
        if (position <= begin || position < At(legal_from_, begin)) continue;
        borders.push_back(position);
        begin = position;
        break;
      }
    }
    const int64_t least = PredictTimeline(step_, all_reduce_, borders, options_.overlap).peak_bytes;
    return absl::ResourceExhaustedError(absl::StrCat("no buckets fit in memory_limit_bytes (", options_.memory_limit_bytes,
                                                     "): with the smallest ones a rank needs ", least, " bytes"));
  }

  const StepModel& step_;
  const AllReduceModel& all_reduce_;
  const AutoBordersOptions& options_;
  const int size_;
  std::vector<double> computed_;  // backward before each position
  std::vector<int64_t> bytes_;    // of parameters before each position
  std::vector<int> holders_;      // positions with parameters
  std::vector<int> legal_from_;
  std::vector<Rest> rest_;
  double best_ = kNever;                      // end of the best step so far
  std::vector<std::vector<int>> candidates_;  // borders after each holder
  std::vector<Label> labels_;
  std::vector<std::vector<int>> at_;  // labels by position
};

}  // namespace

absl::StatusOr<AutoBorders> FindBorders(const StepModel& step, const AllReduceModel& all_reduce, const AutoBordersOptions& options) {
  return Search(step, all_reduce, options).Run();
}

}  // namespace ddpopt
