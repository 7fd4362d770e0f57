#include "ddpopt/checkpoint/checkpoint.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <tuple>
#include <typeinfo>

#include "ATen/ops/empty.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/progress.h"
#include "base/status.h"
#include "c10/core/GradMode.h"
#include "c10/util/Type.h"
#include "ddpopt/checkpoint/record_file.h"
#include "nlohmann/json.hpp"
#include "torch/nn/module.h"
#include "torch/optim/optimizer.h"
#include "torch/serialize/input-archive.h"
#include "torch/serialize/output-archive.h"

namespace ddpopt {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kPrefix[] = "checkpoint-";
constexpr char kSuffix[] = ".ckpt";
constexpr char kContents[] = "contents";  // the record that describes the others

std::string FileName(int64_t step) { return absl::StrFormat("%s%012d%s", kPrefix, step, kSuffix); }

// -1: no checkpoint's name.
int64_t StepOf(absl::string_view name) {
  int64_t step = 0;
  if (!absl::ConsumePrefix(&name, kPrefix) || !absl::ConsumeSuffix(&name, kSuffix)) return -1;
  const bool digits = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(c); });
  return digits && absl::SimpleAtoi(name, &step) ? step : -1;
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return SystemError(folder, errno);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir)) names.emplace_back(entry->d_name);
  closedir(dir);
  return names;
}

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

absl::Status MakeFolder(const std::string& folder) {
  for (std::size_t end = folder.find('/', 1);; end = folder.find('/', end + 1)) {
    const std::string part = folder.substr(0, end);
    if (!part.empty() && mkdir(part.c_str(), 0777) != 0 && errno != EEXIST) return SystemError(part, errno);
    if (end == std::string::npos) break;
  }
  return absl::OkStatus();
}

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

// Everyone's status; the first error, with its rank, is everyone's.
absl::Status Agree(const CheckpointRanks& ranks, const std::string& what, const absl::Status& mine) {
  if (ranks.world_size == 1) return mine;
  DDPOPT_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      ranks.all_gather(what, mine.ok() ? std::string() : absl::StrCat(static_cast<int>(mine.code()), " ", mine.message())));
  if (!mine.ok()) return mine;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    int code = 0;
    const std::size_t space = all[rank].find(' ');
    if (space == std::string::npos || !absl::SimpleAtoi(all[rank].substr(0, space), &code))
      code = static_cast<int>(absl::StatusCode::kInternal);
    return absl::Status(static_cast<absl::StatusCode>(code), absl::StrCat("on rank ", rank, ": ", all[rank].substr(space + 1)));
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const CheckpointRanks& ranks) {
  if (ranks.world_size < 1 || ranks.rank < 0 || ranks.rank >= ranks.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", ranks.rank, " of ", ranks.world_size, " is no rank"));
  }
  if (ranks.world_size > 1 && !ranks.all_gather) return absl::InvalidArgumentError("several ranks need CheckpointRanks::all_gather");
  return absl::OkStatus();
}

}  // namespace

void CheckpointState::AddModule(const torch::nn::Module& module, const std::string& prefix) {
  const auto add = [&](const auto& tensors) {
    for (const auto& item : tensors) {
      if (item.value().defined()) AddTensor(prefix.empty() ? item.key() : absl::StrCat(prefix, ".", item.key()), item.value());
    }
  };
  add(module.named_parameters());
  add(module.named_buffers());
}
void CheckpointState::AddTensor(const std::string& name, at::Tensor tensor) { tensors_.emplace_back(name, std::move(tensor)); }
void CheckpointState::AddOptimizer(const std::string& name, torch::optim::Optimizer& optimizer) {
  optimizers_.emplace_back(name, &optimizer);
}
void CheckpointState::AddGenerator(const std::string& name, at::Generator generator) {
  generators_.emplace_back(name, std::move(generator));
}

// One file, and a state beside it.
class CheckpointFile {
 public:
  // This rank's part, for rank 0 to save: for each generator its name, the length of its state and the state.
  static absl::StatusOr<std::string> RankPart(const CheckpointState& state) {
    std::string text;
    for (const auto& [name, generator] : state.generators_) {
      absl::Status status;
      at::Generator copy = generator;
      DDPOPT_ASSIGN_OR_RETURN(const std::string bytes,
                              CatchAsStatus(absl::StrCat("the state of generator \"", name, "\""), [&, &of = copy] {
                                std::lock_guard<std::mutex> lock(of.mutex());
                                return Bytes(of.get_state().contiguous());
                              }));
      absl::StrAppend(&text, name.size(), " ", bytes.size(), "\n", name, bytes);
    }
    return text;
  }

