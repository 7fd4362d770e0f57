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
#include "fx_graph/graph_module.h"

namespace ddpopt {

// The strides a compiled piece gives one of its tensor outputs, in elements.
struct OutputMeta {
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

// Runs one piece. Thread-safe if the backend says so. Throws c10::Error when run.
class CompiledPiece : public fx::Callable {
 public:
  // One entry per output of the piece: one for a bare output, one per element for a tuple. nullopt: no tensor, or a tensor laid out as the
  // uncompiled graph lays it out.
  virtual std::vector<absl::optional<OutputMeta>> output_meta() const = 0;
};

struct CompileContext {
  std::string name;  // "submod_2"
  int index = 0;
  int count = 1;
};

// `piece` holds real parameters; `fake_inputs` has one value per placeholder. Must not run the piece on real data, change any
// tensor, or keep references to the fakes. Errors are passed on with the piece's name added.
using CompileFn = std::function<absl::StatusOr<std::shared_ptr<const CompiledPiece>>(
    std::shared_ptr<const fx::GraphModule> piece, const std::vector<c10::IValue>& fake_inputs, const CompileContext& context)>;

// Interprets the piece with ATen's kernels.
CompileFn EagerBackend();

}  // namespace ddpopt

#endif  // DDPOPT_BACKENDS_BACKEND_H_
