#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status.h"
#include "ddpopt/optimizer/builtin_device_profiles.h"

namespace ddpopt {

std::vector<std::string> BuiltinDeviceProfileNames() {
  std::vector<std::string> names;
  for (const std::string& text : BuiltinDeviceProfiles()) {
    if (const absl::StatusOr<DeviceProfile> profile = ParseDeviceProfile(text); profile.ok()) names.push_back(profile->name);
  }
  return names;
}

absl::StatusOr<DeviceProfile> FindDeviceProfile(const std::string& name_or_path) {
  for (const std::string& text : BuiltinDeviceProfiles()) {
    DDPOPT_ASSIGN_OR_RETURN(DeviceProfile profile, ParseDeviceProfile(text));
    if (profile.name == name_or_path) return profile;
  }
  const absl::StatusOr<std::string> text = ReadFile(UserPath(name_or_path));
  if (!text.ok()) {
    return absl::NotFoundError(absl::StrCat("device profile \"", name_or_path, "\" is none of ",
                                            absl::StrJoin(BuiltinDeviceProfileNames(), ", "),
                                            ", and no file that can be read: ", text.status().message()));
  }
  absl::StatusOr<DeviceProfile> profile = ParseDeviceProfile(*text);
  if (!profile.ok()) return Annotate(profile.status(), name_or_path);
  return profile;
}

}  // namespace ddpopt
