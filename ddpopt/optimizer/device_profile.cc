#include "ddpopt/optimizer/device_profile.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

using nlohmann::json;

absl::Status ReadFigure(const json& profile, const char* key, bool optional, bool may_be_0, double* value) {
  const auto found = profile.find(key);
  if (found == profile.end()) {
    return optional ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat("the device profile has no \"", key, "\""));
  }
  if (!found->is_number()) return absl::InvalidArgumentError(absl::StrCat("device profile: \"", key, "\" is no number"));
  *value = found->get<double>();
  if (!std::isfinite(*value) || *value < 0 || (*value == 0 && !may_be_0)) {
    return absl::InvalidArgumentError(absl::StrCat("device profile: \"", key, "\" is ", *value, ", which can't be"));
  }
  return absl::OkStatus();
}

absl::Status ReadRates(const json& profile, std::map<std::string, double>* rates) {
  const auto found = profile.find("matmul_flops_per_second");
  if (found == profile.end() || !found->is_object()) {
    return absl::InvalidArgumentError("the device profile has no object \"matmul_flops_per_second\"");
  }
  for (const auto& [dtype, rate] : found->items()) {
    if (!rate.is_number() || !(rate.get<double>() > 0) || !std::isfinite(rate.get<double>())) {
      return absl::InvalidArgumentError(
          absl::StrCat("device profile: \"matmul_flops_per_second\" of \"", dtype, "\" is ", rate.dump(), ", no number above 0"));
    }
    (*rates)[dtype] = rate.get<double>();
  }
  if (!rates->contains("float32")) {
    return absl::InvalidArgumentError("the device profile's \"matmul_flops_per_second\" has no \"float32\"");
  }
  return absl::OkStatus();
}

}  // namespace

double DeviceProfile::Seconds(const OperatorWork& work) const {
  if (work.view) return view_overhead_seconds;
  auto rate = matmul_flops_per_second.find(std::string(work.dtype));
  if (rate == matmul_flops_per_second.end()) rate = matmul_flops_per_second.find("float32");
  const double computing = rate == matmul_flops_per_second.end() ? 0 : work.flops / (rate->second * matmul_efficiency);
  return operator_overhead_seconds + std::max(computing, work.bytes / memory_bytes_per_second);
}

std::string DeviceProfile::ToJson() const {
  nlohmann::ordered_json result = {{"name", name},
                                   {"matmul_flops_per_second", matmul_flops_per_second},
                                   {"matmul_efficiency", matmul_efficiency},
                                   {"memory_bytes_per_second", memory_bytes_per_second},
                                   {"operator_overhead_seconds", operator_overhead_seconds},
                                   {"view_overhead_seconds", view_overhead_seconds}};
  if (memory_bytes > 0) result["memory_bytes"] = memory_bytes;
  result["sources"] = sources;
  return result.dump(2);
}

absl::StatusOr<DeviceProfile> ParseDeviceProfile(absl::string_view text) {
  const json parsed = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return absl::InvalidArgumentError("the device profile is no JSON object");
  DeviceProfile profile;
  const auto name = parsed.find("name");
  if (name == parsed.end() || !name->is_string() || name->get<std::string>().empty()) {
    return absl::InvalidArgumentError("the device profile has no \"name\"");
  }
  profile.name = name->get<std::string>();
  DDPOPT_RETURN_IF_ERROR(ReadRates(parsed, &profile.matmul_flops_per_second));
  DDPOPT_RETURN_IF_ERROR(ReadFigure(parsed, "matmul_efficiency", true, false, &profile.matmul_efficiency));
  if (profile.matmul_efficiency > 1) {
    return absl::InvalidArgumentError(absl::StrCat("device profile: \"matmul_efficiency\" is ", profile.matmul_efficiency, ", above 1"));
  }
  DDPOPT_RETURN_IF_ERROR(ReadFigure(parsed, "memory_bytes_per_second", false, false, &profile.memory_bytes_per_second));
  DDPOPT_RETURN_IF_ERROR(ReadFigure(parsed, "operator_overhead_seconds", false, true, &profile.operator_overhead_seconds));
  DDPOPT_RETURN_IF_ERROR(ReadFigure(parsed, "view_overhead_seconds", true, true, &profile.view_overhead_seconds));
  DDPOPT_RETURN_IF_ERROR(ReadFigure(parsed, "memory_bytes", true, false, &profile.memory_bytes));
  const auto sources = parsed.find("sources");
  if (sources == parsed.end() || !sources->is_object()) {
    return absl::InvalidArgumentError("the device profile doesn't say where its figures come from: it has no object \"sources\"");
  }
  for (const auto& [key, source] : sources->items()) {
    if (!source.is_string()) return absl::InvalidArgumentError(absl::StrCat("device profile: the source of \"", key, "\" is no text"));
    profile.sources[key] = source.get<std::string>();
  }
  for (const auto& [key, value] : parsed.items()) {
    static const char* const kKnown[] = {"matmul_flops_per_second",   "matmul_efficiency",     "memory_bytes_per_second",
                                         "operator_overhead_seconds", "view_overhead_seconds", "memory_bytes"};
    if (key == "name" || key == "sources") continue;
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      return absl::InvalidArgumentError(absl::StrCat("device profile: unknown key \"", key, "\""));
    }
    const auto source = profile.sources.find(key);
    if (source == profile.sources.end() || source->second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("device profile: \"", key, "\" has no source"));
    }
  }
  return profile;
}

}  // namespace ddpopt
