#ifndef DDPOPT_DDP_MODULE_TENSORS_H_
#define DDPOPT_DDP_MODULE_TENSORS_H_

// The tensors of a wrapped module: which there are, whether they can be trained, whether they still are what they were. Private to this
// package; knows no collectives.

#include <cstddef>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ddpopt/distributed/process_group.h"

namespace torch::nn {
class Module;
}

namespace ddpopt {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Takes the module and its trainable parameters as wrapped for as long as it lives: two reducers on one parameter would both average its
// gradient.
class ModuleTensors {
 public:
  // Checks what can be checked on this rank alone: InvalidArgument naming the parameter, buffer or submodule at fault.
  static absl::StatusOr<std::unique_ptr<ModuleTensors>> Collect(std::shared_ptr<torch::nn::Module> module, const ProcessGroup& group,
                                                                const absl::flat_hash_set<std::string>& ignored_names);
  ~ModuleTensors();
  ModuleTensors(const ModuleTensors&) = delete;
  ModuleTensors& operator=(const ModuleTensors&) = delete;

  // Ignored ones excepted, each tensor once, under its first name.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<NamedTensor>& buffers() const { return buffers_; }
  // Those parameters that have gradients, and are reduced.
  const std::vector<NamedTensor>& trainable() const { return trainable_; }
  // Index in trainable() of a parameter by any of its names; null if there is none.
  const std::size_t* FindTrainable(const std::string& name) const;
  at::Device device() const { return device_; }  // of all parameters
  // A line for each tensor, to be compared between ranks.
  std::vector<std::string> Describe() const;

  // Throws c10::Error if a parameter or buffer (ignored ones excepted) is no longer the tensor that it was, if there are others, or if one
  // has another shape, layout, dtype, device or requires_grad: gradient buckets, messages and graphs were made for what was there.
  void CheckUnchanged() const;

 private:
  explicit ModuleTensors(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}
  absl::Status Fill(const ProcessGroup& group, const absl::flat_hash_set<std::string>& ignored_names);

  struct Guard {
    const char* kind;  // "parameter" or "buffer"
    NamedTensor entry;
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    at::ScalarType dtype;
    at::Device device;
    bool requires_grad;
  };
  void AddGuards(const char* kind, const std::vector<NamedTensor>& entries);
  // The module tree, with each module's own parameters and buffers.
  struct Member {
    const torch::nn::Module* module;
    std::vector<at::Tensor> tensors;
  };
  std::vector<Member> Members() const;
  std::string WhatWasReplaced() const;

  std::shared_ptr<torch::nn::Module> module_;
  absl::flat_hash_set<std::string> ignored_names_;
  std::vector<NamedTensor> parameters_, buffers_, trainable_;
  std::unordered_map<std::string, std::size_t> index_of_;
  std::vector<Guard> guards_;
  std::vector<Member> members_;
  at::Device device_ = at::kCPU;
  bool registered_ = false;
};

}  // namespace ddpopt

#endif  // DDPOPT_DDP_MODULE_TENSORS_H_
