#include "fake_tensor/cross_ref/generator.h"

#include "fake_tensor/cross_ref/builder.h"

namespace ddpopt::cross_ref {

uint64_t Random::Next() {
  state_ += 0x9e3779b97f4a7c15;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

int64_t Random::Between(int64_t low, int64_t high) {
  if (high <= low) return low;
  return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
}

double Random::Unit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

std::optional<Call> RandomCall(const c10::OperatorHandle& op, uint64_t seed, const CallOptions& options) {
  try {
    return Builder(op, seed, options).Build();
  } catch (const Discard&) {
    return std::nullopt;
  }
}

}  // namespace ddpopt::cross_ref
