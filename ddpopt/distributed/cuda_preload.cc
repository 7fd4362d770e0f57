// In programs of --config=cuda: loads libtorch_cuda.so before main, where there is a driver. LibTorch asks for CUDA once (in manual_seed,
// say, or at the first backward, when the autograd engine counts devices) and does without from then on; a program that calls
// InitProcessGroup later than that would find its GPU unusable. Not linked, since no program could start then without CUDA's libraries.

#include <dlfcn.h>
#include <link.h>

#include <string>

namespace {

// Of the LibTorch that this program runs with; the loader does not look there for the program's own calls of dlopen.
std::string LibTorchFolder() {
  void* c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (c10 == nullptr || dlinfo(c10, RTLD_DI_LINKMAP, &map) != 0) return "";
  const std::string path = map->l_name;
  return path.substr(0, path.rfind('/') + 1);
}

[[maybe_unused]] const bool preloaded = [] {
  if (dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) == nullptr) return false;
  // InitProcessGroup says what is missing, when NCCL is asked for.
  return dlopen((LibTorchFolder() + "libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr;
}();

}  // namespace
