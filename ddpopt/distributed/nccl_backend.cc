// libddpopt_nccl.so: c10d's NCCL backend. The one source file that includes CUDA's and NCCL's headers, and the one thing that is linked to
// libtorch_cuda.so, which can't be loaded without gigabytes of libraries: hence an object apart, loaded when NCCL is asked for.

#include <cstdint>
#include <string>
#include <utility>

#include "ATen/detail/CUDAHooksInterface.h"
#include "ddpopt/distributed/nccl_object.h"
#include "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"

#define DDPOPT_TEXT_(x) #x
#define DDPOPT_TEXT(x) DDPOPT_TEXT_(x)
#define DDPOPT_NCCL_HEADERS DDPOPT_TEXT(NCCL_MAJOR) "." DDPOPT_TEXT(NCCL_MINOR) "." DDPOPT_TEXT(NCCL_PATCH)

extern "C" __attribute__((visibility("default"), used)) const char ddpopt_nccl_marker[] =
    DDPOPT_NCCL_MARKER_BEGIN "interface=" DDPOPT_NCCL_INTERFACE " libtorch=" TORCH_VERSION " nccl=" DDPOPT_NCCL_HEADERS "\n";

namespace ddpopt {
namespace {

std::string Check() {
  // LibTorch asks for CUDA's hooks once, and stays without CUDA if libtorch_cuda.so was not there yet. (Without devices, there is none anyway.)
  if (!at::detail::getCUDAHooks().hasCUDA()) {
    return "LibTorch was asked for CUDA (by manual_seed, for one) before libtorch_cuda.so was loaded, and does without since then; call "
           "InitProcessGroup first, or link the program with --config=cuda or to libtorch_cuda.so";
  }
  // NCCL's headers make the layout of ProcessGroupNCCL::Options.
  const uint64_t version = torch::cuda::nccl::version();
  const uint64_t mine = (uint64_t{NCCL_MAJOR} << 32) | (uint64_t{NCCL_MINOR} << 16) | uint64_t{NCCL_PATCH};
  if (version == mine) return "";
  const auto part = [&](int shift, uint64_t mask) { return std::to_string((version >> shift) & mask); };
  return "it was compiled with the headers of NCCL " DDPOPT_NCCL_HEADERS ", and libtorch_cuda.so with those of " + part(32, 0xffffffff) +
         "." + part(16, 0xffff) + "." + part(0, 0xffff);
}

int DeviceCount() { return c10::cuda::device_count_ensure_non_zero(); }

c10::intrusive_ptr<c10d::Backend> MakeBackend(const NcclBackendRequest& request) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(request.store, request.rank, request.world_size, std::move(options));
}

constexpr NcclObject kObject = {&DeviceCount, &Check, &MakeBackend};

}  // namespace
}  // namespace ddpopt

extern "C" __attribute__((visibility("default"))) const ddpopt::NcclObject* ddpopt_nccl_object() { return &ddpopt::kObject; }
