#ifndef DDPOPT_DISTRIBUTED_GROUP_MONITOR_H_
#define DDPOPT_DISTRIBUTED_GROUP_MONITOR_H_

// Internal: who is where. Each rank tells the group's store twice a second which collective it is in; when one doesn't end, those who wait
// read what the others told, and say which ranks have not come, have left, or don't answer. And each rank tells what it ran: where these
// differ, which need not end in an error of the collective itself, rank 0 finds it within about a second, and asks the ranks for the place.
//
//   auto monitor = GroupMonitor::Create(store, {rank, world_size, "host:port"});
//   const uint64_t number = monitor->Begin({"allreduce", 1024, at::kFloat});
//   monitor->End(number);
//   throw ... monitor->Diagnose(number);        // "rank 2 has not come: it ended #16 (barrier) 3.2 s ago"
//
// Thread-safe. Collectives are numbered in the order in which they begin, from 1, the same on every rank if these run the same ones.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ddpopt/distributed/collective_history.h"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace ddpopt {

class GroupMonitor {
 public:
  struct Options {
    int rank = 0;
    int world_size = 1;
    std::string master;  // host:port of the store, for messages
    std::chrono::milliseconds interval{500};
    bool compare = true;  // what the ranks run; not where each collective is checked before it starts
  };

  // `store` is a connection of its own: calls to it may hang. The other ranks must have their monitors on the same one.
  static std::shared_ptr<GroupMonitor> Create(c10::intrusive_ptr<c10d::Store> store, Options options);
  // Tells the others that this rank leaves. Rank 0, with which the store goes, waits up to two seconds for them to leave too. Bounded,
  // whatever the store does.
  ~GroupMonitor();
  GroupMonitor(const GroupMonitor&) = delete;
  GroupMonitor& operator=(const GroupMonitor&) = delete;

  uint64_t Begin(const CollectiveInfo& info);
  void End(uint64_t number);
  // The collective failed on this rank; the others are told. Number 0: something else did.
  void Fail(uint64_t number, const std::string& why);
  // This rank leaves; the others are told.
  void Leave();
  int outstanding() const;
  uint64_t oldest_outstanding() const;  // 0: none
  // "#17, allreduce of 1024 Float", with the names that describe() gives.
  std::string Name(uint64_t number) const;
  // What else a collective of so many elements is, such as "bucket 2 (fc.weight, fc.bias)"; empty: nothing to say.
  void set_describe(std::function<std::string(const CollectiveInfo&)> describe);

  // How the collectives that ranks have begun differ from each other, as rank 0 has found; empty: not so far. Operations, and what they run on
  // where that must be the same on all ranks.
  std::string Difference() const;

  // What the others do, seen from this rank's collective `number`; 0: from something else, and what each of them is in. Takes up to about
  // four seconds, in which it watches who is alive.
  std::string Diagnose(uint64_t number);

 private:
  struct Shared;
  explicit GroupMonitor(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;  // with the thread that talks to the store
};

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_GROUP_MONITOR_H_
