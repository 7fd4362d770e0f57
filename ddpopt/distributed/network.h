#ifndef DDPOPT_DISTRIBUTED_NETWORK_H_
#define DDPOPT_DISTRIBUTED_NETWORK_H_

// Internal: which of this machine's interfaces Gloo binds to.

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace ddpopt {

struct Network {
  std::vector<std::string> interfaces;  // to bind to by name; else to `address`
  std::string address;                  // numeric, of the (first) interface
  std::string name;                     // "eth0 (10.0.0.1)", for people
  bool loopback = false;
};

// `interfaces`: names separated by commas, as in GLOO_SOCKET_IFNAME. Empty: the interface by which this machine reaches `master_addr`,
// whatever the machine's own name resolves to. Errors: InvalidArgument for an interface that isn't there (naming those that are) or is down
// or has no address, Unavailable for a master whose name doesn't resolve or to which there is no way.
absl::StatusOr<Network> ChooseNetwork(const std::string& master_addr, int master_port, const std::string& interfaces);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_NETWORK_H_
