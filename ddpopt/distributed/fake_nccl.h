#ifndef DDPOPT_DISTRIBUTED_FAKE_NCCL_H_
#define DDPOPT_DISTRIBUTED_FAKE_NCCL_H_

// For tests on machines without CUDA: an NCCL object (fake_nccl_object.cc) that is loaded as the real one would be, and connects nothing.

#include <string>

namespace ddpopt::testing {

// The path of the fake object.
std::string FakeNcclPath();

// From now on, NCCL is the fake, with so many devices; "-" stands for a machine without a driver. Where c10 has no CUDA devices, it gets eight
// of those it has for its own tests.
void UseFakeNccl(const std::string& devices);

}  // namespace ddpopt::testing

#endif  // DDPOPT_DISTRIBUTED_FAKE_NCCL_H_
