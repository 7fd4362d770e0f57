#include "ddpopt/distributed/group_monitor.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace ddpopt {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// A rank that has told nothing for this many intervals doesn't answer.
constexpr int kSilentIntervals = 4;
// How long the rank with the store stays for the others to see why it failed, and for them to leave when it does itself.
constexpr Milliseconds kLinger(2500);
constexpr Milliseconds kFarewell(2000);
constexpr std::size_t kMaxNamed = 8;  // ranks in one message
constexpr char kDifferenceKey[] = "ddpopt/monitor/difference";
// Rank 0's hashes, among which the others look for the first that they don't have, and the place that each has found.
constexpr char kAskedKey[] = "ddpopt/monitor/asked";
std::string AnswerKey(int rank) { return absl::StrCat("ddpopt/monitor/answer/", rank); }
constexpr int kAnswerIntervals = 4;

std::string GoneKey(int rank) { return absl::StrCat("ddpopt/monitor/gone/", rank); }

std::string Key(int rank) { return absl::StrCat("ddpopt/monitor/", rank); }
std::string Seconds(double milliseconds) { return absl::StrFormat("%.1f s", milliseconds / 1000); }

// What a rank tells: lines of beat, number of the newest collective, whether it runs, milliseconds since it began or ended, end, its text,
// history; then the reason of the end.
struct Report {
  bool known = false;
  bool alive = false;  // it told something while this rank watched
  uint64_t beat = 0;
  uint64_t number = 0;
  bool running = false;
  int64_t milliseconds = 0;
  std::string end;  // "", "left", "failed"
  std::string text;
  std::string history;
  std::string reason;
};

std::string Print(const Report& report) {
  return absl::StrCat(report.beat, "\n", report.number, "\n", report.running ? 1 : 0, "\n", report.milliseconds, "\n", report.end, "\n",
                      report.text, "\n", report.history, "\n", report.reason);
}

Report Parse(const std::string& text) {
  Report report;
  const std::vector<std::string> lines = absl::StrSplit(text, absl::MaxSplits('\n', 7));
  int running = 0;
  if (lines.size() != 8 || !absl::SimpleAtoi(lines[0], &report.beat) || !absl::SimpleAtoi(lines[1], &report.number) ||
      !absl::SimpleAtoi(lines[2], &running) || !absl::SimpleAtoi(lines[3], &report.milliseconds)) {
    return report;
  }
  report.known = true;
  report.running = running != 0;
  report.end = lines[4];
  report.text = lines[5];
  report.history = lines[6];
  report.reason = lines[7];
  return report;
}

}  // namespace

struct GroupMonitor::Shared : std::enable_shared_from_this<GroupMonitor::Shared> {
  Options options;
  c10::intrusive_ptr<c10d::Store> store;

  std::mutex mutex;
  std::condition_variable changed;
  struct Collective {
    CollectiveInfo info;
    Clock::time_point begin;
  };
  uint64_t last = 0;                       // number of the newest
  std::map<uint64_t, Collective> running;  // in the order of their numbers
  Collective newest;
  Clock::time_point last_end = Clock::now();
  std::function<std::string(const CollectiveInfo&)> describe;
  std::string end, reason;
  CollectiveHistory history;
  std::string difference;  // between ranks, once it is known
  uint64_t beat = 0;
  bool stop = false, stopped = false;
  bool thrown = false;                // this rank leaves because of an exception, which is still to be told of
  uint64_t wanted = 0, answered = 0;  // readings of the others' reports
  std::vector<Report> reports;
  std::string store_error;  // of the newest talk with the store; empty if it went well

  // Of the thread that talks with the store.
  uint64_t compared = 0;                       // rank 0: of the history, with all ranks
  std::vector<uint64_t> agreed;                // rank 0: with each rank, until which position of the history
  std::map<int, HistoryComparison> differing;  // rank 0: by rank
  Clock::time_point answers_end;
  bool has_answered = false;

  const CollectiveInfo& InfoLocked(uint64_t number) const {
    const auto it = running.find(number);
    return it == running.end() ? newest.info : it->second.info;
  }
  // As all ranks say it.
  std::string PlainNameLocked(uint64_t number) const { return absl::StrCat("#", number, " (", CollectiveText(InfoLocked(number)), ")"); }
  std::string NameLocked(uint64_t number) const {
    const std::string more = describe ? describe(InfoLocked(number)) : std::string();
    return absl::StrCat("#", number, " (", CollectiveText(InfoLocked(number)), more.empty() ? "" : absl::StrCat(", ", more), ")");
  }

