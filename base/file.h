#ifndef DDPOPT_BASE_FILE_H_
#define DDPOPT_BASE_FILE_H_

// Whole files, gzipped or not.
//
//   DDPOPT_ASSIGN_OR_RETURN(std::string text, ReadFile("graph.json.gz"));
//
// Thread-safe. Errors name the path.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace ddpopt {

// The most bytes that a compressed file may hold: what is larger is taken for a damaged or hostile file.
inline constexpr int64_t kMaxUnzippedBytes = int64_t{1} << 32;

// The content of a file ("-": of standard input), unzipped if it starts as gzip does, whatever its name. Errors: NotFound, PermissionDenied,
// DataLoss for a damaged gzip stream.
absl::StatusOr<std::string> ReadFile(const std::string& path);
// Replaces the file.
absl::Status WriteFile(const std::string& path, absl::string_view content);

// The content of gzip data; one stream may follow another. Error: DataLoss, with the position in the compressed data.
absl::StatusOr<std::string> Unzip(absl::string_view data);

// `path` seen from where the user called: relative paths under `bazel run` start at BUILD_WORKING_DIRECTORY. "-" stays.
std::string UserPath(const std::string& path);

}  // namespace ddpopt

#endif  // DDPOPT_BASE_FILE_H_
