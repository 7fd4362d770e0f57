// In programs of --config=cuda: loads libtorch_cuda.so before main, where there is a driver. LibTorch asks for CUDA once (in manual_seed,
// say, or at the first backward, when the autograd engine counts devices) and does without from then on; a program that calls
// InitProcessGroup later than that would find its GPU unusable. Not linked, since no program could start then without CUDA's libraries.

#include <dlfcn.h>

namespace {

[[maybe_unused]] const bool preloaded = [] {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) return false;
  // InitProcessGroup says what is missing, when NCCL is asked for.
  return dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;
}();

}  // namespace
