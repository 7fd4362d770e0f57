#include "ddpopt/capture/pt2/archive.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "c10/core/CPUAllocator.h"
#include "caffe2/serialize/inline_container.h"

namespace ddpopt::pt2 {
namespace {

// What deflate can make of a byte, at the most.
constexpr int64_t kMaxExpansion = 1040;

absl::Status Damaged(const std::string& record, const absl::Status& status) {
  return absl::DataLossError(absl::StrCat("record \"", record, "\": expected an intact record of the archive, got: ", status.message()));
}

}  // namespace

struct Archive::Reader {
  explicit Reader(const std::string& path) : stream(path) {}
  caffe2::serialize::PyTorchStreamReader stream;
};

Archive::Archive(std::unique_ptr<Reader> reader, int64_t file_size) : reader_(std::move(reader)), file_size_(file_size) {}
Archive::~Archive() = default;

absl::StatusOr<std::unique_ptr<Archive>> Archive::Open(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    const std::string text = absl::StrCat("\"", path, "\": ", std::strerror(errno));
    return errno == EACCES ? absl::PermissionDeniedError(text) : absl::NotFoundError(text);
  }
  absl::StatusOr<std::unique_ptr<Reader>> reader = CatchAsStatus("opening it", [&] { return std::make_unique<Reader>(path); });
  if (!reader.ok()) {
    return absl::DataLossError(
        absl::StrCat("\"", path, "\": expected a zip archive of torch.export.save, got: ", reader.status().message()));
  }
  auto archive = std::unique_ptr<Archive>(new Archive(*std::move(reader), info.st_size));
  const absl::Status listed = CatchAsStatus("the list of records", [&] { archive->records_ = archive->reader_->stream.getAllRecords(); });
  if (!listed.ok()) return absl::DataLossError(absl::StrCat("\"", path, "\": ", listed.message()));
  std::sort(archive->records_.begin(), archive->records_.end());
  return archive;
}

bool Archive::Has(const std::string& record) const { return std::binary_search(records_.begin(), records_.end(), record); }

absl::StatusOr<int64_t> Archive::Size(const std::string& record) {
  if (!Has(record)) return absl::NotFoundError(absl::StrCat("the archive has no record \"", record, "\""));
  const absl::StatusOr<std::size_t> size = CatchAsStatus("its size", [&] { return reader_->stream.getRecordSize(record); });
  if (!size.ok()) return Damaged(record, size.status());
  if (*size > static_cast<std::size_t>(file_size_) * kMaxExpansion) {
    return absl::DataLossError(
        absl::StrCat("record \"", record, "\" claims ", *size, " bytes, which a file of ", file_size_, " can't hold"));
  }
  return static_cast<int64_t>(*size);
}

absl::StatusOr<std::string> Archive::Text(const std::string& record) {
  DDPOPT_ASSIGN_OR_RETURN(const int64_t size, Size(record));
  std::string text(static_cast<std::size_t>(size), '\0');
  if (size == 0) return text;
  const absl::StatusOr<std::size_t> read =
      CatchAsStatus("reading it", [&] { return reader_->stream.getRecord(record, text.data(), text.size()); });
  if (!read.ok()) return Damaged(record, read.status());
  return text;
}

absl::StatusOr<c10::Storage> Archive::Read(const std::string& record) {
  DDPOPT_ASSIGN_OR_RETURN(const int64_t size, Size(record));
  return CatchAsStatus("making room for it", [&]() -> absl::StatusOr<c10::Storage> {
    c10::Storage storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(size), c10::GetCPUAllocator(), /*resizable=*/true);
    if (size == 0) return storage;
    const absl::StatusOr<std::size_t> read = CatchAsStatus(
        "reading it", [&] { return reader_->stream.getRecord(record, storage.mutable_data(), static_cast<std::size_t>(size)); });
    if (!read.ok()) return Damaged(record, read.status());
    return storage;
  });
}

}  // namespace ddpopt::pt2
