#include "ddpopt/capture/pt2/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/empty.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "fx_graph/tensor_meta.h"
#include "fx_graph/text/json_view.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

using fx::JsonView;

struct DtypeEntry {
  const char* name;
  c10::ScalarType dtype;
};
constexpr DtypeEntry kDtypes[] = {
    {"F64", c10::ScalarType::Double},
    {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"I64", c10::ScalarType::Long},
    {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},
    {"I8", c10::ScalarType::Char},
    {"U64", c10::ScalarType::UInt64},
    {"U32", c10::ScalarType::UInt32},
    {"U16", c10::ScalarType::UInt16},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
    {"C64", c10::ScalarType::ComplexFloat},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
    {"F8_E8M0", c10::ScalarType::Float8_e8m0fnu},
};

absl::Status FileError(const std::string& path) {
  const int error = errno;
  const std::string text = absl::StrCat("\"", path, "\": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

std::string ShapeText(at::IntArrayRef shape) { return absl::StrCat("[", absl::StrJoin(shape.vec(), ", "), "]"); }

}  // namespace

struct SafetensorsFile::File {
  explicit File(int fd) : fd(fd) {}
  ~File() { close(fd); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  // All of them, or false.
  bool ReadAt(int64_t offset, void* to, int64_t bytes) const {
    char* out = static_cast<char*>(to);
    while (bytes > 0) {
      const ssize_t got = pread(fd, out, static_cast<std::size_t>(std::min<int64_t>(bytes, int64_t{1} << 30)), offset);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      out += got;
      offset += got;
      bytes -= got;
    }
    return true;
  }
  const int fd;
};

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SafetensorsFile result;
  result.path_ = path;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError(path);
  result.file_ = std::make_shared<File>(fd);
  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(path);
  const auto error = [&](const auto&... parts) { return absl::DataLossError(absl::StrCat("\"", path, "\": ", parts...)); };
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\" is no regular file"));
  const int64_t size = info.st_size;
  uint64_t header_size = 0;
  if (size < 8 || !result.file_->ReadAt(0, &header_size, 8)) return error("expected a safetensors file of at least 8 bytes, got ", size);
  if (header_size < 2 || header_size > static_cast<uint64_t>(size) - 8 || header_size > 100'000'000) {
    return error("expected a header of 2 to ", std::min<int64_t>(size - 8, 100'000'000), " bytes, as a safetensors file begins, got ",
                 header_size);
  }
  std::string header(header_size, '\0');
  if (!result.file_->ReadAt(8, header.data(), static_cast<int64_t>(header_size))) return error("the header can't be read");
  const absl::StatusOr<fx::JsonValue> json = fx::ParseJson(header);
  if (!json.ok()) return absl::InvalidArgumentError(absl::StrCat("\"", path, "\": header: ", json.status().message()));

  const auto data_begin = static_cast<int64_t>(8 + header_size);
  const auto read = [&]() -> absl::Status {
    const JsonView root(*json);
    DDPOPT_RETURN_IF_ERROR(root.ExpectObject());
    for (std::size_t i = 0; i < root.size(); ++i) {
      const std::string& name = root.KeyAt(i);
      const JsonView view = root[i];
      DDPOPT_RETURN_IF_ERROR(view.ExpectObject());
      if (name == "__metadata__") {
        for (std::size_t k = 0; k < view.size(); ++k) {
          DDPOPT_ASSIGN_OR_RETURN(result.metadata_[view.KeyAt(k)], view[k].AsString());
        }
        continue;
      }
      DDPOPT_RETURN_IF_ERROR(view.ExpectKeys({"dtype", "shape", "data_offsets"}));
      Entry entry;
      DDPOPT_ASSIGN_OR_RETURN(const std::string dtype, view.String("dtype"));
      const auto* known =
          std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeEntry& candidate) { return dtype == candidate.name; });
      if (known == std::end(kDtypes)) return view.Error("\"", dtype, "\" is no dtype");
      entry.dtype = known->dtype;
      DDPOPT_ASSIGN_OR_RETURN(const JsonView shape, view.Array("shape"));
      DDPOPT_ASSIGN_OR_RETURN(entry.shape, shape.AsInts());
      DDPOPT_ASSIGN_OR_RETURN(const JsonView offsets_view, view.Array("data_offsets"));
      DDPOPT_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, offsets_view.AsInts());
      if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0] || offsets[1] > size - data_begin) {
        return view.Error("data_offsets: expected begin and end within the ", size - data_begin, " bytes after the header, got ",
                          offsets_view.Excerpt());
      }
      int64_t bytes = static_cast<int64_t>(c10::elementSize(entry.dtype));
      for (const int64_t length : entry.shape) {
        if (length < 0 || __builtin_mul_overflow(bytes, length, &bytes))
          return view.Error("shape: expected sizes that memory can hold, got ", shape.Excerpt());
      }
      if (bytes != offsets[1] - offsets[0])
        return view.Error("data_offsets: expected ", bytes, " bytes for this shape, got ", offsets[1] - offsets[0]);
      entry.begin = data_begin + offsets[0];
      entry.bytes = bytes;
      result.entries_.emplace(name, std::move(entry));
    }
    return absl::OkStatus();
  }();
  if (!read.ok()) return error("header: ", read.message());

  // Every byte belongs to one tensor.
  std::vector<std::pair<int64_t, int64_t>> spans;
  for (const auto& [name, entry] : result.entries_) {
    if (entry.bytes > 0) spans.emplace_back(entry.begin, entry.begin + entry.bytes);
  }
  std::sort(spans.begin(), spans.end());
  int64_t position = data_begin;
  for (const auto& [begin, end] : spans) {
    if (begin != position) return error("byte ", position, (begin > position ? " belongs to no tensor" : " belongs to two tensors"));
    position = end;
  }
  if (position != size) return error("expected ", position, " bytes, as the header says, got ", size);
  return result;
}

