#ifndef DDPOPT_DDP_OPTION_CHECKS_H_
#define DDPOPT_DDP_OPTION_CHECKS_H_

// Whether options can be used, alone and with each other. Private to this package.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/ddp/ddp_options.h"
#include "ddpopt/optimizer/bucket_assignment.h"

namespace ddpopt {

// The bucket options in bytes. InvalidArgument, with the reason, for values and combinations that can't be used.
absl::StatusOr<BucketOptions> CheckOptions(const DdpOptions& options);

// Whether buffers are rank 0's in forward, by either name of the option. Of options that CheckOptions has taken.
bool SyncsBuffers(const DdpOptions& options);

// A line each, for comparison between ranks: what must be the same on all of them.
std::vector<std::string> DescribeOptions(const DdpOptions& options);

}  // namespace ddpopt

#endif  // DDPOPT_DDP_OPTION_CHECKS_H_
