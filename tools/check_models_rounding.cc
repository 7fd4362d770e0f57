#include "tools/check_models_rounding.h"

#include <algorithm>

#include "ATen/Parallel.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/abs.h"
#include "ATen/ops/max.h"
#include "ATen/ops/sub.h"

// LibTorch's MKL asks this of itself; what the program defines is what it gets.
extern "C" __attribute__((visibility("default"), used)) int mkl_serv_intel_cpu_true() { return 1; }

namespace ddpopt {
namespace {

double LargestElement(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.abs().max().item().toDouble(); }

}  // namespace

void UseRecordedArithmetic() { at::set_num_threads(1); }

void MoveWeights(const ExportedProgram& program, uint64_t seed) {
  if (seed == 0) return;
  const at::NoGradGuard no_grad;
  for (const auto& parameter : program.parameters()) {
    if (parameter.tensor.scalar_type() != at::kFloat) continue;
    at::Tensor moved = parameter.tensor.contiguous().clone();
    float* data = moved.mutable_data_ptr<float>();
    for (int64_t k = 0; k < moved.numel(); ++k) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      data[k] *= static_cast<float>(1 + (static_cast<double>(seed >> 40) / 8388608.0 - 1) * 6e-8 * 2);
    }
    parameter.tensor.copy_(moved);
  }
}

Gradients GradientsOf(const ExportedProgram& program) {
  Gradients gradients;
  for (const auto& parameter : program.parameters()) {
    if (parameter.tensor.grad().defined()) gradients.emplace(parameter.name, parameter.tensor.grad().clone());
  }
  return gradients;
}

double LargestOf(const Gradients& gradients) {
  double largest = 0;
  for (const auto& [name, gradient] : gradients) largest = std::max(largest, LargestElement(gradient));
  return largest;
}

std::map<std::string, double> RoundingOf(const Gradients& gradients, const std::vector<Gradients>& moved) {
  const double most = kRounding * LargestOf(gradients);
  std::map<std::string, double> rounding;
  for (const auto& [name, gradient] : gradients) {
    if (gradient.scalar_type() != at::kFloat) continue;
    double moves = 0;
    for (const Gradients& other : moved) {
      if (const auto it = other.find(name); it != other.end()) moves = std::max(moves, LargestElement(it->second.sub(gradient)));
    }
    // What moves by more than a hundredth of itself is nothing but rounding.
    const bool nothing_else = moves > 1e-2 * LargestElement(gradient);
    rounding[name] = nothing_else ? most : std::min(kRoundingMargin * moves, most);
  }
  return rounding;
}

}  // namespace ddpopt
