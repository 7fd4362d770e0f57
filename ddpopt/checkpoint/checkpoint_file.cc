#include "ddpopt/checkpoint/checkpoint_file.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <typeinfo>

#include "ATen/ops/empty.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "c10/core/GradMode.h"
#include "c10/core/InferenceMode.h"
#include "c10/util/Type.h"
#include "nlohmann/json.hpp"
#include "torch/optim/optimizer.h"
#include "torch/serialize/input-archive.h"
#include "torch/serialize/output-archive.h"

namespace ddpopt {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPrefix[] = "checkpoint-";
constexpr char kSuffix[] = ".ckpt";
constexpr char kContents[] = "contents";  // the record that describes the others

std::string Describe(absl::string_view dtype, const std::vector<int64_t>& shape) {
  return absl::StrCat(dtype, " [", absl::StrJoin(shape, ", "), "]");
}
std::string Describe(const at::Tensor& tensor) { return Describe(c10::toString(tensor.scalar_type()), tensor.sizes().vec()); }

std::string TypeName(const torch::optim::Optimizer& optimizer) { return c10::demangle(typeid(optimizer).name()); }
std::vector<int64_t> GroupSizes(const torch::optim::Optimizer& optimizer) {
  std::vector<int64_t> sizes;
  for (const auto& group : optimizer.param_groups()) sizes.push_back(static_cast<int64_t>(group.params().size()));
  return sizes;
}

// Bytes that a rank sends as a text may be any.
std::string Bytes(const at::Tensor& tensor) { return std::string(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()); }

absl::Status CheckNames(const char* kind, const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second)
      return absl::InvalidArgumentError(absl::StrCat("two ", kind, "s of the checkpoint are named \"", name, "\""));
  }
  return absl::OkStatus();
}

template <typename T>
std::vector<std::string> NamesOf(const std::vector<std::pair<std::string, T>>& list) {
  std::vector<std::string> names;
  for (const auto& entry : list) names.push_back(entry.first);
  return names;
}

// Elements that are several indices' are written once.
void Restore(at::Tensor tensor, at::Tensor data) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) != 0 || tensor.size(dim) < 2) continue;
    tensor = tensor.narrow(dim, 0, 1);
    data = data.narrow(dim, 0, 1);
  }
  tensor.copy_(data);
}

at::Tensor GeneratorState(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}
void SetGeneratorState(at::Generator generator, const at::Tensor& state) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

// Keeps what it is about to change, and puts it back unless Keep is called.
class OptimizerChange {
 public:
  explicit OptimizerChange(torch::optim::Optimizer* optimizer) : optimizer_(optimizer), state_(std::move(optimizer->state())) {
    optimizer->state().clear();
    for (const auto& group : optimizer->param_groups()) options_.push_back(group.has_options() ? group.options().clone() : nullptr);
  }
  OptimizerChange(OptimizerChange&& other) noexcept
      : optimizer_(std::exchange(other.optimizer_, nullptr)), state_(std::move(other.state_)), options_(std::move(other.options_)) {}
  ~OptimizerChange() {
    if (optimizer_ == nullptr) return;
    optimizer_->state() = std::move(state_);
    for (std::size_t i = 0; i < options_.size(); ++i) {
      if (options_[i] != nullptr) optimizer_->param_groups()[i].set_options(std::move(options_[i]));
    }
  }
  void Keep() { optimizer_ = nullptr; }

 private:
  torch::optim::Optimizer* optimizer_;
  std::decay_t<decltype(std::declval<torch::optim::Optimizer&>().state())> state_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
};

class GeneratorChange {
 public:
  explicit GeneratorChange(at::Generator generator) : generator_(std::move(generator)), state_(GeneratorState(generator_)) {}
  GeneratorChange(GeneratorChange&& other) noexcept = default;
  ~GeneratorChange() {
    if (state_.defined()) SetGeneratorState(generator_, state_);
  }
  void Keep() { state_.reset(); }

 private:
  at::Generator generator_;
  at::Tensor state_;
};

}  // namespace

