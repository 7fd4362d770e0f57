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

#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "ddpopt/backends/backend.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/graph_module.h"
#include "interpreter/interpreter.h"

namespace ddpopt {

struct SubmodCompilerOptions {
  // False only in the tests that show why the mode must be pushed.
  bool push_fake_mode = true;
};

class SubmodCompiler : public Interpreter {
 public:
  SubmodCompiler(std::shared_ptr<fx::GraphModule> outer, std::shared_ptr<FakeTensorMode> mode, CompileFn compile,
                 SubmodCompilerOptions options = {});

  // One value per placeholder of the outer graph, real or fakes of the mode. Replaces every submodule <target> by compiled_<target>; on an
  // error the outer graph is left as it was. Errors name the piece. Once per object.
  absl::Status Compile(const std::vector<c10::IValue>& example_inputs);

 protected:
  c10::IValue RunCallModule(const fx::Node& node, Arguments& arguments) override;

 private:
  // Throws c10::Error, having kept the status in error_.
  [[noreturn]] void Fail(absl::Status status);

  std::shared_ptr<fx::GraphModule> outer_;
  std::shared_ptr<FakeTensorMode> mode_;
  CompileFn compile_;
  SubmodCompilerOptions options_;
  int count_ = 0;
  int next_index_ = 0;
  absl::flat_hash_map<std::string, std::shared_ptr<const CompiledPiece>> compiled_;
  absl::Status error_;
};

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_SUBMOD_COMPILER_H_