  // The oldest that runs is what the rank is in; else the newest that ended.
  Report OwnLocked() {
    Report report;
    report.beat = ++beat;
    report.running = !running.empty();
    report.number = report.running ? running.begin()->first : last;
    const Clock::time_point since = report.running ? running.begin()->second.begin : last_end;
    report.milliseconds = std::chrono::duration_cast<Milliseconds>(Clock::now() - since).count();
    report.end = end;
    report.text = report.number == 0 ? "" : PlainNameLocked(report.number);
    report.history = history.Summary();
    report.reason = reason;
    return report;
  }

  // Rank 0 compares what the others began with its own, and tells all.
  void CompareWithOthers() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      if (!difference.empty() || options.world_size == 1) return;
    }
    if (options.rank == 0) {
      if (differing.empty()) FindDiffering();
      if (!differing.empty()) NameDiffering();
      return;
    }
    if (!store->check({kAskedKey})) return;
    if (!has_answered) {
      const std::string asked = Get(kAskedKey);
      std::string answer;
      {
        std::lock_guard<std::mutex> lock(mutex);
        if (const auto place = history.FirstDifference(asked)) answer = absl::StrCat(place->position, " ", place->text);
      }
      Set(AnswerKey(options.rank), answer);
      has_answered = true;
    }
    if (!store->check({kDifferenceKey})) return;
    std::string found = Get(kDifferenceKey);
    std::lock_guard<std::mutex> lock(mutex);
    difference = std::move(found);
  }

  // Of rank 0: those whose summaries differ from its own; asks them where, unless that shows already.
  void FindDiffering() {
    std::string mine;
    uint64_t size = 0;
    {
      std::lock_guard<std::mutex> lock(mutex);
      size = history.size();
      if (size == compared) return;
      mine = history.Summary();
    }
    agreed.resize(options.world_size, 0);
    const std::vector<Report> all = ReadAll();
    uint64_t from = UINT64_MAX, until = 0;
    for (int rank = 1; rank < options.world_size && differing.size() < kMaxNamed; ++rank) {
      HistoryComparison found = CompareHistories(mine, all[rank].history, agreed[rank]);
      agreed[rank] = found.same_until;
      if (found.differs_at == 0) continue;
      if (found.first_text.empty()) {
        from = std::min(from, found.same_until);
        until = std::max(until, found.differs_at);
      }
      differing.emplace(rank, std::move(found));
    }
    if (differing.empty()) {
      // The others may tell later what they began; until then this is done again.
      if (std::all_of(agreed.begin() + 1, agreed.end(), [&](uint64_t until_there) { return until_there >= size; })) compared = size;
      return;
    }
    std::string asked;
    if (until != 0) {
      std::lock_guard<std::mutex> lock(mutex);
      asked = history.Hashes(from, until);
    }
    Set(kAskedKey, asked);
    answers_end = Clock::now() + (until == 0 ? 0 : kAnswerIntervals) * options.interval;
  }

  // Of rank 0: when all have said where, or have had the time to, everyone is told.
  void NameDiffering() {
    bool complete = true;
    for (auto& [rank, found] : differing) {
      if (!found.first_text.empty()) continue;
      if (!store->check({AnswerKey(rank)})) {
        complete = false;
        continue;
      }
      const std::string answer = Get(AnswerKey(rank));
      uint64_t position = 0;
      const std::size_t space = answer.find(' ');
      if (space == std::string::npos || !absl::SimpleAtoi(answer.substr(0, space), &position)) continue;
      std::lock_guard<std::mutex> lock(mutex);
      found.first_text = history.TextAt(position);
      found.second_text = answer.substr(space + 1);
    }
    if (!complete && Clock::now() < answers_end) return;
    std::vector<std::string> texts;
    for (const auto& [rank, found] : differing) {
      texts.push_back(found.first_text.empty() ? absl::StrCat("after the first ", found.same_until, ", and not later than the ",
                                                              found.differs_at, "th, rank 0 and rank ", rank, " ran different ones")
                                               : absl::StrCat("rank 0 ran ", found.first_text, ", rank ", rank, " ", found.second_text));
    }
    std::string text = absl::StrJoin(texts, "; ");
    Set(kDifferenceKey, text);
    std::lock_guard<std::mutex> lock(mutex);
    difference = std::move(text);
  }

  void Set(const std::string& key, const std::string& text) { store->set(key, std::vector<uint8_t>(text.begin(), text.end())); }
  // Of a key that is there.
  std::string Get(const std::string& key) {
    const std::vector<uint8_t> bytes = store->get(key);
    return std::string(bytes.begin(), bytes.end());
  }

  void Publish() {
    std::string text;
    {
      std::lock_guard<std::mutex> lock(mutex);
      text = Print(OwnLocked());
    }
    Set(Key(options.rank), text);
  }

  std::vector<Report> ReadAll() {
    std::vector<Report> all(options.world_size);
    for (int rank = 0; rank < options.world_size; ++rank) {
      if (rank == options.rank || !store->check({Key(rank)})) continue;
      all[rank] = Parse(Get(Key(rank)));
    }
    return all;
  }

  // Reads until everyone was heard of again, or has had the time to be.
  std::vector<Report> Watch() {
    const std::vector<Report> first = ReadAll();
    const Clock::time_point end_of_watch = Clock::now() + kSilentIntervals * options.interval;
    while (true) {
      std::this_thread::sleep_for(std::min(options.interval, Milliseconds(100)));
      Publish();
      std::vector<Report> all = ReadAll();
      bool complete = true;
      for (int rank = 0; rank < options.world_size; ++rank) {
        all[rank].alive = all[rank].known && all[rank].beat != first[rank].beat;
        complete = complete && (rank == options.rank || all[rank].alive || !all[rank].end.empty());
      }
      if (complete || Clock::now() >= end_of_watch) return all;
    }
  }

  // Of rank 0, with which the store goes. Ranks that need it to see why this one failed are waited for until they have failed or left; when
  // this one leaves, until they ask no more, since c10d complains on standard error of a store that has gone. In both cases for a while.
  // But once another has failed, nobody waits: it may be because this rank leaves, and what this one has to say of that comes first.
  void AwaitOthersEnd(bool failed) {
    const Clock::time_point latest = Clock::now() + (failed ? kLinger : kFarewell);
    try {
      while (Clock::now() < latest) {
        bool all_ended = true;
        const std::vector<Report> all = ReadAll();
        for (int rank = 1; rank < options.world_size; ++rank) {
          if (!failed && all[rank].end == "failed") return;
          all_ended = all_ended && (failed ? !all[rank].end.empty() : store->check({GoneKey(rank)}));
        }
        if (all_ended) return;
        std::this_thread::sleep_for(Milliseconds(5));
      }
    } catch (const std::exception&) {
      // The store is of no more use.
    }
  }

  void Run() {
    std::string broken;
    while (true) {
      uint64_t want = 0;
      bool last_time = false;  // what is told after this one has begun to stop is the last
      {
        std::unique_lock<std::mutex> lock(mutex);
        // Who waits for answers looks more often.
        const Milliseconds sleep = differing.empty() || !difference.empty() ? options.interval : options.interval / 10;
        changed.wait_for(lock, sleep, [&] { return stop || wanted > answered; });
        want = wanted > answered ? wanted : 0;
        last_time = stop;
      }
      std::vector<Report> read;
      // A connection that broke stays so.
      if (broken.empty()) {
        try {
          Publish();
          CompareWithOthers();
          if (want != 0) read = Watch();
          if (last_time && options.rank != 0) Set(GoneKey(options.rank), "");
        } catch (const std::exception& e) {
          broken = ExceptionMessage(e);
          if (broken.empty()) broken = "it failed";
        }
      }
      std::unique_lock<std::mutex> lock(mutex);
      store_error = broken;
      if (want != 0) {
        reports = std::move(read);
        answered = want;
        changed.notify_all();
      }
      if (!last_time) continue;
      const bool failed = end == "failed", linger = options.rank == 0 && broken.empty() && (failed || !thrown);
      lock.unlock();
      if (linger) AwaitOthersEnd(failed);
      lock.lock();
      stopped = true;
      changed.notify_all();
      return;
    }
  }
};