std::string CheckpointFile::NameOf(int64_t step) { return absl::StrFormat("%s%012d%s", kPrefix, step, kSuffix); }

int64_t CheckpointFile::StepOf(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, kPrefix) || !absl::ConsumeSuffix(&name, kSuffix)) return -1;
  const bool digits = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(c); });
  return digits && absl::SimpleAtoi(name, &step) ? step : -1;
}

absl::Status CheckpointFile::CheckState(const CheckpointState& state) {
  if (state.step < 0) return absl::InvalidArgumentError(absl::StrCat("the checkpoint's step must be 0 or more, got ", state.step));
  DDPOPT_RETURN_IF_ERROR(CheckNames("tensor", NamesOf(state.tensors_)));
  DDPOPT_RETURN_IF_ERROR(CheckNames("optimizer", NamesOf(state.optimizers_)));
  DDPOPT_RETURN_IF_ERROR(CheckNames("generator", NamesOf(state.generators_)));
  for (const auto& [name, tensor] : state.tensors_) {
    if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", name, "\" of the checkpoint is no dense tensor with data"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointFile::RankPart(const CheckpointState& state) {
  std::string text;
  for (const auto& [name, generator] : state.generators_) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string bytes,
                            CatchAsStatus(absl::StrCat("the state of generator \"", name, "\""),
                                          [&, &of = generator] { return Bytes(GeneratorState(of).contiguous()); }));
    absl::StrAppend(&text, name.size(), " ", bytes.size(), "\n", name, bytes);
  }
  return text;
}

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> CheckpointFile::ParseRankPart(absl::string_view text) {
  std::vector<std::pair<std::string, std::string>> result;
  while (!text.empty()) {
    const std::size_t space = text.find(' '), line = text.find('\n');
    std::size_t name = 0, bytes = 0;
    if (line == absl::string_view::npos || space > line || !absl::SimpleAtoi(text.substr(0, space), &name) ||
        !absl::SimpleAtoi(text.substr(space + 1, line - space - 1), &bytes)) {
      return absl::DataLossError("a rank's random states are unreadable");
    }
    text.remove_prefix(line + 1);
    if (name > text.size() || bytes > text.size() - name) return absl::DataLossError("a rank's random states are cut short");
    result.emplace_back(std::string(text.substr(0, name)), std::string(text.substr(name, bytes)));
    text.remove_prefix(name + bytes);
  }
  return result;
}

absl::Status CheckpointFile::Write(const std::string& folder, const CheckpointState& state, const std::vector<std::string>& rank_parts) {
  DDPOPT_ASSIGN_OR_RETURN(const auto writer, RecordWriter::Create(folder, NameOf(state.step)));
  c10::NoGradGuard no_grad;
  Json contents = {{"step", state.step}, {"world_size", rank_parts.size()}, {"numbers", state.numbers}, {"texts", state.texts}};
  contents["tensors"] = Json::array();
  // Parameters with several names are written once; a tensor and its conjugate share memory, but not values.
  using Place = std::tuple<const void*, c10::ScalarType, std::vector<int64_t>, std::vector<int64_t>, bool, bool>;
  std::map<Place, std::string> written;
  for (const auto& [name, tensor] : state.tensors_) {
    const Place place(tensor.const_data_ptr(), tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(), tensor.is_conj(),
                      tensor.is_neg());
    std::string& record = written[place];
    if (record.empty() || tensor.numel() == 0) {
      record = absl::StrCat("tensors/", contents["tensors"].size());
      DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("tensor \"", name, "\""), [&, &from = tensor, &to = record] {
        const at::Tensor data = from.detach().resolve_conj().resolve_neg().cpu().contiguous();
        writer->Add(to, data.const_data_ptr(), data.nbytes());
      }));
    }
    contents["tensors"].push_back(
        {{"name", name}, {"dtype", c10::toString(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}, {"record", record}});
  }
  contents["optimizers"] = Json::array();
  for (const auto& [name, optimizer] : state.optimizers_) {
    const std::string record = absl::StrCat("optimizers/", contents["optimizers"].size());
    std::string bytes;
    DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("optimizer \"", name, "\""), [&, of = optimizer] {
      torch::serialize::OutputArchive archive;
      of->save(archive);
      archive.save_to([&](const void* data, size_t size) {
        bytes.append(static_cast<const char*>(data), size);
        return size;
      });
    }));
    writer->Add(record, bytes.data(), bytes.size());
    contents["optimizers"].push_back(
        {{"name", name}, {"type", TypeName(*optimizer)}, {"groups", GroupSizes(*optimizer)}, {"record", record}});
  }
  for (std::size_t rank = 0; rank < rank_parts.size(); ++rank) {
    writer->Add(absl::StrCat("ranks/", rank), rank_parts[rank].data(), rank_parts[rank].size());
  }
  std::string text;
  DDPOPT_RETURN_IF_ERROR(CatchAsStatus("names and texts of the checkpoint", [&] { text = contents.dump(); }));
  writer->Add(kContents, text.data(), text.size());
  return writer->Commit();
}

