#ifndef DDPOPT_BACKENDS_BACKEND_H_
#define DDPOPT_BACKENDS_BACKEND_H_

// The interface between the DDP optimizer and what compiles a piece of the graph.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "c10/core/ScalarType.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

class GradientTargets;  // ddpopt/aot/gradient_targets.h

// What a compiled piece says of one of its tensor outputs. Its strides may differ from the graph's, all else is the graph's and may be left out.
struct OutputMeta {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // in elements
  absl::optional<c10::ScalarType> dtype = absl::nullopt;
  // The input whose memory the output shares, by index; -1 for none.
  absl::optional<int> aliased_input = absl::nullopt;
};

// Runs one piece. Thread-safe if the backend says so. Throws when run; whoever calls it through an Interpreter sees a c10::Error.
class CompiledPiece : public fx::Callable {
 public:
  // Call gives the outputs of the graph: as many, real tensors for real inputs and fakes for fakes, with the dtypes, devices and shapes of the graph, strides as
  // output_meta says, and sharing memory with inputs and attributes as the graph's do. It writes what the graph writes. SubmodCompiler
  // (ddpopt/optimizer) holds pieces to this.

  // One entry per output of the piece: one for a bare output, one per element for a tuple. nullopt: no tensor, or a tensor laid out as the
  // uncompiled graph lays it out.
  virtual std::vector<absl::optional<OutputMeta>> output_meta() const = 0;

  // True for a piece that runs the graph's own operators one after another, as eager's do: there is no promise that it could break, so its calls are not
  // checked.
  virtual bool interprets_graph() const { return false; }
};

struct CompileContext {
  std::string name;  // "submod_2"
  int index = 0;
  int count = 1;
  // Where backward may write the gradients of the piece's parameters, for those who can; may be null.
  std::shared_ptr<const GradientTargets> gradient_targets = nullptr;
};

// `piece` holds real parameters; `fake_inputs` has one value per placeholder. Must not run the piece on real data, change any
// tensor or the graph, or keep references to the fakes. An Unimplemented status refuses the piece, which then runs eagerly; other errors
// end the compilation, with the piece's name added.
using CompileFn = std::function<absl::StatusOr<std::shared_ptr<const CompiledPiece>>(
    std::shared_ptr<const fx::GraphModule> piece, const std::vector<c10::IValue>& fake_inputs, const CompileContext& context)>;

// Interprets the piece with ATen's kernels.
CompileFn EagerBackend();

}  // namespace ddpopt

#endif  // DDPOPT_BACKENDS_BACKEND_H_
