#include "ddpopt/checkpoint/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "caffe2/serialize/inline_container.h"
#include "caffe2/serialize/read_adapter_interface.h"
#include "nlohmann/json.hpp"
#include "zlib.h"

namespace ddpopt {
namespace {

constexpr char kSegmentsRecord[] = "segments";
constexpr char kDirectory[] = "the archive's directory";
constexpr std::size_t kChunk = std::size_t{1} << 20;
constexpr int kFormat = 1;

uint32_t Crc(uint32_t crc, const void* data, std::size_t bytes) {
  const auto* from = static_cast<const Bytef*>(data);
  while (bytes > 0) {  // zlib counts in 32 bits
    const std::size_t part = std::min<std::size_t>(bytes, std::size_t{1} << 30);
    crc = static_cast<uint32_t>(crc32(crc, from, static_cast<uInt>(part)));
    from += part;
    bytes -= part;
  }
  return crc;
}

// The last line of the file.
struct EndMark {
  int format = kFormat;
  uint64_t segments_begin = 0;  // the segment of the record "segments"
  uint64_t segments_end = 0;
  uint64_t archive_end = 0;  // the directory is between the two
  uint32_t segments_crc = 0;
  uint32_t directory_crc = 0;
};

std::string Print(const EndMark& mark) {
  const std::string text = absl::StrFormat("\nddpopt-checkpoint %04x %016x %016x %016x %08x %08x ", mark.format, mark.segments_begin,
                                           mark.segments_end, mark.archive_end, mark.segments_crc, mark.directory_crc);
  return absl::StrCat(text, absl::StrFormat("%08x\n", Crc(0, text.data(), text.size())));
}
const std::size_t kEndMarkBytes = Print({}).size();

bool Parse(const std::string& text, EndMark* mark) {
  int used = 0;
  unsigned format = 0, own = 0, segments_crc = 0, directory_crc = 0;
  if (std::sscanf(text.c_str(), "\nddpopt-checkpoint %4x %16" SCNx64 " %16" SCNx64 " %16" SCNx64 " %8x %8x %8x%n", &format,
                  &mark->segments_begin, &mark->segments_end, &mark->archive_end, &segments_crc, &directory_crc, &own, &used) != 7) {
    return false;
  }
  mark->format = static_cast<int>(format);
  mark->segments_crc = segments_crc;
  mark->directory_crc = directory_crc;
  return Print(*mark) == text;  // its own checksum included
}

// What is read of a file, which ends for LibTorch where the archive does.
class FileReader : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit FileReader(int fd) : fd_(fd) {}
  ~FileReader() override { close(fd_); }
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  void set_size(uint64_t size) { size_ = size; }
  size_t size() const override { return size_; }
  size_t read(uint64_t offset, void* to, size_t bytes, const char* /*what*/ = "") const override {
    std::size_t done = 0;
    while (done < bytes && offset + done < size_) {
      const std::size_t part = std::min<std::size_t>({bytes - done, static_cast<std::size_t>(size_ - offset - done), std::size_t{1} << 30});
      const ssize_t got = pread(fd_, static_cast<char*>(to) + done, part, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }
  // False if the bytes can't be read.
  bool CrcOf(uint64_t begin, uint64_t end, uint32_t* crc) const {
    std::vector<char> buffer(std::min<uint64_t>(kChunk, end - begin));
    *crc = 0;
    while (begin < end) {
      const std::size_t part = std::min<uint64_t>(buffer.size(), end - begin);
      if (read(begin, buffer.data(), part) != part) return false;
      *crc = Crc(*crc, buffer.data(), part);
      begin += part;
    }
    return true;
  }

 private:
  const int fd_;
  uint64_t size_ = 0;
};

}  // namespace

absl::Status SystemError(const std::string& path, int error) {
  const std::string text = absl::StrCat("\"", path, "\": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

absl::Status FlushFolder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError(folder, errno);
  const int flushed = fsync(fd);
  const int error = errno;
  close(fd);
  // Some file systems can't flush a folder.
  return flushed == 0 || error == EINVAL ? absl::OkStatus() : SystemError(folder, error);
}

absl::StatusOr<std::unique_ptr<RecordWriter>> RecordWriter::Create(const std::string& folder, const std::string& name) {
  std::unique_ptr<RecordWriter> result(new RecordWriter());
  result->folder_ = folder;
  result->path_ = absl::StrCat(folder, "/", name);
  // A file of its own first: whatever happens until it gets its name, what is there stays.
  result->temporary_ = absl::StrCat(folder, "/.", name, ".XXXXXX");
  result->fd_ = mkostemp(result->temporary_.data(), O_CLOEXEC);
  if (result->fd_ < 0) return SystemError(result->path_, errno);
  RecordWriter* writer = result.get();
  DDPOPT_RETURN_IF_ERROR(CatchAsStatus(result->path_, [&] {
    writer->writer_ = std::make_unique<caffe2::serialize::PyTorchStreamWriter>(
        [writer](const void* data, size_t bytes) { return writer->Write(data, bytes); });
  }));
  return result;
}

RecordWriter::~RecordWriter() {
  // LibTorch's writer ends its archive when it dies; it must not throw from there.
  if (error_ == 0 && fd_ >= 0) error_ = ECANCELED;
  writer_.reset();
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

// Says after a failure that all is well: LibTorch would throw, later from its destructor too. Commit tells of it.
std::size_t RecordWriter::Write(const void* data, std::size_t bytes) {
  if (error_ != 0) return bytes;
  const char* from = static_cast<const char*>(data);
  std::size_t left = bytes;
  while (left > 0) {
    const ssize_t written = write(fd_, from, std::min<std::size_t>(left, std::size_t{1} << 30));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      error_ = written < 0 ? errno : ENOSPC;
      return bytes;
    }
    from += written;
    left -= static_cast<std::size_t>(written);
  }
  crc_ = Crc(crc_, data, bytes);
  position_ += bytes;
  return bytes;
}

void RecordWriter::EndSegment(const std::string& record) {
  segments_.push_back({record, position_, crc_});
  crc_ = 0;
}

void RecordWriter::Add(const std::string& record, const void* data, std::size_t bytes) {
  if (error_ != 0 || !exception_.empty()) return;
  try {
    writer_->writeRecord(record, data, bytes);
  } catch (const std::exception& e) {
    exception_ = absl::StrCat("record \"", record, "\": ", ExceptionMessage(e));
  }
  EndSegment(record);
}

absl::Status RecordWriter::Error() const {
  if (error_ != 0) return SystemError(path_, error_);
  if (!exception_.empty()) return absl::InternalError(absl::StrCat("\"", path_, "\": ", exception_));
  return absl::OkStatus();
}

absl::Status RecordWriter::Commit() {
  EndMark mark;
  mark.segments_begin = position_;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Segment& segment : segments_) list.push_back({segment.record, segment.end, segment.crc});
  std::string text;
  DDPOPT_RETURN_IF_ERROR(CatchAsStatus(path_, [&] { text = list.dump(); }));
  Add(kSegmentsRecord, text.data(), text.size());
  DDPOPT_RETURN_IF_ERROR(Error());
  mark.segments_end = position_;
  mark.segments_crc = segments_.back().crc;
  try {
    writer_->writeEndOfFile();
  } catch (const std::exception& e) {
    exception_ = ExceptionMessage(e);
  }
  EndSegment(kDirectory);
  mark.archive_end = position_;
  mark.directory_crc = segments_.back().crc;
  const std::string end = Print(mark);
  Write(end.data(), end.size());
  DDPOPT_RETURN_IF_ERROR(Error());

  const mode_t mask = umask(0);
  umask(mask);
  if (fchmod(fd_, 0666 & ~mask) != 0 || fsync(fd_) != 0) return SystemError(path_, errno);
  if (close(std::exchange(fd_, -1)) != 0 || rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    unlink(temporary_.c_str());
    return SystemError(path_, error);
  }
  return FlushFolder(folder_);
}

absl::StatusOr<RecordFile> RecordFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError(path, errno);
  const auto file = std::make_shared<FileReader>(fd);
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError(path, errno);
  const auto lost = [&](const auto&... parts) { return absl::DataLossError(absl::StrCat("\"", path, "\": ", parts...)); };
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is no regular file"));
  const auto size = static_cast<uint64_t>(info.st_size);
  file->set_size(size);

