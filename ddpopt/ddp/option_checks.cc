#include "ddpopt/ddp/option_checks.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace ddpopt {
namespace {

absl::StatusOr<absl::optional<int64_t>> CapBytes(const std::string& name, absl::optional<double> mebibytes) {
  if (!mebibytes.has_value()) return absl::optional<int64_t>();
  constexpr double kMebi = 1024.0 * 1024.0;
  if (!(*mebibytes >= 0) || *mebibytes * kMebi > 9e18) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must be a number >= 0, got ", *mebibytes));
  }
  return absl::optional<int64_t>(static_cast<int64_t>(*mebibytes * kMebi));
}

const char* BoolText(bool value) { return value ? "true" : "false"; }

}  // namespace

absl::StatusOr<BucketOptions> CheckOptions(const DdpOptions& options) {
  BucketOptions result;
  DDPOPT_ASSIGN_OR_RETURN(result.bucket_cap_bytes, CapBytes("bucket_cap_mb", options.bucket_cap_mb));
  DDPOPT_ASSIGN_OR_RETURN(result.first_bucket_cap_bytes, CapBytes("first_bucket_cap_mb", options.first_bucket_cap_mb));
  const double cap = options.bucket_cap_mb.value_or(25.0);
  if (options.first_bucket_cap_mb.has_value() && *options.first_bucket_cap_mb > cap) {
    return absl::InvalidArgumentError(
        absl::StrCat("first_bucket_cap_mb (", *options.first_bucket_cap_mb, ") is above bucket_cap_mb (", cap, ")"));
  }
  for (std::size_t i = 0; i < options.bucket_cap_mb_list.size(); ++i) {
    DDPOPT_ASSIGN_OR_RETURN(const absl::optional<int64_t> bytes,
                            CapBytes(absl::StrCat("bucket_cap_mb_list[", i, "]"), options.bucket_cap_mb_list[i]));
    result.bucket_cap_bytes_list.push_back(*bytes);
  }
  result.bucket_ends = options.bucket_ends;
  result.ignored_parameters.insert(options.parameters_to_ignore.begin(), options.parameters_to_ignore.end());
  DDPOPT_RETURN_IF_ERROR(CheckBucketOptions(result));

  if (!(options.bucket_memory_limit_mb >= 0) || options.bucket_memory_limit_mb > 1e12) {
    return absl::InvalidArgumentError(absl::StrCat("bucket_memory_limit_mb must be a number >= 0, got ", options.bucket_memory_limit_mb));
  }
  if (options.bucket_policy == BucketPolicy::kAuto) {
    if (options.bucket_cap_mb.has_value() || options.first_bucket_cap_mb.has_value() || !options.bucket_cap_mb_list.empty() ||
        !options.bucket_ends.empty()) {
      return absl::InvalidArgumentError(
          "bucket_policy is kAuto, which chooses the buckets itself, but bucket_cap_mb, first_bucket_cap_mb, bucket_cap_mb_list or bucket_ends "
          "is set too");
    }
  } else if (options.bucket_memory_limit_mb > 0) {
    return absl::InvalidArgumentError("bucket_memory_limit_mb is for bucket_policy kAuto");
  }

  if (options.forward_sync_buffers.has_value() && options.broadcast_buffers.has_value() &&
      *options.forward_sync_buffers != *options.broadcast_buffers) {
    return absl::InvalidArgumentError(absl::StrCat("forward_sync_buffers is ", BoolText(*options.forward_sync_buffers),
                                                   ", but broadcast_buffers, an older name of the same, is ",
                                                   BoolText(*options.broadcast_buffers)));
  }
  if (options.skip_all_reduce_unused_params && !options.find_unused_parameters && !options.static_graph) {
    return absl::InvalidArgumentError(
        "skip_all_reduce_unused_params needs find_unused_parameters or static_graph: without them, no parameter may be unused");
  }
  if (options.mode == ExecutionMode::kEager && options.backend) {
    return absl::InvalidArgumentError("a backend compiles graphs, and there are none with mode kEager; give one or the other");
  }
  if (options.retrace_every < 0) {
    return absl::InvalidArgumentError(absl::StrCat("retrace_every must be >= 0, got ", options.retrace_every));
  }
  if (options.check_gradients_equal_every < 0) {
    return absl::InvalidArgumentError(absl::StrCat("check_gradients_equal_every must be >= 0, got ", options.check_gradients_equal_every));
  }
  return result;
}

bool SyncsBuffers(const DdpOptions& options) {
  return options.forward_sync_buffers.value_or(options.broadcast_buffers.value_or(true));
}

std::vector<std::string> DescribeOptions(const DdpOptions& options) {
  const auto cap = [](absl::optional<double> mb) { return mb.has_value() ? absl::StrCat(*mb) : std::string("default"); };
  return {
      absl::StrCat("option bucket_policy: ", options.bucket_policy == BucketPolicy::kAuto ? "auto" : "caps"),
      absl::StrCat("option bucket_cap_mb: ", cap(options.bucket_cap_mb)),
      absl::StrCat("option first_bucket_cap_mb: ", cap(options.first_bucket_cap_mb)),
      absl::StrCat("option bucket_cap_mb_list: [", absl::StrJoin(options.bucket_cap_mb_list, ", "), "]"),
      absl::StrCat("option bucket_ends: [", absl::StrJoin(options.bucket_ends, ", "), "]"),
      absl::StrCat("option init_sync: ", BoolText(options.init_sync)),
      absl::StrCat("option forward_sync_buffers: ", BoolText(SyncsBuffers(options))),
      absl::StrCat("option find_unused_parameters: ", BoolText(options.find_unused_parameters)),
      absl::StrCat("option static_graph: ", BoolText(options.static_graph)),
      absl::StrCat("option skip_all_reduce_unused_params: ", BoolText(options.skip_all_reduce_unused_params)),
      absl::StrCat("option eager_fallback: ", BoolText(options.eager_fallback)),
      absl::StrCat("option check_gradients_equal_every: ", options.check_gradients_equal_every),
      absl::StrCat("option check_gradients_finite: ", BoolText(options.check_gradients_finite)),
  };
}

}  // namespace ddpopt
