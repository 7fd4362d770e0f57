#include "ddpopt/checkpoint/checkpoint.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/progress.h"
#include "base/status.h"
#include "ddpopt/checkpoint/checkpoint_file.h"
#include "ddpopt/checkpoint/record_file.h"
#include "nlohmann/json.hpp"
#include "torch/nn/module.h"

namespace ddpopt {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return SystemError(folder, errno);
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir)) names.emplace_back(entry->d_name);
  closedir(dir);
  return names;
}

// With those above it. A new folder's name is in the one above, which is flushed as well.
absl::Status MakeFolder(const std::string& folder) {
  for (std::size_t end = folder.find('/', 1);; end = folder.find('/', end + 1)) {
    const std::string part = folder.substr(0, end);
    if (mkdir(part.c_str(), 0777) == 0) {
      const std::size_t slash = part.find_last_of('/', part.find_last_not_of('/'));
      DDPOPT_RETURN_IF_ERROR(FlushFolder(slash == std::string::npos ? "." : part.substr(0, slash + 1)));
    } else if (errno != EEXIST) {
      return SystemError(part, errno);
    }
    if (end == std::string::npos) break;
  }
  return absl::OkStatus();
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

absl::StatusOr<std::vector<std::string>> ListCheckpoints(const std::string& folder) {
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder));
  std::vector<std::pair<int64_t, std::string>> found;
  for (const std::string& name : names) {
    if (const int64_t step = CheckpointFile::StepOf(name); step >= 0) found.emplace_back(step, absl::StrCat(folder, "/", name));
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
    if (name[0] == '.' && dot > 0 && CheckpointFile::StepOf(absl::string_view(name).substr(1, dot - 1)) >= 0)
      unlink(absl::StrCat(folder, "/", name).c_str());
  }
}

// OK unless the folder has a whole checkpoint of a later step: another run's, which would be taken up instead of this one's.
absl::Status CheckIsNewest(const std::string& folder, int64_t step) {
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, ListCheckpoints(folder));
  for (const std::string& path : paths) {
    if (CheckpointFile::StepOf(path.substr(path.rfind('/') + 1)) <= step) break;
    if (!VerifyCheckpoint(path).ok()) continue;
    return absl::FailedPreconditionError(absl::StrCat("\"", path, "\" is of a later step than ", step,
                                                      ", so this run doesn't go on from it; resume from it, remove it, or save elsewhere"));
  }
  return absl::OkStatus();
}

// Keeps the newest `keep` whole ones up to `newest`. Those of later steps are damaged, and stay for whoever wants to look at them.
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
  const std::string path = absl::StrCat(folder, "/", CheckpointFile::NameOf(state.step));
  if (ranks.rank == 0) {
    const auto names = [](const std::string& text) {
      std::vector<std::string> result;
      const auto parsed = CheckpointFile::ParseRankPart(text);
      if (!parsed.ok()) return result;
      for (const auto& entry : *parsed) result.push_back(entry.first);
      return result;
    };
    for (std::size_t rank = 1; rank < parts.size() && status.ok(); ++rank) {
      if (names(parts[rank]) == names(part)) continue;
      status = absl::FailedPreconditionError(absl::StrCat("rank ", rank, " saves generators [", absl::StrJoin(names(parts[rank]), ", "),
                                                          "], rank 0 [", absl::StrJoin(names(part), ", "), "]"));
    }
    if (status.ok()) status = MakeFolder(folder);
    if (status.ok()) status = CheckIsNewest(folder, state.step);
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
