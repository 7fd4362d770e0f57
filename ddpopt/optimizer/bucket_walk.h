#ifndef DDPOPT_OPTIMIZER_BUCKET_WALK_H_
#define DDPOPT_OPTIMIZER_BUCKET_WALK_H_

// The walk from the end of a graph to its beginning that both rules of bucket assignment share: a bucket that is full is closed before
// the next node, unless nothing in it is used outside; then it takes the node too, and that is written down.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/container/flat_hash_map.h"
#include "ddpopt/optimizer/bucket_assignment.h"

namespace ddpopt {

class BucketWalk {
 public:
  // For a graph of so many nodes.
  explicit BucketWalk(std::size_t nodes) : buckets_(1) { index_of_.reserve(nodes); }

  // The bucket that is being filled, and how many were filled before it.
  const Bucket& current() const { return buckets_.back(); }
  std::size_t closed() const { return buckets_.size() - 1; }

  // Puts the node into the current bucket, or into a new one if the current is `full` and can be closed. True if it was closed.
  // Nodes come in reverse graph order.
  bool Place(const fx::Node* node, bool full);

  // Adds a parameter to the bucket of the node placed last.
  void Count(std::string name, const at::Tensor& tensor, int64_t bytes);
  // The node placed last of those with parameters: the first of them in the graph. Null without any.
  const fx::Node* first_counting_node() const { return first_counting_node_; }

  // The buckets in graph order. A first one without parameters is merged into its successor.
  BucketAssignment Finish() &&;

 private:
  std::vector<Bucket> buckets_;  // backward order
  absl::flat_hash_map<const fx::Node*, int> index_of_;
  bool used_outside_ = false;  // the current bucket has a value that someone outside of it takes
  const fx::Node* first_counting_node_ = nullptr;
};

// Adds a parameter to a bucket.
void CountInto(Bucket& bucket, std::string name, const at::Tensor& tensor, int64_t bytes);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_BUCKET_WALK_H_