absl::StatusOr<CheckpointFile> CheckpointFile::Open(const std::string& path) {
  DDPOPT_ASSIGN_OR_RETURN(RecordFile file, RecordFile::Open(path));
  CheckpointFile result(std::move(file));
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, result.file_.Read(kContents));
  DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("\"", path, "\": record \"", kContents, "\""), [&] {
    const auto json = nlohmann::json::parse(text);
    result.step_ = json.at("step").get<int64_t>();
    result.world_size_ = json.at("world_size").get<int>();
    result.numbers_ = json.at("numbers").get<std::map<std::string, int64_t>>();
    result.texts_ = json.at("texts").get<std::map<std::string, std::string>>();
    for (const auto& entry : json.at("tensors")) {
      result.tensors_.push_back({entry.at("name"), entry.at("dtype"), entry.at("record"), entry.at("shape").get<std::vector<int64_t>>()});
    }
    for (const auto& entry : json.at("optimizers")) {
      result.optimizers_.push_back(
          {entry.at("name"), entry.at("type"), entry.at("record"), entry.at("groups").get<std::vector<int64_t>>()});
    }
  }));
  return result;
}

const CheckpointFile::Entry* CheckpointFile::Find(const std::vector<Entry>& entries, const std::string& name) {
  const auto it = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.name == name; });
  return it == entries.end() ? nullptr : &*it;
}