  if (size < kEndMarkBytes) return lost("expected a checkpoint, got ", size, " bytes, which can't hold its end mark");
  std::string text(kEndMarkBytes, '\0');
  if (file->read(size - kEndMarkBytes, text.data(), kEndMarkBytes) != kEndMarkBytes) return lost("the end mark can't be read");
  EndMark mark;
  if (!Parse(text, &mark)) {
    char begin[4] = {};
    if (file->read(0, begin, 4) != 4 || std::memcmp(begin, "PK\3\4", 4) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", path, "\": expected a checkpoint, which begins as a zip archive does, and ends with an end mark"));
    }
    return lost("expected an end mark in the last ", kEndMarkBytes, " bytes: the file of ", size,
                " bytes was cut short, or its end was altered");
  }
  if (mark.format > kFormat) {
    return absl::UnimplementedError(
        absl::StrCat("\"", path, "\": has format ", mark.format, ", and this program reads formats up to ", kFormat));
  }
  if (mark.archive_end != size - kEndMarkBytes || mark.segments_end > mark.archive_end || mark.segments_begin > mark.segments_end) {
    return lost("the end mark is of an archive of ", mark.archive_end, " bytes, the file has ", size - kEndMarkBytes,
                ": something is missing or added");
  }
  file->set_size(mark.archive_end);

  const auto check = [&](absl::string_view record, uint64_t begin, uint64_t end, uint32_t expected) -> absl::Status {
    uint32_t crc = 0;
    if (!file->CrcOf(begin, end, &crc)) return lost(record, ": bytes ", begin, " to ", end, " can't be read");
    if (crc == expected) return absl::OkStatus();
    return lost(record, " (bytes ", begin, " to ", end, ") was altered: expected checksum ", absl::StrFormat("%08x", expected), ", got ",
                absl::StrFormat("%08x", crc));
  };
  DDPOPT_RETURN_IF_ERROR(check(kDirectory, mark.segments_end, mark.archive_end, mark.directory_crc));
  DDPOPT_RETURN_IF_ERROR(
      check(absl::StrCat("record \"", kSegmentsRecord, "\""), mark.segments_begin, mark.segments_end, mark.segments_crc));

  RecordFile result;
  result.path_ = path;
  result.fingerprint_ = text.substr(text.find(' ') + 1, text.size() - text.find(' ') - 2);
  DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("\"", path, "\""), [&] {
    result.reader_ =
        std::make_shared<caffe2::serialize::PyTorchStreamReader>(std::static_pointer_cast<caffe2::serialize::ReadAdapterInterface>(file));
  }));
  DDPOPT_ASSIGN_OR_RETURN(const std::string segments, result.Read(kSegmentsRecord));
  const nlohmann::json list = nlohmann::json::parse(segments, nullptr, /*allow_exceptions=*/false);
  const auto malformed = [&] {
    return lost("record \"", kSegmentsRecord, "\": expected a list of [record, end, checksum] that covers the file");
  };
  if (!list.is_array()) return malformed();
  uint64_t begin = 0;
  for (const auto& entry : list) {
    if (!entry.is_array() || entry.size() != 3 || !entry[0].is_string() || !entry[1].is_number_unsigned() || !entry[2].is_number_unsigned())
      return malformed();
    const auto end = entry[1].get<uint64_t>();
    if (end < begin || end > mark.segments_begin) return malformed();
    DDPOPT_RETURN_IF_ERROR(check(absl::StrCat("record \"", entry[0].get<std::string>(), "\""), begin, end, entry[2].get<uint32_t>()));
    begin = end;
  }
  if (begin != mark.segments_begin) return malformed();
  return result;
}

