#ifndef DDPOPT_AOT_EXECUTOR_H_
#define DDPOPT_AOT_EXECUTOR_H_

// Runs a graph of operators below autograd, again and again, by a plan that is made once.
//
//   const auto executor = Executor::Compile(graph);
//   std::vector<at::Tensor> results = executor->Run({x, w});      // within BelowAutograd
//
// The plan knows each operator's kernel and arguments, so that nothing is looked up; what lives only within a run has its place in a block of
// memory (workspace.h), where operators write into it, one value where another has died, and in place of a dying operand where that is safe;
// views of it are made once. Results are allocated for each run and are nobody else's. Values, strides and shared memory are as the Interpreter's,
// bit for bit.
//
// Whatever the plan can't do, the Interpreter does: graphs with other devices than the CPU, nested graphs or values that are no tensors; calls
// with other inputs than the graph's metadata says, with fakes, or under modes.

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct ExecutionPlan;

struct ExecutorOptions {
  // What becomes of an element of the output.
  enum class Fate : std::uint8_t {
    kResult,    // a tensor like any other
    kTogether,  // the same, in memory that is allocated for several at once and freed with the last: for those that come and go together.
                // A tensor of its own: copied, if the graph gives an input, or the same value twice
    kSaved,     // one of many that a later run takes and frees: it may share its storage with those that are freed at about the same time
  };
  // Of each element; kResult for those that aren't told.
  std::vector<Fate> fates;
  // When what is kSaved is freed, as numbers that grow, by element.
  std::vector<int> freed_at;
  // Overwrites the workspace after each run, for tests.
  bool poison = false;
};

class Executor {
 public:
  // What a run has in memory, in bytes, besides what operators use inside.
  struct MemoryUse {
    int64_t workspace = 0;
    // After each step, the bytes that the run has allocated and not freed: results, saved values and what kernels return.
    std::vector<int64_t> live;
    // For each input, the step after which the run lets it go.
    std::vector<int> inputs_freed;
    // What the elements of the output hold in the end. Those of one group (>= 0) are freed together.
    struct Output {
      int64_t bytes = 0;
      int group = -1;
    };
    std::vector<Output> outputs;
  };

  // The graph's output is one tuple of tensors, None among them. It must not be edited afterwards.
  static std::shared_ptr<const Executor> Compile(std::shared_ptr<const fx::GraphModule> graph, ExecutorOptions options = {});
  ~Executor();

  // One tensor for each placeholder; they are freed as they are used, unless somebody else holds them. Undefined ones where the output has
  // None. Thread-safe. Throws c10::Error, naming the node.
  //
  // `targets`: for elements of the output, tensors in whose memory they are to be computed; undefined, or not as many, for those that are
  // allocated. One is used where the plan allocates the element for itself and it lies the same way; else the element lies elsewhere. Nothing that
  // the graph reads may lie in them.
  std::vector<at::Tensor> Run(std::vector<at::Tensor> inputs, std::vector<at::Tensor> targets = {}) const;

  const fx::GraphModule& graph() const { return *graph_; }
  // Null, with the reason, if the graph is always interpreted.
  const ExecutionPlan* plan() const { return plan_.get(); }
  const std::string& why_interpreted() const { return why_interpreted_; }
  // Precondition: plan() != nullptr.
  MemoryUse memory_use() const;

 private:
  class Frame;
  class FrameLease;
  Executor(std::shared_ptr<const fx::GraphModule> graph, ExecutorOptions options);
  bool CanRun(const std::vector<at::Tensor>& inputs) const;
  std::vector<at::Tensor> Interpret(std::vector<at::Tensor> inputs) const;
  void RunSteps(Frame& frame) const;
  void RunStep(Frame& frame, int index, bool observed) const;
  void PushArguments(Frame& frame, int index) const;
  bool WriteResults(Frame& frame, int index, bool observed) const;

  const std::shared_ptr<const fx::GraphModule> graph_;
  const ExecutorOptions options_;
  std::shared_ptr<const ExecutionPlan> plan_;
  std::string why_interpreted_;
  struct Need;
  std::unique_ptr<Need> need_;
  // By step, whether its kernel for given memory doesn't keep to it; its results are copied from then on.
  std::unique_ptr<std::atomic<bool>[]> copied_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Frame>> idle_;
};

}  // namespace ddpopt

#endif  // DDPOPT_AOT_EXECUTOR_H_
