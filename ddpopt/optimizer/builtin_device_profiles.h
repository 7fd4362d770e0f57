#ifndef DDPOPT_OPTIMIZER_BUILTIN_DEVICE_PROFILES_H_
#define DDPOPT_OPTIMIZER_BUILTIN_DEVICE_PROFILES_H_

// The device profiles of the repository (device_profiles/*.json), and others from files.
//
//   absl::StatusOr<DeviceProfile> profile = FindDeviceProfile("nvidia_a100_sxm_80gb");   // or a path
//
// Thread-safe.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ddpopt/optimizer/device_profile.h"

namespace ddpopt {

// Their texts.
const std::vector<std::string>& BuiltinDeviceProfiles();
std::vector<std::string> BuiltinDeviceProfileNames();

// By name, or else from a file. Errors: NotFound naming those that there are, and what ParseDeviceProfile says.
absl::StatusOr<DeviceProfile> FindDeviceProfile(const std::string& name_or_path);

}  // namespace ddpopt

#endif  // DDPOPT_OPTIMIZER_BUILTIN_DEVICE_PROFILES_H_