absl::StatusOr<std::string> RecordFile::Read(const std::string& record) const {
  const std::string context = absl::StrCat("\"", path_, "\": record \"", record, "\"");
  std::size_t bytes = 0;
  DDPOPT_RETURN_IF_ERROR(CatchAsStatus(context, [&]() -> absl::Status {
    if (!reader_->hasRecord(record)) return absl::NotFoundError(absl::StrCat(context, " is missing"));
    bytes = reader_->getRecordSize(record);
    return absl::OkStatus();
  }));
  std::string text(bytes, '\0');
  DDPOPT_RETURN_IF_ERROR(Read(record, text.data(), bytes));
  return text;
}

absl::Status RecordFile::Read(const std::string& record, void* to, std::size_t bytes) const {
  const std::string context = absl::StrCat("\"", path_, "\": record \"", record, "\"");
  return CatchAsStatus(context, [&]() -> absl::Status {
    if (!reader_->hasRecord(record)) return absl::NotFoundError(absl::StrCat(context, " is missing"));
    const std::size_t size = reader_->getRecordSize(record);
    if (size != bytes) return absl::DataLossError(absl::StrCat(context, " has ", size, " bytes, expected ", bytes));
    if (bytes > 0) reader_->getRecord(record, to, bytes);
    return absl::OkStatus();
  });
}

}  // namespace ddpopt
