#ifndef DDPOPT_CAPTURE_PT2_SAFETENSORS_H_
#define DDPOPT_CAPTURE_PT2_SAFETENSORS_H_

// Tensors by name in a safetensors file, and an exported program's weights in one.
//
//   DDPOPT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open("weights.safetensors"));
//   DDPOPT_ASSIGN_OR_RETURN(at::Tensor w, file.Read("layer.weight"));
//   DDPOPT_RETURN_IF_ERROR(LoadWeights(program.get(), "weights.safetensors"));
//   DDPOPT_RETURN_IF_ERROR(SaveWeights(*program, "trained.safetensors"));
//
// The reader is strict: a header that doesn't describe the file to the byte is refused, and no memory is taken that the file can't fill. Numbers are little-endian,
// as on all platforms that this runs on. Errors name the file and the tensor: NotFound, PermissionDenied; DataLoss for what is cut short or doesn't
// fit; InvalidArgument for what is no safetensors file.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "c10/core/ScalarType.h"
#include "ddpopt/capture/pt2/exported_program.h"

namespace ddpopt {

class SafetensorsFile {
 public:
  struct Entry {
    c10::ScalarType dtype = c10::ScalarType::Float;
    std::vector<int64_t> shape;
    int64_t begin = 0;  // in the file
    int64_t bytes = 0;
  };

  // Reads the header and keeps the file open.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  const std::map<std::string, Entry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool Has(const std::string& name) const { return entries_.contains(name); }

  // A new contiguous tensor on the CPU. Thread-safe.
  absl::StatusOr<at::Tensor> Read(const std::string& name) const;
  // Into a tensor's own memory, whatever its strides, device and history; shape and dtype must be the file's.
  absl::Status ReadInto(const std::string& name, const at::Tensor& tensor) const;

 private:
  struct File;
  SafetensorsFile() = default;
  absl::StatusOr<const Entry*> Find(const std::string& name) const;
  absl::Status ReadBytes(const std::string& name, const Entry& entry, void* to) const;

  std::string path_;
  std::shared_ptr<File> file_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Replaces the file, all or nothing. Tensors of any strides and device; sparse and quantised ones, and dtypes that the format lacks, are InvalidArgument.
absl::Status WriteSafetensors(const std::string& path, const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                              const std::map<std::string, std::string>& metadata = {});

// Fills the program's parameters and persistent buffers (in place where they have data) from a file that has each of them under one of its names, and
// nothing that the program doesn't know. Nothing is changed if there is an error in names, shapes or dtypes.
absl::Status LoadWeights(ExportedProgram* program, const std::string& path);
// Parameters and persistent buffers, each once under its first name; further names are in the metadata.
absl::Status SaveWeights(const ExportedProgram& program, const std::string& path);

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_PT2_SAFETENSORS_H_