std::shared_ptr<GroupMonitor> GroupMonitor::Create(c10::intrusive_ptr<c10d::Store> store, Options options) {
  auto shared = std::make_shared<Shared>();
  shared->store = std::move(store);
  shared->options = std::move(options);
  // It owns what it uses: a call to the store may never come back.
  std::thread([shared] { shared->Run(); }).detach();
  return std::shared_ptr<GroupMonitor>(new GroupMonitor(std::move(shared)));
}

GroupMonitor::~GroupMonitor() {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  if (shared_->end.empty()) shared_->end = "left";
  shared_->stop = true;
  shared_->thrown = std::uncaught_exceptions() > 0;
  shared_->describe = nullptr;
  shared_->changed.notify_all();
  const Milliseconds linger = shared_->options.rank != 0 ? Milliseconds(0) : shared_->end == "failed" ? kLinger : kFarewell;
  shared_->changed.wait_for(lock, std::chrono::seconds(1) + linger, [&] { return shared_->stopped; });
}

uint64_t GroupMonitor::Begin(const CollectiveInfo& info) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->newest = {info, Clock::now()};
  shared_->running[++shared_->last] = shared_->newest;
  if (shared_->options.compare) shared_->history.Add(shared_->last, info);
  return shared_->last;
}

void GroupMonitor::End(uint64_t number) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->running.erase(number);
  shared_->last_end = Clock::now();
}

