#ifndef DDPOPT_CHECKPOINT_RECORD_FILE_H_
#define DDPOPT_CHECKPOINT_RECORD_FILE_H_

// Named records in one of LibTorch's archives, written all or nothing, and read only if every byte is what was written. Internal to
// checkpoints.
//
//   DDPOPT_ASSIGN_OR_RETURN(auto writer, RecordWriter::Create("folder", "name"));
//   writer->Add("tensors/0", data, bytes);
//   DDPOPT_RETURN_IF_ERROR(writer->Commit());      // folder/name is there now, and on the disk
//   DDPOPT_ASSIGN_OR_RETURN(RecordFile file, RecordFile::Open("folder/name"));
//   DDPOPT_RETURN_IF_ERROR(file.Read("tensors/0", data, bytes));
//
// The file is PyTorchStreamWriter's zip archive, which any zip reader opens, and after it a line of fixed length, the end mark. The archive
// is a row of segments, one for what each record made the writer write (its header and padding included); the last record, "segments", has
// the others' ends and CRC-32s, and the end mark its own and that of the archive's directory. So each byte of the file is under one
// checksum.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace caffe2::serialize {
class PyTorchStreamReader;
class PyTorchStreamWriter;
}  // namespace caffe2::serialize

namespace ddpopt {

// One thread. Without Commit nothing is left.
class RecordWriter {
 public:
  // Errors as of Commit.
  static absl::StatusOr<std::unique_ptr<RecordWriter>> Create(const std::string& folder, const std::string& name);
  ~RecordWriter();

  // An error is kept for Commit.
  void Add(const std::string& record, const void* data, std::size_t bytes);
  // Flushes the file to the disk, gives it its name in one step, and flushes the folder. Errors name the file: ResourceExhausted for a full
  // disk, a quota or a limit on file sizes, PermissionDenied, NotFound, Unavailable for others of the system.
  absl::Status Commit();

 private:
  struct Segment {
    std::string record;
    uint64_t end;
    uint32_t crc;
  };
  RecordWriter() = default;
  std::size_t Write(const void* data, std::size_t bytes);
  void EndSegment(const std::string& record);
  absl::Status Error() const;

  std::string folder_, path_, temporary_;
  int fd_ = -1;
  int error_ = 0;          // errno of the first failure
  std::string exception_;  // what LibTorch's writer threw
  uint64_t position_ = 0;
  uint32_t crc_ = 0;
  std::vector<Segment> segments_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamWriter> writer_;
};

// Copies share the open file. Thread-safe.
class RecordFile {
 public:
  // Reads the whole file once, to check it. Errors name the file, the record and what was expected: NotFound, PermissionDenied, DataLoss
  // for a file that was cut short or altered, InvalidArgument for one that is no such file, Unimplemented for a newer format.
  static absl::StatusOr<RecordFile> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Of the file's checksums: differs between any two files that differ.
  const std::string& fingerprint() const { return fingerprint_; }
  absl::StatusOr<std::string> Read(const std::string& record) const;
  // The record must have this many bytes.
  absl::Status Read(const std::string& record, void* to, std::size_t bytes) const;

 private:
  RecordFile() = default;
  std::string path_, fingerprint_;
  std::shared_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

// The message of a failed system call on `path`, with the code that fits: see RecordWriter::Commit.
absl::Status SystemError(const std::string& path, int error);

// Flushes to the disk which names a folder has.
absl::Status FlushFolder(const std::string& folder);

}  // namespace ddpopt

#endif  // DDPOPT_CHECKPOINT_RECORD_FILE_H_
