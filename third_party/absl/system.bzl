"""Targets over the system's abseil."""

# name -> shared libraries to link; what those need they load themselves.
_LIBRARIES = {
    "flat_hash_map": ["absl_hash", "absl_city", "absl_low_level_hash", "absl_raw_hash_set", "absl_hashtablez_sampler"],
    "flat_hash_set": ["absl_hash", "absl_city", "absl_low_level_hash", "absl_raw_hash_set", "absl_hashtablez_sampler"],
    "function_ref": [],
    "inlined_vector": ["absl_throw_delegate"],
    "optional": ["absl_bad_optional_access"],
    "span": [],
    "status": ["absl_status", "absl_cord", "absl_cord_internal", "absl_strings"],
    "statusor": ["absl_statusor", "absl_status", "absl_cord", "absl_cord_internal", "absl_strings", "absl_bad_variant_access"],
    "strings": ["absl_strings", "absl_str_format_internal", "absl_strings_internal", "absl_throw_delegate", "absl_int128"],
}

def system_absl():
    for name, libraries in _LIBRARIES.items():
        native.cc_library(
            name = name,
            linkopts = ["-l" + library for library in libraries] + ["-labsl_raw_logging_internal"],
        )
