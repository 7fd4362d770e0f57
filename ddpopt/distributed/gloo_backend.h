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

// Binds to `interfaces` if there are any, else to `bind_address` unless empty, else to the address this machine's name resolves to.
// Throws what c10d throws.
// Visible by hand, since its file is compiled with hidden visibility.
__attribute__((visibility("default"))) c10::intrusive_ptr<c10d::Backend> MakeGlooBackend(const c10::intrusive_ptr<c10d::Store>& store,
                                                                                         int rank, int world_size,
                                                                                         std::chrono::milliseconds timeout,
                                                                                         const std::vector<std::string>& interfaces,
                                                                                         const std::string& bind_address);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_GLOO_BACKEND_H_
