#ifndef DDPOPT_BASE_GENERATOR_GUARD_H_
#define DDPOPT_BASE_GENERATOR_GUARD_H_

// Puts the default CPU generator back to where it was, under its lock: what is drawn meanwhile leaves no trace.
//
//   const GeneratorGuard guard;   // until the end of the scope

#include <mutex>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/core/Generator.h"
#include "ATen/core/Tensor.h"

namespace ddpopt {

class GeneratorGuard {
 public:
  GeneratorGuard() : generator_(at::detail::getDefaultCPUGenerator()), state_(State()) {}
  ~GeneratorGuard() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }
  GeneratorGuard(const GeneratorGuard&) = delete;
  GeneratorGuard& operator=(const GeneratorGuard&) = delete;

 private:
  at::Tensor State() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    return generator_.get_state();
  }
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace ddpopt

#endif  // DDPOPT_BASE_GENERATOR_GUARD_H_
