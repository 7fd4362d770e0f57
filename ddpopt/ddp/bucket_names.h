#ifndef DDPOPT_DDP_BUCKET_NAMES_H_
#define DDPOPT_DDP_BUCKET_NAMES_H_

// Lets errors of collectives name the gradient buckets that these may have been. Private to this package.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "c10/core/ScalarType.h"
#include "ddpopt/distributed/process_group.h"

namespace ddpopt {

struct NamedBucket {
  int64_t elements;
  c10::ScalarType dtype;
  std::string name;  // "bucket 2 (fc.weight, fc.bias)"
};

// While one lives, its buckets are named in the errors of its group. Several may live, also of one group.
class BucketNames {
 public:
  BucketNames(const ProcessGroup& group, std::vector<NamedBucket> buckets);
  ~BucketNames();
  BucketNames(const BucketNames&) = delete;
  BucketNames& operator=(const BucketNames&) = delete;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_BUCKET_NAMES_H_
