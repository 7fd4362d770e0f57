#ifndef DDPOPT_BACKENDS_REGISTRY_H_
#define DDPOPT_BACKENDS_REGISTRY_H_

// Backends by name, those of users among them, and the ladder on which a wrong result is traced to what makes it.
//
//   DDPOPT_RETURN_IF_ERROR(RegisterBackend("mine", [] { return MyBackend(); }));
//   DDPOPT_ASSIGN_OR_RETURN(options.backend, FindBackend("mine"));                  // DdpOptions
//
// The ladder's rungs are, each one step of machinery above the one before:
//
//   off         the module's own forward runs (ExecutionMode::kEager); its graph tells where buckets end, no more
//   eager       captured and cut into pieces, which an interpreter runs
//   aot_eager   pieces whose forward and backward are compiled ahead of time
//
// A model that is wrong with aot_eager and right with eager meets a fault of the compiled pieces (tools:minimize shrinks it); wrong with
// eager and right when off, one of capture. DistributedDataParallel takes its rung, or any registered backend, from DDPOPT_BACKEND if that is
// set, in the place of DdpOptions::backend; a wrapper with mode kEager stays so.

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "ddpopt/backends/backend.h"

namespace ddpopt {

inline constexpr char kBackendVariable[] = "DDPOPT_BACKEND";

// What a backend's CompileFn promises is written at CompileFn and CompiledPiece (backend.h). The factory is called once for each
// FindBackend, by any thread; what it gives may be shared between models and threads if the backend says so.
using BackendFactory = std::function<CompileFn()>;

// For the whole process, and for good. Thread-safe. Errors: InvalidArgument: a name that isn't made of a-z, 0-9, "_", "-" and ".", the name
// "off", no factory; AlreadyExists.
absl::Status RegisterBackend(absl::string_view name, BackendFactory factory);

// Thread-safe. Errors: NotFound, with all names; Internal if the factory gave nothing.
absl::StatusOr<CompileFn> FindBackend(absl::string_view name);

// Sorted, without "off". Thread-safe.
std::vector<std::string> BackendNames();

struct BackendChoice {
  std::string name;
  bool capture = true;  // false: off
  CompileFn backend;    // empty when off
};

// A rung of the ladder, or another registered backend. Errors: as FindBackend.
absl::StatusOr<BackendChoice> ChooseBackend(absl::string_view name);

// What DDPOPT_BACKEND asks for; nullopt if it is unset or empty. Errors: as FindBackend, with the variable's name.
absl::StatusOr<absl::optional<BackendChoice>> BackendFromEnvironment();

}  // namespace ddpopt

#endif  // DDPOPT_BACKENDS_REGISTRY_H_
