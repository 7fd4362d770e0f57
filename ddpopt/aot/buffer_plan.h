#ifndef DDPOPT_AOT_BUFFER_PLAN_H_
#define DDPOPT_AOT_BUFFER_PLAN_H_

// Where in one block of memory values lie that live at different times.
//
//   BufferPlan plan = PlanBuffers({{4096, 0, 2}, {4096, 3, 5}});     // offsets {0, 0}, bytes 4096

#include <cstdint>
#include <vector>

namespace ddpopt {

struct BufferRequest {
  int64_t bytes = 0;
  // The steps at which it is there, both included.
  int first = 0;
  int last = 0;
};

struct BufferPlan {
  std::vector<int64_t> offsets;  // in bytes, multiples of kBufferAlignment, as many as requests
  int64_t bytes = 0;             // of the block
};

// Of c10's allocator.
inline constexpr int64_t kBufferAlignment = 64;

int64_t AlignBytes(int64_t bytes);

// Requests whose steps overlap get memory that doesn't. The largest are placed first, each into the tightest gap between those that are there
// at the same time. Requests of no bytes lie at 0.
BufferPlan PlanBuffers(const std::vector<BufferRequest>& requests);

}  // namespace ddpopt

#endif  // DDPOPT_AOT_BUFFER_PLAN_H_
