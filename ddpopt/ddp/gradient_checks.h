#ifndef DDPOPT_DDP_GRADIENT_CHECKS_H_
#define DDPOPT_DDP_GRADIENT_CHECKS_H_

// Checks of values over all ranks. Private to this package; all are collective.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ddpopt/ddp/module_tensors.h"
#include "ddpopt/distributed/process_group.h"

namespace ddpopt {

// OK if the values are bitwise identical on all ranks. `what` is a plural; `kind` begins each tensor's name: "parameter".
struct TensorsOfKind {
  const char* kind;
  const std::vector<NamedTensor>* tensors;
  bool gradients = false;  // of them, rather than themselves
};
absl::Status CheckEqualOnAllRanks(const ProcessGroup& group, const std::string& what, const std::vector<TensorsOfKind>& tensors);

// Called on all ranks if one finds that reduced gradients are not finite: what each rank gave to the reduction, by parameters' names.
std::string DescribeNotFinite(const ProcessGroup& group, const std::vector<std::string>& reduced, const std::vector<std::string>& here);

}  // namespace ddpopt

#endif  // DDPOPT_DDP_GRADIENT_CHECKS_H_
