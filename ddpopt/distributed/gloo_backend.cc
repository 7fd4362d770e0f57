// The one source file that includes gloo's headers (through c10d's ProcessGroupGloo.hpp).
//
// LibTorch's libraries contain a gloo newer than the installed headers, with longer virtual tables. This file therefore only passes gloo
// objects through: it calls no virtual function of a gloo class, and never names c10d's GlooStore, whose table would be emitted here in the
// old layout. gloo_symbols_test checks that binaries define no gloo:: symbol that the dynamic linker could prefer to LibTorch's.

#include "ddpopt/distributed/gloo_backend.h"

#include <utility>

#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupGloo.hpp"
#include "torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp"

namespace ddpopt {

GlooBackend MakeGlooBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, std::chrono::milliseconds timeout,
                            const std::vector<std::string>& interfaces, const std::string& bind_address, bool check_collectives) {
  const auto make = [&](const char* prefix) -> c10::intrusive_ptr<c10d::Backend> {
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    for (const std::string& interface : interfaces) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
    }
    if (options->devices.empty()) options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(bind_address));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(prefix, store), rank, world_size,
                                                       std::move(options));
  };
  c10::intrusive_ptr<c10d::Backend> backend = make("collectives");
  if (!check_collectives) return {backend, backend};
  const c10::intrusive_ptr<c10d::Backend> checks = make("checks");
  return {c10::make_intrusive<c10d::ProcessGroupWrapper>(backend, checks), checks};
}

}  // namespace ddpopt
