#ifndef DDPOPT_TOOLS_CHECK_MODELS_ROUNDING_H_
#define DDPOPT_TOOLS_CHECK_MODELS_ROUNDING_H_

// What rounding may do to figures that were recorded on another machine. Private to the tools.
//
// The recordings were made with one thread and with the kernels that MKL has for Intel's CPUs; with these, everything agrees to the last
// bits. MKL asks for the vendor, not for what the CPU can do, and takes others elsewhere, which add up in another order. So linking this
// library makes MKL take the same kernels wherever the CPU can run them. Where it can't, differences are held to what the figures do when
// the weights are moved by a unit in their last place.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ddpopt/capture/pt2/exported_program.h"

namespace ddpopt {

// One thread, from now on; to be called before anything is computed.
void UseRecordedArithmetic();

// Moves each float32 parameter by about a unit in its last place, up or down by `seed`; not at all if that is 0.
void MoveWeights(const ExportedProgram& program, uint64_t seed);

// A parameter's gradient by its first name; parameters that have none are left out.
using Gradients = std::map<std::string, at::Tensor>;
Gradients GradientsOf(const ExportedProgram& program);

// What a gradient may differ by, by name, told from gradients of moved weights: as much as it moved, but no more than a rounding error in
// the model's largest gradient. A bias before a batch norm has nothing but rounding errors for a gradient, where another one that is as
// small is exact.
std::map<std::string, double> RoundingOf(const Gradients& gradients, const std::vector<Gradients>& moved);

// The fraction of a model's largest gradient that rounding may be.
inline constexpr double kRounding = 5e-7;
// Of what moved weights move a figure by: there are few samples.
inline constexpr double kRoundingMargin = 8;
double LargestOf(const Gradients& gradients);

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_CHECK_MODELS_ROUNDING_H_
