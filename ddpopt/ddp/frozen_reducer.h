#ifndef DDPOPT_DDP_FROZEN_REDUCER_H_
#define DDPOPT_DDP_FROZEN_REDUCER_H_

// c10d::Reducer with buckets that stay as they were given, the times at which they were reduced, and the names of the parameters that a
// backward left out. Includes c10d's headers: for .cc files of this package only.
//
//   auto reducer = FrozenReducer(parameters, names, {{2, 3}, {0, 1}}, group);   // backward order: bucket 0 is reduced first
//   reducer.PrepareForward();          // then forward, then:
//   reducer.PrepareBackward();         // then backward, and at its end:
//   if (!reducer.Finished()) throw ... reducer.UnreadyParameters() ...;

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ddpopt/distributed/device_streams.h"
#include "torch/csrc/distributed/c10d/reducer.hpp"

namespace ddpopt {

class FrozenReducer : public c10d::Reducer {
 public:
  // On the streams of the bucket's device.
  struct Times {
    StreamStamp launched;
    StreamStamp finished;
  };
  struct BucketContent {
    int64_t bytes = 0;
    std::vector<std::size_t> indices;  // of parameters
  };

  // Every parameter must be in exactly one bucket; a bucket holds one dtype and one device (throws c10::Error otherwise).
  // Installs hooks on the parameters' gradient accumulators until destroyed. With find_unused_parameters, a parameter that the outputs don't
  // depend on counts as ready from the start; one that no rank used keeps the gradient that it had.
  FrozenReducer(std::vector<at::Tensor> parameters, std::vector<std::string> names, std::vector<std::vector<std::size_t>> buckets,
                c10::intrusive_ptr<c10d::ProcessGroup> group, bool find_unused_parameters = false);

  void PrepareForward() { prepare_for_forward(); }
  // Forgets the readiness and times of the last backward. The outputs are needed to find unused parameters only.
  void PrepareBackward(const std::vector<at::Tensor>& outputs = {});

  // Whether every bucket was reduced and copied back since PrepareBackward.
  bool Finished() const;
  // Names of the parameters whose gradient has not come since PrepareBackward.
  std::vector<std::string> UnreadyParameters() const;
  // Read back from the base class, in its own order.
  std::vector<BucketContent> Buckets() const;
  // How many forwards the base class was told of.
  int64_t NumPreparedForwards() const;
  // Length of the list from which the base class would rebuild its buckets: zero if frozen.
  std::size_t RebuildListSize() const;
  // Per bucket, of the last backward.
  std::vector<Times> BucketTimes() const;

  // Shared with the communication hook's callbacks, which may outlive the reducer.
  struct Clock {
    mutable std::mutex mutex;
    std::vector<Times> times;
    uint64_t step = 0;
  };

 private:
  std::vector<std::string> names_;
  const bool find_unused_;
  std::shared_ptr<Clock> clock_;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_FROZEN_REDUCER_H_
