#ifndef DDPOPT_OPTIMIZER_SUBMOD_COMPILER_H_
#define DDPOPT_OPTIMIZER_SUBMOD_COMPILER_H_

// Compiles the pieces of a split graph one after another, each for the fake outputs of those before it.
//
//   SubmodCompiler compiler(outer, mode, EagerBackend());
//   absl::Status status = compiler.Compile(example_inputs);     // outer now calls compiled_submod_0, compiled_submod_1, ...
//
// At each call_module it makes the inputs fake, has the backend compile the real submodule for them, and runs a copy of the uncompiled
// submodule, whose parameters and buffers are fakes too, to learn what the next piece gets.
//
// That run has the fake mode pushed on the mode stack: a fake input alone is not enough. Take a piece
//
//   tmp = mm(x, w.t());  return tmp + where(tmp < 0.5, 0.3, 0.6)
//
// where() of two numbers makes tensors of them from nothing. No operand of that step is fake, so only a pushed mode can see it: without the
// push it makes *real* scalar tensors in the middle of a fake run, and the add that follows meets a fake and a real tensor, which no
// operator can take. The same goes for ones(), arange() and every other factory.
//
// The contract with a backend, and what happens to one that breaks it. "Ends the compilation": Compile returns an error that names the
// piece, and the outer graph is as it was. "Throws": running the compiled graph throws a c10::Error that names the piece, the value and
// both sides.
//
//   It may                                                          then
//   say in output_meta that it lays outputs out otherwise           the next piece is compiled for these strides
//   refuse a piece (Unimplemented)                                  the piece runs eagerly; one warning lists all refused pieces
//   draw random numbers, set grad mode while it compiles            both are put back
//   It may not
//   fail otherwise: a status, an exception of any type, no piece    ends the compilation
//   write or reshape its fake inputs, or write, reshape, replace    ends the compilation
//     or give a gradient to a parameter or buffer, while it
//     compiles, or edit the piece's graph
//   describe more or fewer outputs than there are, or claim sizes,  ends the compilation
//     dtypes or aliasing that aren't the graph's, or strides for
//     what shares an input's memory
//   return more or fewer outputs, or other types, dtypes, devices,  throws
//     sizes, strides or aliasing than promised; real tensors for
//     fake inputs, or fakes for real ones
//   write inputs, parameters or buffers that the graph doesn't      throws (as far as the tensors' version counters tell)
//   throw when it runs, whatever the type                           throws
//
// A piece that the outer graph calls twice is refused by name. Pieces that interpret the graph themselves (CompiledPiece::interprets_graph)
// are not checked when they run.

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ddpopt/backends/backend.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/graph_module.h"
#include "interpreter/interpreter.h"

namespace ddpopt {

struct SubmodCompilerOptions {
  // False makes a refusal an error.
  bool refused_pieces_run_eagerly = true;
  // False only in the tests that show why the mode must be pushed.
  bool push_fake_mode = true;
};

// A piece that the backend refused, and why.
struct RefusedPiece {
  std::string name;
  std::string reason;
};

class SubmodCompiler : public Interpreter {
 public:
  SubmodCompiler(std::shared_ptr<fx::GraphModule> outer, std::shared_ptr<FakeTensorMode> mode, CompileFn compile,
                 SubmodCompilerOptions options = {});

  // One value per placeholder of the outer graph, real or fakes of the mode. Replaces every submodule <target> by compiled_<target>; on an
  // error the outer graph is left as it was. Errors name the piece. Once per object.
  absl::Status Compile(const std::vector<c10::IValue>& example_inputs);
  // After Compile: the pieces that will run eagerly.
  const std::vector<RefusedPiece>& refused() const { return refused_; }

 protected:
  c10::IValue RunCallModule(const fx::Node& node, Arguments& arguments) override;

 private:
  // Throws c10::Error, having kept the status in error_.
  [[noreturn]] void Fail(absl::Status status);
  // Has the backend compile the piece, and sees to it that nothing else came of it. Null if it was refused.
  absl::StatusOr<std::shared_ptr<const CompiledPiece>> CallBackend(const std::shared_ptr<fx::GraphModule>& piece, const Values& fake_inputs,
                                                                   const std::string& name);
  absl::StatusOr<c10::IValue> CompilePiece(const std::shared_ptr<fx::GraphModule>& piece, Values args, const std::string& name);

  std::shared_ptr<fx::GraphModule> outer_;
  std::shared_ptr<FakeTensorMode> mode_;
  CompileFn compile_;
  SubmodCompilerOptions options_;
  int count_ = 0;
  int next_index_ = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<const CompiledPiece>> compiled_;
  std::vector<RefusedPiece> refused_;
  absl::Status error_;
};

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_SUBMOD_COMPILER_H_
