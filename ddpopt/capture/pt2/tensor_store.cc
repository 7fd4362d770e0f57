#include "ddpopt/capture/pt2/tensor_store.h"

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "ddpopt/capture/pt2/read_graph.h"

namespace ddpopt::pt2 {

using fx::JsonView;

absl::Status OfRecord(absl::string_view record, const absl::Status& status) {
  return Annotate(status, absl::StrCat("record \"", record, "\""));
}

absl::Status TensorStore::Begin(const std::string& config_record) {
  config_record_ = config_record;
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, archive_->Text(config_record));
  absl::StatusOr<fx::JsonValue> json = fx::ParseJson(text);
  if (!json.ok()) return OfRecord(config_record, json.status());
  json_ = *std::move(json);
  root_ = std::make_unique<JsonView>(json_);
  absl::StatusOr<JsonView> config = root_->Object("config");
  if (!config.ok()) return OfRecord(config_record, config.status());
  config_ = std::make_unique<JsonView>(*config);
  return absl::OkStatus();
}

std::vector<std::string> TensorStore::Names() const {
  std::vector<std::string> names;
  for (std::size_t i = 0; config_ != nullptr && i < config_->size(); ++i) names.push_back(config_->KeyAt(i));
  return names;
}

absl::StatusOr<bool> TensorStore::IsParameter(const std::string& name) const {
  DDPOPT_ASSIGN_OR_RETURN(const JsonView entry, config_->Object(name));
  return entry.BoolOr("is_param", false);
}

absl::StatusOr<at::Tensor> TensorStore::Read(const std::string& name) {
  const absl::StatusOr<at::Tensor> tensor = ReadEntry(name);
  return tensor.ok() || absl::StartsWith(tensor.status().message(), "record ") ? tensor : OfRecord(config_record_, tensor.status());
}

absl::StatusOr<c10::Storage> TensorStore::ReadStorage(const std::string& record, const fx::TensorMeta& meta, const std::string& name) {
  DDPOPT_ASSIGN_OR_RETURN(const int64_t size, archive_->Size(record));
  if (size < meta.storage_nbytes) {
    return absl::DataLossError(
        absl::StrCat("record \"", record, "\": expected at least ", meta.storage_nbytes, " bytes for \"", name, "\", got ", size));
  }
  if (data_) return archive_->Read(record);
  fx::TensorMeta bytes;
  bytes.sizes = {size};
  bytes.strides = {1};
  bytes.dtype = at::kByte;
  bytes.storage_nbytes = size;
  DDPOPT_ASSIGN_OR_RETURN(const at::Tensor hollow, fx::HollowTensor(bytes));
  return hollow.storage();
}

absl::StatusOr<at::Tensor> TensorStore::ReadEntry(const std::string& name) {
  DDPOPT_ASSIGN_OR_RETURN(const JsonView entry, config_->Object(name));
  DDPOPT_ASSIGN_OR_RETURN(const std::string path, entry.String("path_name"));
  DDPOPT_ASSIGN_OR_RETURN(const bool pickled, entry.BoolOr("use_pickle", false));
  if (path.empty() || absl::StrContains(path, "/") || absl::StrContains(path, "\\") || absl::StartsWith(path, ".")) {
    return entry.Error("path_name: expected the name of a record of ", folder_, ", got \"", path, "\"");
  }
  if (pickled) {
    return absl::UnimplementedError(absl::StrCat(
        entry.Path(), ": \"", name, "\" is pickled (a tensor subclass or another object of Python); only raw tensors are read"));
  }
  DDPOPT_ASSIGN_OR_RETURN(const JsonView description, entry.Object("tensor_meta"));
  DDPOPT_ASSIGN_OR_RETURN(RecordedMeta recorded, ReadTensorMeta(description));
  if (!recorded.strided) return absl::UnimplementedError(absl::StrCat(description.Path(), ": only strided tensors are read"));
  if (!recorded.symbolic.empty()) return description.Expected("fixed sizes");
  if (!recorded.meta.device.is_cpu()) {
    // The bytes are the same; the graph says where it wants them.
    recorded.meta.device = c10::Device(c10::DeviceType::CPU);
  }
  const std::string record = absl::StrCat(folder_, path);
  auto it = loaded_.find(record);
  if (it == loaded_.end()) {
    DDPOPT_ASSIGN_OR_RETURN(c10::Storage storage, ReadStorage(record, recorded.meta, name));
    it = loaded_.emplace(record, Loaded{std::move(storage), {}}).first;
  }
  Loaded& loaded = it->second;
  const auto bytes = static_cast<int64_t>(loaded.storage.nbytes());
  if (bytes < recorded.meta.storage_nbytes) {
    return absl::DataLossError(absl::StrCat("record \"", record, "\": expected at least ", recorded.meta.storage_nbytes, " bytes for \"",
                                            name, "\", got ", bytes));
  }
  recorded.meta.storage_nbytes = bytes;
  for (const auto& [meta, tensor] : loaded.tensors) {
    if (meta == recorded.meta) return tensor;
  }
  absl::StatusOr<at::Tensor> tensor = fx::TensorOver(recorded.meta, loaded.storage);
  if (!tensor.ok()) return description.Error(tensor.status().message());
  loaded.tensors.emplace_back(recorded.meta, *tensor);
  return tensor;
}

}  // namespace ddpopt::pt2
