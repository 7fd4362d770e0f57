#ifndef DDPOPT_CAPTURE_PT2_ARCHIVE_H_
#define DDPOPT_CAPTURE_PT2_ARCHIVE_H_

// The records of a torch.export archive: a zip whose records lie under one root folder.
//
//   DDPOPT_ASSIGN_OR_RETURN(std::unique_ptr<Archive> archive, Archive::Open("model.pt2"));
//   DDPOPT_ASSIGN_OR_RETURN(const std::string json, archive->Text("models/model.json"));
//
// Nothing is ever read outside the file, and a record is read only if the file can hold as much as it claims. One thread at a time.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "c10/core/Storage.h"

namespace ddpopt::pt2 {

class Archive {
 public:
  // Errors: NotFound, PermissionDenied; DataLoss for a file that is no intact zip of PyTorch's.
  static absl::StatusOr<std::unique_ptr<Archive>> Open(const std::string& path);
  ~Archive();
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  bool Has(const std::string& record) const;
  // Below the root folder.
  const std::vector<std::string>& records() const { return records_; }
  // Errors: NotFound, DataLoss, naming the record.
  absl::StatusOr<int64_t> Size(const std::string& record);
  absl::StatusOr<std::string> Text(const std::string& record);
  // Read into memory of its own, which the storage owns.
  absl::StatusOr<c10::Storage> Read(const std::string& record);

 private:
  struct Reader;
  Archive(std::unique_ptr<Reader> reader, int64_t file_size);

  std::unique_ptr<Reader> reader_;
  const int64_t file_size_;
  std::vector<std::string> records_;
};

}  // namespace ddpopt::pt2

#endif  // DDPOPT_CAPTURE_PT2_ARCHIVE_H_
