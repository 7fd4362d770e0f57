#include "testing/distributed_test.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/types/optional.h"

namespace ddpopt::testing {
namespace {

absl::optional<ProcessGroup>& Group() {
  static auto& group = *new absl::optional<ProcessGroup>();
  return group;
}

}  // namespace

const ProcessGroup& TestProcessGroup() {
  if (!Group()) {
    InitOptions options;
    options.timeout = std::chrono::seconds(20);
    absl::StatusOr<ProcessGroup> made = InitProcessGroup(options);
    if (!made.ok()) throw std::runtime_error(made.status().ToString());
    Group() = *std::move(made);
  }
  return *Group();
}

void ReleaseTestProcessGroup() { Group().reset(); }

}  // namespace ddpopt::testing
