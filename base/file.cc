#include "base/file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "zlib.h"

namespace ddpopt {
namespace {

absl::Status ErrnoStatus(const std::string& path, int error) {
  const std::string message = absl::StrCat("\"", path, "\": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    default:
      return absl::UnknownError(message);
  }
}

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

}  // namespace

absl::StatusOr<std::string> Unzip(absl::string_view data) {
  z_stream stream = {};
  constexpr int kGzip = 16;  // added to the window's bits: expect gzip's header
  if (inflateInit2(&stream, kGzip + MAX_WBITS) != Z_OK) return absl::ResourceExhaustedError("zlib could not start");
  const std::unique_ptr<z_stream, int (*)(z_stream*)> end(&stream, &inflateEnd);
  std::string content;
  content.resize(std::max<std::size_t>(4 * data.size(), 4096));
  std::size_t written = 0, read = 0;
  while (true) {
    if (written == content.size()) {
      if (static_cast<int64_t>(written) >= kMaxUnzippedBytes) {
        return absl::DataLossError(absl::StrCat("the gzip data unzips to more than ", kMaxUnzippedBytes, " bytes"));
      }
      content.resize(2 * content.size());
    }
    // zlib counts in 32 bits.
    const std::size_t input = std::min<std::size_t>(data.size() - read, 1 << 30);
    const std::size_t room = std::min<std::size_t>(content.size() - written, 1 << 30);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data() + read));
    stream.avail_in = static_cast<uInt>(input);
    stream.next_out = reinterpret_cast<Bytef*>(content.data() + written);
    stream.avail_out = static_cast<uInt>(room);
    const int result = inflate(&stream, Z_NO_FLUSH);
    read += input - stream.avail_in;
    written += room - stream.avail_out;
    if (result == Z_STREAM_END) {
      if (read == data.size()) break;
      if (inflateReset(&stream) != Z_OK) return absl::InternalError("zlib could not start again");
      continue;
    }
    if (result == Z_OK && (stream.avail_out == 0 || read < data.size())) continue;
    if (result == Z_BUF_ERROR && stream.avail_out == 0) continue;
    if (result == Z_OK || result == Z_BUF_ERROR) return absl::DataLossError(absl::StrCat("the gzip data is cut off after ", data.size(), " bytes"));
    return absl::DataLossError(
        absl::StrCat("the gzip data is damaged at byte ", read, ": ", stream.msg == nullptr ? zError(result) : stream.msg));
  }
  content.resize(written);
  return content;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  const std::unique_ptr<std::FILE, CloseFile> file(path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  if (file == nullptr) return ErrnoStatus(path, errno);
  std::string content;
  char buffer[1 << 16];
  std::size_t count;
  while ((count = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) content.append(buffer, count);
  if (std::ferror(file.get()) != 0) return ErrnoStatus(path, errno);
  if (content.size() < 2 || content[0] != '\x1f' || content[1] != '\x8b') return content;
  absl::StatusOr<std::string> unzipped = Unzip(content);
  if (!unzipped.ok()) return Annotate(unzipped.status(), absl::StrCat("\"", path, "\""));
  return unzipped;
}

absl::Status WriteFile(const std::string& path, absl::string_view content) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return ErrnoStatus(path, errno);
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const int error = errno;
  if (std::fclose(file) != 0) return ErrnoStatus(path, errno);
  return written ? absl::OkStatus() : ErrnoStatus(path, error);
}

std::string UserPath(const std::string& path) {
  const char* base = std::getenv("BUILD_WORKING_DIRECTORY");
  if (base == nullptr || path.empty() || path == "-" || path[0] == '/') return path;
  return absl::StrCat(base, "/", path);
}

}  // namespace ddpopt