  static absl::StatusOr<std::vector<std::pair<std::string, std::string>>> ParseRankPart(absl::string_view text) {
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

  static absl::Status CheckState(const CheckpointState& state) {
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

  static absl::Status Write(const std::string& folder, const CheckpointState& state, const std::vector<std::string>& rank_parts) {
    DDPOPT_ASSIGN_OR_RETURN(const auto writer, RecordWriter::Create(folder, FileName(state.step)));
    c10::NoGradGuard no_grad;
    Json contents = {{"step", state.step}, {"world_size", rank_parts.size()}, {"numbers", state.numbers}, {"texts", state.texts}};
    contents["tensors"] = Json::array();
    // Parameters with several names are written once.
    using Place = std::tuple<const void*, c10::ScalarType, std::vector<int64_t>, std::vector<int64_t>>;
    std::map<Place, std::string> written;
    for (const auto& [name, tensor] : state.tensors_) {
      const Place place(tensor.const_data_ptr(), tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec());
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

  static absl::StatusOr<CheckpointFile> Open(const std::string& path) {
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

  const RecordFile& file() const { return file_; }
  int64_t step() const { return step_; }
  int world_size() const { return world_size_; }

  // OK if the file has what the state names, and nothing else. Reads the small parts.
  absl::Status Prepare(const CheckpointState& state, const CheckpointRanks& ranks) {
    DDPOPT_RETURN_IF_ERROR(CheckState(state));
    const auto differ = [&](const auto&... parts) {
      return absl::FailedPreconditionError(absl::StrCat("\"", file_.path(), "\": ", parts...));
    };
    DDPOPT_RETURN_IF_ERROR(CompareNames("tensor", tensors_, state.tensors_));
    for (const auto& [name, tensor] : state.tensors_) {
      const Entry& entry = *Find(tensors_, name);
      const std::string mine = Describe(tensor), theirs = Describe(entry.type, entry.sizes);
      if (mine != theirs) return differs(name, theirs, mine);
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
      DDPOPT_ASSIGN_OR_RETURN(optimizer_bytes_[name], file_.Read(entry.record));
    }
    restores_random_state_ = world_size_ == ranks.world_size;
    if (!restores_random_state_) return absl::OkStatus();
    DDPOPT_ASSIGN_OR_RETURN(const std::string part, file_.Read(absl::StrCat("ranks/", ranks.rank)));
    DDPOPT_ASSIGN_OR_RETURN(random_states_, ParseRankPart(part));
    std::vector<std::string> theirs = NamesOf(random_states_), mine = NamesOf(state.generators_);
    std::sort(theirs.begin(), theirs.end());
    std::sort(mine.begin(), mine.end());
    if (theirs != mine) return differ("has generators [", absl::StrJoin(theirs, ", "), "], the run [", absl::StrJoin(mine, ", "), "]");
    return absl::OkStatus();
  }

  // After Prepare. What can still fail comes first.
  absl::Status Apply(CheckpointState* state) const {
    c10::NoGradGuard no_grad;
    for (const auto& [name, optimizer] : state->optimizers_) {
      const std::string& bytes = optimizer_bytes_.at(name);
      DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("\"", file_.path(), "\": optimizer \"", name, "\""), [&, of = optimizer] {
        torch::serialize::InputArchive archive;
        archive.load_from(bytes.data(), bytes.size());
        of->state().clear();
        of->load(archive);
      }));
    }
    for (const auto& [name, tensor] : state->tensors_) {
      const std::string& record = Find(tensors_, name)->record;
      const auto bytes = static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
      if (tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) {
        if (bytes > 0) DDPOPT_RETURN_IF_ERROR(file_.Read(record, tensor.mutable_data_ptr(), bytes));
        if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
        continue;
      }
      DDPOPT_RETURN_IF_ERROR(CatchAsStatus(absl::StrCat("tensor \"", name, "\""), [&, &to = tensor]() -> absl::Status {
        const at::Tensor data = at::empty(to.sizes(), to.options().device(at::kCPU).memory_format(at::MemoryFormat::Contiguous));
        if (bytes > 0) DDPOPT_RETURN_IF_ERROR(file_.Read(record, data.mutable_data_ptr(), bytes));
        to.copy_(data);
        return absl::OkStatus();
      }));
    }
    if (restores_random_state_) {
      for (const auto& [name, generator] : state->generators_) {
        const auto it = std::find_if(random_states_.begin(), random_states_.end(),
                                     [&, &wanted = name](const auto& entry) { return entry.first == wanted; });
        DDPOPT_RETURN_IF_ERROR(
            CatchAsStatus(absl::StrCat("\"", file_.path(), "\": generator \"", name, "\""), [&, of = generator]() mutable {
              const at::Tensor bytes = at::empty({static_cast<int64_t>(it->second.size())}, at::TensorOptions(at::kByte));
              std::memcpy(bytes.mutable_data_ptr(), it->second.data(), it->second.size());
              std::lock_guard<std::mutex> lock(of.mutex());
              of.set_state(bytes);
            }));
      }
    }
    state->step = step_;
    state->numbers = numbers_;
    state->texts = texts_;
    return absl::OkStatus();
  }

  bool restores_random_state() const { return restores_random_state_; }

 private:
  struct Entry {
    std::string name, type, record;
    std::vector<int64_t> sizes;
  };

  explicit CheckpointFile(RecordFile file) : file_(std::move(file)) {}

  static const Entry* Find(const std::vector<Entry>& entries, const std::string& name) {
    const auto it = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.name == name; });
    return it == entries.end() ? nullptr : &*it;
  }

  template <typename T>
  absl::Status CompareNames(const char* kind, const std::vector<Entry>& theirs, const std::vector<std::pair<std::string, T>>& mine) const {
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

  absl::Status differs(const std::string& name, const std::string& theirs, const std::string& mine) const {
    return absl::FailedPreconditionError(
        absl::StrCat("\"", file_.path(), "\": tensor \"", name, "\" is ", theirs, ", the run's is ", mine));
  }

  RecordFile file_;
  int64_t step_ = 0;
  int world_size_ = 1;
  std::map<std::string, int64_t> numbers_;
  std::map<std::string, std::string> texts_;
  std::vector<Entry> tensors_, optimizers_;
  std::map<std::string, std::string> optimizer_bytes_;
  std::vector<std::pair<std::string, std::string>> random_states_;  // of this rank
  bool restores_random_state_ = false;
};

absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& folder) {
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
  std::vector<std::pair<int64_t, std::string>> found;
  for (const std::string& name : names) {
    if (const int64_t step = StepOf(name); step >= 0) found.emplace_back(step, absl::StrCat(folder, "/", name));
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

absl::Status VerifyCheckpoint(const std::string& path) { return CheckpointFile::Open(path).status(); }

namespace {

// Those that a run left that was ended while it saved.
void RemoveUnfinished(const std::string& folder) {
  const absl::StatusOr<std::vector<std::string>> names = NamesIn(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    const std::size_t dot = name.rfind('.');
    if (name[0] == '.' && dot > 0 && StepOf(absl::string_view(name).substr(1, dot - 1)) >= 0)
      unlink(absl::StrCat(folder, "/", name).c_str());
  }
}

// Keeps the newest `keep` whole ones up to `newest`, and what is newer than that: the user's run may have gone back.
absl::Status RemoveOld(const std::string& folder, const std::string& newest, int keep) {
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListCheckpoints(folder));
  int whole = 0;
  bool reached = false;
  for (const std::string& path : paths) {
    reached = reached || path == newest;
    if (!reached) continue;
    if (whole >= keep) {
      if (unlink(path.c_str()) != 0 && errno != ENOENT) return SystemError(path, errno);
    } else if (path == newest || VerifyCheckpoint(path).ok()) {
      ++whole;
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SaveCheckpoint(const std::string& folder, const CheckpointState& state, const CheckpointOptions& options,
                                           const CheckpointRanks& ranks) {
  DDPOPT_RETURN_IF_ERROR(CheckRanks(ranks));
  const ProgressScope progress(ranks.rank == 0, absl::StrCat("saving a checkpoint in ", folder));
  absl::Status status = CheckpointFile::CheckState(state);
  if (status.ok() && folder.empty()) status = absl::InvalidArgumentError("the checkpoints' folder has an empty name");
  if (status.ok() && options.keep < 1)
    status = absl::InvalidArgumentError(absl::StrCat("CheckpointOptions::keep must be 1 or more, got ", options.keep));
  std::string part;
  if (status.ok()) {
    absl::StatusOr<std::string> made = CheckpointFile::RankPart(state);
    status = made.status();
    if (made.ok()) part = *std::move(made);
  }
  DDPOPT_RETURN_IF_ERROR(Agree(ranks, "whether the checkpoint can be saved", status));
  std::vector<std::string> parts = {part};
  if (ranks.world_size > 1) {
    DDPOPT_ASSIGN_OR_RETURN(parts, ranks.all_gather("random states for the checkpoint", part));
  }
  const std::string path = absl::StrCat(folder, "/", FileName(state.step));
  if (ranks.rank == 0) {
    const auto names = [](const std::string& text) {
      const auto parsed = CheckpointFile::ParseRankPart(text);
      return parsed.ok() ? NamesOf(*parsed) : std::vector<std::string>();
    };
    for (std::size_t rank = 1; rank < parts.size() && status.ok(); ++rank) {
      if (names(parts[rank]) == names(part)) continue;
      status = absl::FailedPreconditionError(absl::StrCat("rank ", rank, " saves generators [", absl::StrJoin(names(parts[rank]), ", "),
                                                          "], rank 0 [", absl::StrJoin(names(part), ", "), "]"));
    }
    if (status.ok()) status = MakeFolder(folder);
    if (status.ok()) {
      RemoveUnfinished(folder);
      status = CheckpointFile::Write(folder, state, parts);
    }
    if (!status.ok()) {
      // The one to go on from, for whoever reads this.
      const auto before = ListCheckpoints(folder);
      status = Annotate(status, "saving a checkpoint");
      if (before.ok() && !before->empty())
        status = absl::Status(status.code(), absl::StrCat(status.message(), "; the last one stays: \"", before->front(), "\""));
    } else {
      status = Annotate(RemoveOld(folder, path, options.keep), "removing old checkpoints");
    }
  }
  DDPOPT_RETURN_IF_ERROR(Agree(ranks, "whether the checkpoint was saved", status));
  return path;
}

absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(const std::string& folder, CheckpointState* state, const CheckpointRanks& ranks) {
  DDPOPT_RETURN_IF_ERROR(CheckRanks(ranks));
  const ProgressScope progress(ranks.rank == 0, absl::StrCat("loading a checkpoint from ", folder));
  LoadedCheckpoint loaded;
  std::unique_ptr<CheckpointFile> file;
  // Rank 0 chooses; the others read the same.
  const auto choose = [&]() -> absl::Status {
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListCheckpoints(folder));
    if (paths.empty()) return absl::NotFoundError(absl::StrCat("\"", folder, "\" has no checkpoint"));
    for (const std::string& path : paths) {
      absl::StatusOr<CheckpointFile> opened = CheckpointFile::Open(path);
      if (opened.ok()) {
        file = std::make_unique<CheckpointFile>(*std::move(opened));
        return absl::OkStatus();
      }
      loaded.passed_over.emplace_back(opened.status().message());
    }
    return absl::DataLossError(absl::StrCat("\"", folder, "\" has no checkpoint that is whole: ", absl::StrJoin(loaded.passed_over, "; ")));
  };
  absl::Status status;
  if (ranks.rank == 0) status = choose();
  DDPOPT_RETURN_IF_ERROR(Agree(ranks, "whether there is a checkpoint", status));
  if (ranks.world_size > 1) {
    Json mine;
    if (ranks.rank == 0)
      mine = {{"path", file->file().path()}, {"fingerprint", file->file().fingerprint()}, {"passed_over", loaded.passed_over}};
    DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                            ranks.all_gather("which checkpoint is loaded", mine.dump(-1, ' ', false, Json::error_handler_t::replace)));
    if (ranks.rank != 0) {
      status = CatchAsStatus("rank 0's choice of a checkpoint", [&]() -> absl::Status {
        const auto choice = nlohmann::json::parse(all[0]);
        loaded.passed_over = choice.at("passed_over").get<std::vector<std::string>>();
        // Its own name of the folder, which may be another on another machine.
        const std::string path = choice.at("path");
        DDPOPT_ASSIGN_OR_RETURN(CheckpointFile opened, CheckpointFile::Open(absl::StrCat(folder, path.substr(path.rfind('/')))));
        file = std::make_unique<CheckpointFile>(std::move(opened));
        if (file->file().fingerprint() != choice.at("fingerprint").get<std::string>()) {
          return absl::FailedPreconditionError(
              absl::StrCat("\"", file->file().path(), "\" is another file than rank 0's: all ranks must see the same folder"));
        }
        return absl::OkStatus();
      });
    }
  }
  if (status.ok()) status = file->Prepare(*state, ranks);
  DDPOPT_RETURN_IF_ERROR(Agree(ranks, "whether the checkpoint fits", status));
  DDPOPT_RETURN_IF_ERROR(Agree(ranks, "whether the checkpoint was loaded", file->Apply(state)));
  loaded.path = file->file().path();
  loaded.step = file->step();
  loaded.world_size = file->world_size();
  loaded.random_state_restored = file->restores_random_state();
  return loaded;
}

}  // namespace ddpopt
