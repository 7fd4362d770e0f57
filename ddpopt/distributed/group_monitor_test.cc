// Monitors of several ranks in one process, on one store. What ranks hear of each other in processes of their own: group_faults_test.

#include "ddpopt/distributed/group_monitor.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "torch/csrc/distributed/c10d/HashStore.hpp"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Milliseconds = std::chrono::milliseconds;

constexpr int kRanks = 3;

std::shared_ptr<GroupMonitor> Monitor(const c10::intrusive_ptr<c10d::Store>& store, int rank) {
  return GroupMonitor::Create(store, {rank, kRanks, "here", Milliseconds(20)});
}

void Sum(GroupMonitor& monitor, int64_t elements = 4) { monitor.End(monitor.Begin({"allreduce", elements, c10::kFloat})); }

TEST(GroupMonitor, NamesADifferenceThatThousandsHaveFollowed) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::shared_ptr<GroupMonitor>> monitors;
  for (int rank = 0; rank < kRanks; ++rank) monitors.push_back(Monitor(store, rank));
  for (int i = 1; i <= 10'000; ++i) {
    for (int rank = 0; rank < kRanks; ++rank) Sum(*monitors[rank], rank == 2 && i == 777 ? 5 : 4);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    while (monitors[rank]->Difference().empty()) {
      for (const auto& monitor : monitors) Sum(*monitor);
      std::this_thread::sleep_for(Milliseconds(1));
    }
    EXPECT_EQ(monitors[rank]->Difference(),
              "collectives differ between ranks: rank 0 ran #777 allreduce of 4 Float, rank 2 #777 allreduce of 5 Float");
  }
}

TEST(GroupMonitor, ADifferenceIsToldWhenTheOtherRankCannotSayWhere) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  {
    const auto gone = Monitor(store, 1);  // tells what it began when it goes, and answers nothing
    for (int i = 1; i <= 1000; ++i) Sum(*gone, i == 77 ? 5 : 4);
  }
  const auto monitor = Monitor(store, 0);
  for (int i = 1; i <= 1000; ++i) Sum(*monitor);
  while (monitor->Difference().empty()) std::this_thread::sleep_for(Milliseconds(1));
  EXPECT_THAT(monitor->Difference(), AllOf(HasSubstr("after the first "), HasSubstr("rank 0 and rank 1 ran different ones")));
}

TEST(GroupMonitor, TheLastCollectiveIsComparedToo) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto first = Monitor(store, 0);
  Sum(*first);
  std::this_thread::sleep_for(Milliseconds(30));
  // Rank 0 begins nothing more.
  const auto second = Monitor(store, 1);
  second->End(second->Begin({"barrier"}));
  while (first->Difference().empty()) std::this_thread::sleep_for(Milliseconds(1));
  EXPECT_THAT(first->Difference(), HasSubstr("rank 0 ran #1 allreduce of 4 Float, rank 1 #1 barrier"));
}

}  // namespace
}  // namespace ddpopt