void GroupMonitor::Fail(uint64_t number, const std::string& why) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  if (shared_->end.empty()) {
    shared_->end = "failed";
    shared_->reason = number == 0 ? why : absl::StrCat(shared_->NameLocked(number), ": ", why);
  }
  shared_->running.erase(number);
  shared_->last_end = Clock::now();
}

void GroupMonitor::Leave() {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  if (shared_->end.empty()) shared_->end = "left";
  shared_->changed.notify_all();
}

std::string GroupMonitor::Difference() const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->difference.empty() ? "" : absl::StrCat("collectives differ between ranks: ", shared_->difference);
}

int GroupMonitor::outstanding() const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  return static_cast<int>(shared_->running.size());
}

uint64_t GroupMonitor::oldest_outstanding() const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->running.empty() ? 0 : shared_->running.begin()->first;
}

std::string GroupMonitor::Name(uint64_t number) const {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->NameLocked(number);
}

void GroupMonitor::set_describe(std::function<std::string(const CollectiveInfo&)> describe) {
  std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->describe = std::move(describe);
}

std::string GroupMonitor::Diagnose(uint64_t number) {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  const Options& options = shared_->options;
  if (options.world_size == 1) return "";
  const uint64_t mine = ++shared_->wanted;
  shared_->changed.notify_all();
  const Milliseconds patience = kSilentIntervals * options.interval + Milliseconds(1500);
  const bool answered = shared_->changed.wait_for(lock, patience, [&] { return shared_->answered >= mine; });
  if (!answered || !shared_->store_error.empty()) {
    return absl::StrCat("rank 0's store at ", options.master, options.rank == 0 ? " (this process)" : "",
                        " doesn't answer: rank 0 has ended, is stopped, or can't be reached");
  }
  std::vector<std::string> named;
  for (int rank = 0; rank < options.world_size; ++rank) {
    if (rank == options.rank) continue;
    const Report& report = shared_->reports[rank];
    const std::string at = report.number == 0 ? std::string("it has begun no collective")
                           : report.running
                               ? absl::StrCat("it is in ", report.text, " since ", Seconds(static_cast<double>(report.milliseconds)))
                               : absl::StrCat("it ended ", report.text, " ", Seconds(static_cast<double>(report.milliseconds)), " ago");
    if (report.end == "left") {
      named.push_back(absl::StrCat("rank ", rank, " has taken its process group down: ", at));
    } else if (report.end == "failed") {
      named.push_back(absl::StrCat("rank ", rank, " failed in ", report.reason));
    } else if (!report.alive) {
      named.push_back(absl::StrCat("rank ", rank, " doesn't answer (killed, stopped, ended or cut off)",
                                   report.known ? absl::StrCat("; at last ", at) : ""));
    } else if (number == 0) {
      named.push_back(absl::StrCat("rank ", rank, " answers through rank 0's store at ", options.master, ": ", at));
    } else if (report.number < number || (report.number == number && !report.running)) {
      named.push_back(absl::StrCat("rank ", rank, " has not come: ", at));
    } else if (report.number == number && report.text != shared_->PlainNameLocked(number)) {
      named.push_back(absl::StrCat("rank ", rank, " runs another collective: ", at));
    } else if (report.number > number) {
      named.push_back(absl::StrCat("rank ", rank, " is further: ", at));
    }
  }
  if (named.empty()) {
    std::vector<int> others;
    for (int rank = 0; rank < options.world_size && others.size() <= kMaxNamed; ++rank) {
      if (rank != options.rank) others.push_back(rank);
    }
    const bool many = others.size() > kMaxNamed;
    if (many) others.resize(kMaxNamed);
    return absl::StrCat("all ranks are in it (", others.size() == 1 ? "rank " : "ranks ", absl::StrJoin(others, ", "), many ? ", ..." : "",
                        others.size() == 1 ? " answers" : " answer", " through rank 0's store at ", options.master,
                        "); the network between them was cut, or is too slow");
  }
  const std::size_t more = named.size() > kMaxNamed ? named.size() - kMaxNamed : 0;
  named.resize(named.size() - more);
  return absl::StrCat(absl::StrJoin(named, "; "), more > 0 ? absl::StrCat("; and ", more, " more ranks") : "");
}

}  // namespace ddpopt