absl::StatusOr<const SafetensorsFile::Entry*> SafetensorsFile::Find(const std::string& name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) return absl::NotFoundError(absl::StrCat("\"", path_, "\" has no tensor \"", name, "\""));
  return &it->second;
}

absl::Status SafetensorsFile::ReadBytes(const std::string& name, const Entry& entry, void* to) const {
  if (file_->ReadAt(entry.begin, to, entry.bytes)) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("\"", path_, "\": the data of \"", name, "\" can't be read: the file was cut short"));
}

absl::StatusOr<at::Tensor> SafetensorsFile::Read(const std::string& name) const {
  DDPOPT_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  DDPOPT_ASSIGN_OR_RETURN(at::Tensor tensor, CatchAsStatus(name, [&] { return at::empty(entry->shape, at::TensorOptions(entry->dtype)); }));
  if (entry->bytes > 0) DDPOPT_RETURN_IF_ERROR(ReadBytes(name, *entry, tensor.mutable_data_ptr()));
  return tensor;
}

absl::Status SafetensorsFile::ReadInto(const std::string& name, const at::Tensor& tensor) const {
  DDPOPT_ASSIGN_OR_RETURN(const Entry* entry, Find(name));
  if (tensor.scalar_type() != entry->dtype || tensor.sizes().vec() != entry->shape) {
    return absl::InvalidArgumentError(absl::StrCat("\"", path_, "\": \"", name, "\" is ", c10::toString(entry->dtype), " ",
                                                   ShapeText(entry->shape), ", not ", c10::toString(tensor.scalar_type()), " ",
                                                   ShapeText(tensor.sizes())));
  }
  if (tensor.is_cpu() && tensor.is_contiguous()) {
    if (entry->bytes == 0) return absl::OkStatus();
    tensor.unsafeGetTensorImpl()->bump_version();
    return ReadBytes(name, *entry, tensor.mutable_data_ptr());
  }
  DDPOPT_ASSIGN_OR_RETURN(const at::Tensor data, Read(name));
  return CatchAsStatus(name, [&] {
    at::NoGradGuard no_grad;
    tensor.copy_(data);
  });
}

