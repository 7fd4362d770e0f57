#include "ddpopt/backends/registry.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "ddpopt/backends/aot_eager.h"

namespace ddpopt {
namespace {

constexpr char kOff[] = "off";

struct Registry {
  std::mutex mutex;
  std::map<std::string, BackendFactory, std::less<>> factories = {
      {"eager", [] { return EagerBackend(); }},
      {"aot_eager", [] { return AotEagerBackend(); }},
  };
};

Registry& Backends() {
  static Registry* registry = new Registry;
  return *registry;
}

bool IsName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  });
}

}  // namespace

absl::Status RegisterBackend(absl::string_view name, BackendFactory factory) {
  if (!IsName(name) || name == kOff) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' can't be a backend's name: a-z, 0-9, '_', '-' and '.' can be in one, and 'off' means that there is none"));
  }
  if (!factory) return absl::InvalidArgumentError(absl::StrCat("backend '", name, "' without a factory"));
  Registry& registry = Backends();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  if (!registry.factories.emplace(std::string(name), std::move(factory)).second) {
    return absl::AlreadyExistsError(absl::StrCat("there is a backend '", name, "' already"));
  }
  return absl::OkStatus();
}

std::vector<std::string> BackendNames() {
  Registry& registry = Backends();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  std::vector<std::string> names;
  for (const auto& [name, factory] : registry.factories) names.push_back(name);
  return names;
}

absl::StatusOr<CompileFn> FindBackend(absl::string_view name) {
  BackendFactory factory;
  {
    Registry& registry = Backends();
    const std::lock_guard<std::mutex> lock(registry.mutex);
    if (const auto found = registry.factories.find(name); found != registry.factories.end()) factory = found->second;
  }
  if (!factory) {
    return absl::NotFoundError(absl::StrCat("there is no backend '", name, "'; there are: ", absl::StrJoin(BackendNames(), ", ")));
  }
  CompileFn backend = factory();
  if (!backend) return absl::InternalError(absl::StrCat("the factory of backend '", name, "' gave none"));
  return backend;
}

absl::StatusOr<BackendChoice> ChooseBackend(absl::string_view name) {
  BackendChoice choice;
  choice.name = std::string(name);
  if (name == kOff) {
    choice.capture = false;
    return choice;
  }
  absl::StatusOr<CompileFn> backend = FindBackend(name);
  if (!backend.ok()) {
    if (backend.status().code() != absl::StatusCode::kNotFound) return backend.status();
    return absl::NotFoundError(absl::StrCat(backend.status().message(), ", and off"));
  }
  choice.backend = *std::move(backend);
  return choice;
}

absl::StatusOr<absl::optional<BackendChoice>> BackendFromEnvironment() {
  const char* name = std::getenv(kBackendVariable);
  if (name == nullptr || *name == '\0') return absl::optional<BackendChoice>();
  absl::StatusOr<BackendChoice> choice = ChooseBackend(name);
  if (!choice.ok()) return Annotate(choice.status(), absl::StrCat("in the environment, ", kBackendVariable));
  return absl::optional<BackendChoice>(*std::move(choice));
}

}  // namespace ddpopt
