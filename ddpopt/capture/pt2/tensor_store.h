#ifndef DDPOPT_CAPTURE_PT2_TENSOR_STORE_H_
#define DDPOPT_CAPTURE_PT2_TENSOR_STORE_H_

// The tensors of an archive's data/weights or data/constants, read once for each record. Private to this package.
//
//   TensorStore weights(archive.get(), "data/weights/");
//   DDPOPT_RETURN_IF_ERROR(weights.Begin("data/weights/model_weights_config.json"));
//   DDPOPT_ASSIGN_OR_RETURN(at::Tensor tensor, weights.Read("l.weight"));

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ddpopt/capture/pt2/archive.h"
#include "fx_graph/tensor_meta.h"
#include "fx_graph/text/json_view.h"

namespace ddpopt::pt2 {

// Names the record in the error.
absl::Status OfRecord(absl::string_view record, const absl::Status& status);

class TensorStore {
 public:
  // `archive` must outlive this. `data`: whether tensors get their data; else they are hollow (fx_graph/tensor_meta.h), and share storages
  // as those with data would.
  TensorStore(Archive* archive, std::string folder, bool data) : archive_(archive), folder_(std::move(folder)), data_(data) {}

  // Reads the descriptions. Without it there are no tensors.
  absl::Status Begin(const std::string& config_record);
  bool Has(absl::string_view name) const { return config_ != nullptr && config_->Has(name); }
  std::vector<std::string> Names() const;
  absl::StatusOr<bool> IsParameter(const std::string& name) const;
  // One tensor for all names of the same record and description. Errors name the record: NotFound, DataLoss for one that is too short,
  // InvalidArgument for a description that can't be, Unimplemented for what is pickled or not strided.
  absl::StatusOr<at::Tensor> Read(const std::string& name);

 private:
  struct Loaded {
    c10::Storage storage;
    std::vector<std::pair<fx::TensorMeta, at::Tensor>> tensors;
  };

  absl::StatusOr<at::Tensor> ReadEntry(const std::string& name);
  absl::StatusOr<c10::Storage> ReadStorage(const std::string& record, const fx::TensorMeta& meta, const std::string& name);

  Archive* const archive_;
  const std::string folder_;
  const bool data_;
  std::string config_record_;
  fx::JsonValue json_;
  std::unique_ptr<fx::JsonView> root_, config_;
  std::map<std::string, Loaded> loaded_;
};

}  // namespace ddpopt::pt2

#endif  // DDPOPT_CAPTURE_PT2_TENSOR_STORE_H_
