#ifndef DDPOPT_TESTING_AUTOCAST_H_
#define DDPOPT_TESTING_AUTOCAST_H_

// What users write around a forward, where LibTorch has no class for it:
//
//   testing::Autocast autocast;                      // the CPU's operators in bfloat16, to the end of the block
//   testing::Autocast off(/*enabled=*/false);         // a block within that computes as it is written

#include "ATen/autocast_mode.h"

namespace ddpopt::testing {

class Autocast {
 public:
  explicit Autocast(bool enabled = true, at::ScalarType dtype = at::kBFloat16)
      : enabled_(at::autocast::is_autocast_enabled(at::kCPU)), dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, enabled_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool enabled_;
  const at::ScalarType dtype_;
};

}  // namespace ddpopt::testing

#endif  // DDPOPT_TESTING_AUTOCAST_H_
