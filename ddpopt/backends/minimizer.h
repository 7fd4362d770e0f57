#ifndef DDPOPT_BACKENDS_MINIMIZER_H_
#define DDPOPT_BACKENDS_MINIMIZER_H_

// Shrinks a graph for which a backend is wrong to a small one for which it still is, and keeps that in a file.
//
//   DDPOPT_ASSIGN_OR_RETURN(Reproducer small, Minimize({.backend = "aot_eager", .module = piece, .inputs = inputs}, AotEagerBackend()));
//   DDPOPT_RETURN_IF_ERROR(WriteReproducer(small, "/tmp/wrong.json"));
//
//   ./bazelw run //tools:minimize -- --run=/tmp/wrong.json
//
// Wrong is a compiled piece whose results, gradients or writes to its inputs aren't those of the graph run with ATen's kernels under
// autograd, or that throws where this doesn't, and a compilation that fails with anything but Unimplemented, which refuses the piece.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/ivalue.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ddpopt/backends/backend.h"
#include "fx_graph/graph_module.h"

namespace ddpopt {

struct CompareOptions {
  double rtol = 1e-4, atol = 1e-5;  // of results and gradients
  std::uint64_t seed = 1;           // of the default generator, before each run
};

// A graph without attributes of its own, and what it is to be called with.
struct Reproducer {
  std::string backend;  // its name, for the reader and tools:minimize
  std::shared_ptr<const fx::GraphModule> module;
  std::vector<c10::IValue> inputs;  // one for each placeholder: tensors, numbers, strings, None; requires_grad counts
  std::string failure;              // "" while it isn't known
  CompareOptions compare;
};

// "": the backend is right, or refuses the graph; so it is if eager itself throws. Else a sentence that begins with the kind of failure:
// "compiling: ", "throws: ", "result 0: ", "gradient of input 2: ", "content of input 1: ". Nothing is changed; gradients come from fixed
// weights on all results that require grad.
std::string FailureOf(const CompileFn& backend, const fx::GraphModule& module, const std::vector<c10::IValue>& inputs,
                      const CompareOptions& options = {});

// The module with its attributes as further placeholders, at the end, and their values as inputs. Attributes of graphs nested in it stay there.
// Errors: InvalidArgument: not one input for each placeholder.
absl::StatusOr<Reproducer> LiftAttributes(const fx::GraphModule& module, const std::vector<c10::IValue>& inputs);

struct MinimizeOptions {
  int max_tries = 3000;  // compilations
};

// The smallest graph found that fails in the same kind of way: fewer results, inputs in the place of operators (with the values that these
// had), operators left out. The module may have attributes. Errors: FailedPrecondition if it doesn't fail to begin with.
absl::StatusOr<Reproducer> Minimize(const Reproducer& failing, const CompileFn& backend, const MinimizeOptions& options = {});

// One JSON document (fx_graph/text/json.h): the graph, with inputs, strides and shared memory included, backend and failure in its metadata.
// Errors: those of the file, and Unimplemented for values that JSON can't hold.
absl::Status WriteReproducer(const Reproducer& reproducer, const std::string& path);
absl::StatusOr<Reproducer> ReadReproducer(const std::string& path);

}  // namespace ddpopt

#endif  // DDPOPT_BACKENDS_MINIMIZER_H_
