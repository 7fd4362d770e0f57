#ifndef DDPOPT_OPTIMIZER_DEVICE_PROFILE_H_
#define DDPOPT_OPTIMIZER_DEVICE_PROFILE_H_

// How fast a device computes, as a data file: what an operator's time is estimated from, where it can't be measured.
//
//   absl::StatusOr<DeviceProfile> profile = ParseDeviceProfile(text);       // JSON, see below
//   double seconds = profile->Seconds({.flops = 2e9, .bytes = 3e7, .dtype = "float32"});
//
// A profile:
//
//   {"name": "a_device",
//    "matmul_flops_per_second": {"float32": 1.5e11, "bfloat16": 1e12},      // reached, not the peak, if "sources" says so
//    "matmul_efficiency": 0.6,                                              // optional: what share of these figures is reached; else 1
//    "memory_bytes_per_second": 2e10,
//    "operator_overhead_seconds": 2e-6,                                     // of each operator that computes
//    "view_overhead_seconds": 1e-6,                                         // optional, of those that only make views
//    "memory_bytes": 8e10,                                                  // optional: what a rank has
//    "sources": {"matmul_flops_per_second": "...", ...}}                    // of every figure, in words
//
// Plain figures: no tensors. Thread-safe.

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddpopt {

// What an operator does.
struct OperatorWork {
  double flops = 0;  // of products; other arithmetic is hidden behind memory
  double bytes = 0;  // read and written
  bool view = false;
  absl::string_view dtype;  // "float32", as PyTorch names it; of the products
};

struct DeviceProfile {
  std::string name;
  std::map<std::string, double> matmul_flops_per_second;  // by dtype
  double matmul_efficiency = 1;
  double memory_bytes_per_second = 0;
  double operator_overhead_seconds = 0;
  double view_overhead_seconds = 0;
  double memory_bytes = 0;  // 0: unknown
  std::map<std::string, std::string> sources;

  // The overhead and the longer of computing and moving. A dtype that the profile doesn't have computes as float32.
  double Seconds(const OperatorWork& work) const;
  std::string ToJson() const;
};

// Errors, InvalidArgument naming the key: not JSON, a key that is missing, unknown or of the wrong type, a figure that is not above 0, a
// figure without a source.
absl::StatusOr<DeviceProfile> ParseDeviceProfile(absl::string_view text);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_DEVICE_PROFILE_H_