template <typename T>
absl::Status CheckpointFile::CompareNames(const char* kind, const std::vector<Entry>& theirs,
                                          const std::vector<std::pair<std::string, T>>& mine) const {
  for (const auto& entry : mine) {
    if (Find(theirs, entry.first) == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("\"", file_.path(), "\": has no ", kind, " \"", entry.first, "\", the run has one"));
    }
  }
  for (const Entry& entry : theirs) {
    if (std::none_of(mine.begin(), mine.end(), [&](const auto& candidate) { return candidate.first == entry.name; })) {
      return absl::FailedPreconditionError(absl::StrCat("\"", file_.path(), "\": has ", kind, " \"", entry.name, "\", the run has none"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointFile::Prepare(const CheckpointState& state, const CheckpointRanks& ranks) {
  DDPOPT_RETURN_IF_ERROR(CheckState(state));
  const auto differ = [&](const auto&... parts) {
    return absl::FailedPreconditionError(absl::StrCat("\"", file_.path(), "\": ", parts...));
  };
  DDPOPT_RETURN_IF_ERROR(CompareNames("tensor", tensors_, state.tensors_));
  for (const auto& [name, tensor] : state.tensors_) {
    const Entry& entry = *Find(tensors_, name);
    const std::string mine = Describe(tensor), theirs = Describe(entry.type, entry.sizes);
    if (mine != theirs) return differ("tensor \"", name, "\" is ", theirs, ", the run's is ", mine);
  }
  DDPOPT_RETURN_IF_ERROR(CompareNames("optimizer", optimizers_, state.optimizers_));
  for (const auto& [name, optimizer] : state.optimizers_) {
    const Entry& entry = *Find(optimizers_, name);
    const std::vector<int64_t> groups = GroupSizes(*optimizer);
    if (entry.type != TypeName(*optimizer))
      return differ("optimizer \"", name, "\" is a ", entry.type, ", the run's is a ", TypeName(*optimizer));
    if (entry.sizes != groups) {
      return differ("optimizer \"", name, "\" has parameter groups of ", absl::StrJoin(entry.sizes, ", "), " parameters, the run's of ",
                    absl::StrJoin(groups, ", "));
    }
  }
  restores_random_state_ = world_size_ == ranks.world_size;
  if (restores_random_state_) {
    DDPOPT_ASSIGN_OR_RETURN(const std::string part, file_.Read(absl::StrCat("ranks/", ranks.rank)));
    DDPOPT_ASSIGN_OR_RETURN(const auto states, ParseRankPart(part));
    std::vector<std::string> theirs = NamesOf(states), mine = NamesOf(state.generators_);
    std::sort(theirs.begin(), theirs.end());
    std::sort(mine.begin(), mine.end());
    if (theirs != mine) return differ("has generators [", absl::StrJoin(theirs, ", "), "], the run [", absl::StrJoin(mine, ", "), "]");
    const std::map<std::string, std::string> by_name(states.begin(), states.end());
    for (const auto& entry : state.generators_) random_states_.push_back(by_name.at(entry.first));
  }
  for (const auto& entry : state.optimizers_) {
    DDPOPT_ASSIGN_OR_RETURN(std::string bytes, file_.Read(Find(optimizers_, entry.first)->record));
    optimizer_bytes_.push_back(std::move(bytes));
  }
  for (const auto& [name, tensor] : state.tensors_) {
    const at::Tensor data = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
    DDPOPT_RETURN_IF_ERROR(file_.Read(Find(tensors_, name)->record, data.mutable_data_ptr(), data.nbytes()));
    tensor_data_.push_back(data);
  }
  return absl::OkStatus();
}

absl::Status CheckpointFile::Apply(CheckpointState* state) {
  c10::NoGradGuard no_grad;
  std::vector<OptimizerChange> optimizers;
  for (std::size_t i = 0; i < state->optimizers_.size(); ++i) {
    const auto& [name, optimizer] = state->optimizers_[i];
    DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("\"", file_.path(), "\": optimizer \"", name, "\""), [&, of = optimizer] {
      torch::serialize::InputArchive archive;
      archive.load_from(optimizer_bytes_[i].data(), optimizer_bytes_[i].size());
      optimizers.emplace_back(of);
      of->load(archive);
    }));
  }
  std::vector<GeneratorChange> generators;
  for (std::size_t i = 0; i < random_states_.size(); ++i) {
    const auto& [name, generator] = state->generators_[i];
    DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("\"", file_.path(), "\": generator \"", name, "\""), [&, &of = generator] {
      const at::Tensor bytes = at::empty({static_cast<int64_t>(random_states_[i].size())}, at::TensorOptions(at::kByte));
      std::memcpy(bytes.mutable_data_ptr(), random_states_[i].data(), random_states_[i].size());
      generators.emplace_back(of);
      SetGeneratorState(of, bytes);
    }));
  }
  // From memory of the same shape and dtype: nothing is left that could fail, but for a device's own failure.
  for (std::size_t i = 0; i < state->tensors_.size(); ++i) {
    const auto& [name, tensor] = state->tensors_[i];
    DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("tensor \"", name, "\""), [&, &to = tensor] {
      std::optional<c10::InferenceMode> as_made;  // only there may such tensors be written to
      if (to.is_inference()) as_made.emplace();
      Restore(to, tensor_data_[i]);
    }));
  }
  for (OptimizerChange& change : optimizers) change.Keep();
  for (GeneratorChange& change : generators) change.Keep();
  state->step = step_;
  state->numbers = numbers_;
  state->texts = texts_;
  return absl::OkStatus();
}

}  // namespace ddpopt
