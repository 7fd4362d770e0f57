#include "ddpopt/capture/tracer/checkpoint_region.h"

namespace ddpopt {
namespace {

thread_local int depth = 0;
thread_local int64_t entered = 0;

}  // namespace

CheckpointRegion::CheckpointRegion() {
  if (depth++ == 0) ++entered;
}

CheckpointRegion::~CheckpointRegion() { --depth; }

int64_t CheckpointRegion::Current() { return depth == 0 ? -1 : entered; }

}  // namespace ddpopt
