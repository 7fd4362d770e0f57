#include "ddpopt/aot/buffer_plan.h"

#include <algorithm>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace ddpopt {
namespace {

bool AtOnce(const BufferRequest& a, const BufferRequest& b) { return a.first <= b.last && b.first <= a.last; }

TEST(PlanBuffers, ReusesWhatHasDied) {
  const BufferPlan plan = PlanBuffers({{100, 0, 1}, {100, 1, 2}, {100, 2, 3}, {0, 0, 3}});
  EXPECT_EQ(plan.bytes, 2 * 128);
  EXPECT_EQ(plan.offsets[0], plan.offsets[2]);
  EXPECT_NE(plan.offsets[0], plan.offsets[1]);
}

TEST(PlanBuffers, FillsTheTightestGap) {
  // Two gaps while the last lives: of 640 bytes and of 128.
  const BufferPlan plan = PlanBuffers({{1024, 0, 9}, {640, 0, 3}, {512, 0, 9}, {128, 0, 3}, {120, 0, 9}, {100, 5, 6}});
  EXPECT_EQ(plan.offsets[5], plan.offsets[3]);
}

TEST(PlanBuffers, RandomRequestsNeverMeet) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<BufferRequest> requests;
    for (int i = 0; i < 60; ++i) {
      const int first = static_cast<int>(random() % 40);
      requests.push_back({static_cast<int64_t>(random() % 5000), first, first + static_cast<int>(random() % 8)});
    }
    const BufferPlan plan = PlanBuffers(requests);
    int64_t all = 0, least = 0;
    for (int step = 0; step < 48; ++step) {
      int64_t here = 0;
      for (const BufferRequest& request : requests) here += request.first <= step && step <= request.last ? AlignBytes(request.bytes) : 0;
      least = std::max(least, here);
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      all += AlignBytes(requests[i].bytes);
      EXPECT_EQ(plan.offsets[i] % kBufferAlignment, 0);
      EXPECT_LE(plan.offsets[i] + requests[i].bytes, plan.bytes);
      for (std::size_t k = 0; k < i; ++k) {
        if (requests[i].bytes == 0 || requests[k].bytes == 0 || !AtOnce(requests[i], requests[k])) continue;
        EXPECT_TRUE(plan.offsets[i] + requests[i].bytes <= plan.offsets[k] || plan.offsets[k] + requests[k].bytes <= plan.offsets[i])
            << i << " and " << k;
      }
    }
    EXPECT_LE(plan.bytes, all);
    // Close to what must be there at once.
    EXPECT_LE(plan.bytes, least * 3 / 2);
  }
}

}  // namespace
}  // namespace ddpopt
