#ifndef DDPOPT_DISTRIBUTED_GLOO_BACKEND_H_
#define DDPOPT_DISTRIBUTED_GLOO_BACKEND_H_

// Internal: makes c10d's Gloo backend. The installed gloo headers are older than the gloo inside LibTorch and their virtual tables differ,
// so gloo_backend.cc is the only file that may include them (see there).

#include <chrono>
#include <string>
#include <vector>

#include "torch/csrc/distributed/c10d/Backend.hpp"
#include "torch/csrc/distributed/c10d/Store.hpp"

namespace ddpopt {

struct GlooBackend {
  c10::intrusive_ptr<c10d::Backend> collectives;
  // For send, recv and the barrier that is made of these, which pairs of ranks make as they like: gloo counts them among the collectives,
  // whose numbers the checks compare.
  c10::intrusive_ptr<c10d::Backend> transfers;
};

// Binds to `interfaces` if there are any, else to `bind_address`. With `check_collectives` the backend is inside c10d's
// ProcessGroupWrapper: before each collective all ranks meet in a barrier that names who doesn't come, and compare what they are about to
// run. Throws what c10d throws. Visible by hand, since its file is compiled with hidden visibility.
__attribute__((visibility("default"))) GlooBackend MakeGlooBackend(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, std::chrono::milliseconds timeout,
    const std::vector<std::string>& interfaces, const std::string& bind_address, bool check_collectives);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_GLOO_BACKEND_H_