absl::Status WriteSafetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                              const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__" || !names.insert(name).second)
      return absl::InvalidArgumentError(absl::StrCat("two tensors can't be named \"", name, "\""));
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" is no dense tensor"));
    }
    if (fx::IsHollow(tensor) || tensor.is_meta()) return absl::InvalidArgumentError(absl::StrCat("\"", name, "\" has no data"));
    const auto* known =
        std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeEntry& entry) { return tensor.scalar_type() == entry.dtype; });
    if (known == std::end(kDtypes)) {
      return absl::InvalidArgumentError(absl::StrCat("\"", name, "\": safetensors has no dtype for ", c10::toString(tensor.scalar_type())));
    }
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    header[name] = {{"dtype", known->name}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text;
  DDPOPT_RETURN_IF_ERROR(CatchAsStatus("the header", [&] { text = header.dump(); }));
  text.resize((text.size() + 7) / 8 * 8, ' ');

  // A file of its own first, so that a failure leaves the old one.
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  const int fd = mkstemp(temporary.data());
  if (fd < 0) return FileError(path);
  const auto write_all = [&](const void* data, std::size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = write(fd, from, std::min<std::size_t>(bytes, std::size_t{1} << 30));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      from += written;
      bytes -= static_cast<std::size_t>(written);
    }
    return true;
  };
  const uint64_t header_size = text.size();
  bool good = write_all(&header_size, 8) && write_all(text.data(), text.size());
  absl::Status status;
  for (const auto& entry : tensors) {
    if (!good || !status.ok()) break;
    status = CatchAsStatus(entry.first, [&] {
      at::NoGradGuard no_grad;
      const at::Tensor data = entry.second.detach().resolve_conj().resolve_neg().cpu().contiguous();
      if (data.nbytes() > 0) good = write_all(data.const_data_ptr(), data.nbytes());
    });
  }
  if (good && status.ok()) {
    const mode_t mask = umask(0);
    umask(mask);
    good = fchmod(fd, 0666 & ~mask) == 0 && fsync(fd) == 0;
  }
  if (!good && status.ok()) status = FileError(path);
  if (close(fd) != 0 && status.ok()) status = FileError(path);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) status = FileError(path);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

absl::Status LoadWeights(ExportedProgram* program, const std::string& path) {
  DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  // Any of a tied tensor's names will do.
  std::map<std::string, std::vector<std::string>> names;
  for (const auto& [alias, first] : program->tied()) names[first].push_back(alias);
  std::set<std::string> used;
  std::vector<std::pair<std::string, at::Tensor>> wanted;  // a name in the file
  const auto want = [&](const std::string& name, const at::Tensor& tensor, bool required) -> absl::Status {
    std::vector<std::string> candidates = {name};
    if (const auto it = names.find(name); it != names.end()) candidates.insert(candidates.end(), it->second.begin(), it->second.end());
    bool found = false;
    for (const std::string& candidate : candidates) {
      if (!file.Has(candidate)) continue;
      used.insert(candidate);
      if (std::exchange(found, true)) continue;
      const SafetensorsFile::Entry& entry = file.entries().at(candidate);
      if (entry.dtype != tensor.scalar_type() || entry.shape != tensor.sizes().vec()) {
        return absl::InvalidArgumentError(absl::StrCat("\"", path, "\": \"", candidate, "\" is ", c10::toString(entry.dtype), " ",
                                                       ShapeText(entry.shape), ", but the program's is ",
                                                       c10::toString(tensor.scalar_type()), " ", ShapeText(tensor.sizes())));
      }
      wanted.emplace_back(candidate, tensor);
    }
    if (!found && required) return absl::NotFoundError(absl::StrCat("\"", path, "\" has no tensor \"", name, "\""));
    return absl::OkStatus();
  };
  for (const auto& parameter : program->parameters()) DDPOPT_RETURN_IF_ERROR(want(parameter.name, parameter.tensor, true));
  for (const auto& buffer : program->buffers()) DDPOPT_RETURN_IF_ERROR(want(buffer.name, buffer.tensor, buffer.persistent));
  for (const auto& constant : program->constants()) DDPOPT_RETURN_IF_ERROR(want(constant.name, constant.tensor, false));
  for (const auto& [name, entry] : file.entries()) {
    if (!used.contains(name))
      return absl::InvalidArgumentError(absl::StrCat("\"", path, "\": the program has no parameter or buffer \"", name, "\""));
  }
  for (const auto& [name, tensor] : wanted) {
    if (fx::IsHollow(tensor)) {
      DDPOPT_ASSIGN_OR_RETURN(at::Tensor data, file.Read(name));
      DDPOPT_RETURN_IF_ERROR(program->SetTensor(name, std::move(data)));
    } else {
      DDPOPT_RETURN_IF_ERROR(file.ReadInto(name, tensor));
    }
  }
  return absl::OkStatus();
}

absl::Status SaveWeights(const ExportedProgram& program, const std::string& path) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& parameter : program.parameters()) tensors.emplace_back(parameter.name, parameter.tensor);
  for (const auto& buffer : program.buffers()) {
    if (buffer.persistent) tensors.emplace_back(buffer.name, buffer.tensor);
  }
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  for (const auto& [alias, first] : program.tied()) metadata[alias] = first;
  return WriteSafetensors(path, tensors, metadata);
}

}  // namespace ddpopt
