#ifndef DDPOPT_DDP_JOIN_H_
#define DDPOPT_DDP_JOIN_H_

// Training on inputs of which ranks have different numbers:
//
//   auto join = ddp->join();                       // StatusOr; on every rank
//   for (auto& [x, y] : batches) {                 // as many as this rank has, at least one
//     optimizer.zero_grad();
//     loss(ddp->forward(x), y).backward();         // one backward for each forward
//     optimizer.step();
//   }
//   (*join)->Finish();                             // until all ranks are done
//
// A rank that has no more inputs takes part in the others' reductions with zeros until they are done too; then all get the parameters and
// buffers of one that trained longest (optimizer states stay each rank's own). What it has accumulated under no_sync goes into the next
// reduction, and gradients of earlier steps, where they are not cleared, keep their weight. Costs one small all-reduce in each forward.
// Buffers come from the first rank that still trains. After Finish gradients are each rank's own: clear them.

#include <memory>
#include <utility>

namespace ddpopt {

class UnevenInputs;

struct JoinOptions {
  // By what sums of gradients are divided: the number of ranks, so that each input weighs the same; false: of those that still train.
  bool divide_by_initial_world_size = true;
  // Instead of going on, all ranks throw when the first has no more inputs.
  bool throw_on_early_termination = false;
};

class JoinScope {
 public:
  explicit JoinScope(std::shared_ptr<UnevenInputs> inputs) : inputs_(std::move(inputs)) {}
  // Warns if Finish was not called: the other ranks then wait in vain, until their deadline.
  ~JoinScope();
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

  // Collective; ends the scope. Throws c10::Error: another rank failed, the inputs have ended early (if so asked), or a rank had none at
  // all.
  void Finish();

 private:
  std::shared_ptr<UnevenInputs> inputs_;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_JOIN_H_
