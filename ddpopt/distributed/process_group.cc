#include "ddpopt/distributed/process_group.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "ddpopt/distributed/gloo_backend.h"
#include "ddpopt/distributed/process_group_c10d.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace ddpopt {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// What one value in the store may hold at most; longer texts go in pieces (the store refuses values of 8 MiB).
constexpr size_t kPieceBytes = size_t{4} << 20;

struct Environment {
  std::string master_addr;
  int master_port = 0;
  int rank = 0;
  int world_size = 0;
  int local_rank = 0;
};

absl::StatusOr<std::string> ReadVariable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return absl::InvalidArgumentError(absl::StrCat("environment variable ", name, value == nullptr ? " is not set" : " is empty",
                                                   "; the launcher (//testing:harness, or torchrun) sets MASTER_ADDR, MASTER_PORT, "
                                                   "RANK, WORLD_SIZE and LOCAL_RANK for every rank"));
  }
  return std::string(value);
}

absl::StatusOr<int> ReadInteger(const char* name, int low, int high) {
  DDPOPT_ASSIGN_OR_RETURN(const std::string text, ReadVariable(name));
  int value = 0;
  if (!absl::SimpleAtoi(text, &value)) {
    return absl::InvalidArgumentError(absl::StrCat("environment variable ", name, "='", text, "' is not an integer"));
  }
  if (value < low || value > high) {
    return absl::InvalidArgumentError(absl::StrCat("environment variable ", name, "=", value, " is outside [", low, ", ", high, "]"));
  }
  return value;
}

absl::StatusOr<Environment> ReadEnvironment() {
  constexpr int kMaxRanks = 1 << 20;
  Environment env;
  DDPOPT_ASSIGN_OR_RETURN(env.master_addr, ReadVariable("MASTER_ADDR"));
  DDPOPT_ASSIGN_OR_RETURN(env.master_port, ReadInteger("MASTER_PORT", 1, 65535));
  DDPOPT_ASSIGN_OR_RETURN(env.world_size, ReadInteger("WORLD_SIZE", 1, kMaxRanks));
  DDPOPT_ASSIGN_OR_RETURN(env.rank, ReadInteger("RANK", 0, kMaxRanks));
  if (env.rank >= env.world_size) {
    return absl::InvalidArgumentError(absl::StrCat("environment variable RANK=", env.rank, " is not below WORLD_SIZE=", env.world_size));
  }
  DDPOPT_ASSIGN_OR_RETURN(env.local_rank, ReadInteger("LOCAL_RANK", 0, kMaxRanks));
  if (env.local_rank > env.rank) {
    return absl::InvalidArgumentError(absl::StrCat("environment variable LOCAL_RANK=", env.local_rank, " is above RANK=", env.rank));
  }
  return env;
}

bool IsLoopback(const std::string& address) { return address == "localhost" || address == "::1" || absl::StartsWith(address, "127."); }

// c10d tells timeouts and lost peers apart in its text alone.
absl::Status CommunicationError(const std::exception& error, absl::string_view context) {
  const std::string text = ExceptionMessage(error);
  const std::string message = absl::StrCat(context, ": ", text);
  for (const char* sign : {"timed out", "Timed out", "timeout", "Timeout"}) {
    if (absl::StrContains(text, sign)) return absl::DeadlineExceededError(message);
  }
  for (const char* sign : {"onnection", "onnect", "roken pipe", "peer", "socket", "Socket", "address already in use", "EADDRINUSE"}) {
    if (absl::StrContains(text, sign)) return absl::UnavailableError(message);
  }
  return absl::InternalError(message);
}

Milliseconds Remaining(Clock::time_point deadline) {
  return std::max(Milliseconds(1), std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()));
}

std::string Seconds(Milliseconds duration) { return absl::StrCat(static_cast<double>(duration.count()) / 1000.0, " s"); }

std::vector<uint8_t> Bytes(absl::string_view text) { return {text.begin(), text.end()}; }
std::string Text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

template <typename Fn>
absl::Status RunCollective(const ProcessGroup& group, const char* name, Fn&& start) {
  const auto& impl = *group.impl();
  try {
    start(*impl.group)->wait(impl.options.timeout);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return CommunicationError(e, absl::StrCat(name, " on rank ", impl.rank, " of ", impl.world_size));
  }
}

absl::Status CheckCpu(const ProcessGroup& group, const char* name, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " on rank ", group.rank(), ": the tensor is undefined"));
  }
  if (!tensor.device().is_cpu() || tensor.layout() != at::kStrided) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " on rank ", group.rank(), ": needs a dense CPU tensor, got one on ", tensor.device().str()));
  }
  if (!tensor.is_non_overlapping_and_dense()) {
    return absl::InvalidArgumentError(absl::StrCat(name, " on rank ", group.rank(), ": needs a tensor whose elements lie dense in memory"));
  }
  return absl::OkStatus();
}

}  // namespace

int ProcessGroup::rank() const { return impl_->rank; }
int ProcessGroup::world_size() const { return impl_->world_size; }
int ProcessGroup::local_rank() const { return impl_->local_rank; }
const InitOptions& ProcessGroup::options() const { return impl_->options; }

absl::Status ProcessGroup::Broadcast(at::Tensor& tensor, int root) const {
  DDPOPT_RETURN_IF_ERROR(CheckCpu(*this, "Broadcast", tensor));
  if (root < 0 || root >= world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Broadcast on rank ", rank(), ": root ", root, " is no rank of a group of ", world_size()));
  }
  return RunCollective(*this, "Broadcast", [&](c10d::ProcessGroup& group) {
    std::vector<at::Tensor> tensors = {tensor.detach()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = impl_->options.timeout;
    return group.broadcast(tensors, options);
  });
}

absl::Status ProcessGroup::AllReduceSum(at::Tensor& tensor) const {
  DDPOPT_RETURN_IF_ERROR(CheckCpu(*this, "AllReduceSum", tensor));
  return RunCollective(*this, "AllReduceSum", [&](c10d::ProcessGroup& group) {
    std::vector<at::Tensor> tensors = {tensor.detach()};
    c10d::AllreduceOptions options;
    options.timeout = impl_->options.timeout;
    return group.allreduce(tensors, options);
  });
}

absl::Status ProcessGroup::Barrier() const {
  return RunCollective(*this, "Barrier", [&](c10d::ProcessGroup& group) {
    c10d::BarrierOptions options;
    options.timeout = impl_->options.timeout;
    return group.barrier(options);
  });
}

// Each rank puts its text into the store and takes the others'. The store lives in rank 0, which therefore stays until everyone has
// acknowledged, and then clears up.
absl::StatusOr<std::vector<std::string>> ProcessGroup::AllGatherText(const std::string& what, const std::string& mine) const {
  std::lock_guard<std::mutex> lock(impl_->text_mutex);
  c10d::Store& store = *impl_->text_store;
  const Milliseconds timeout = impl_->options.timeout;
  const Clock::time_point deadline = Clock::now() + timeout;
  const std::string exchange = absl::StrCat(impl_->text_exchanges++, "/");
  const auto context = [&] { return absl::StrCat("exchanging ", what, " on rank ", rank(), " of ", world_size()); };

  // "<pieces> <length of what>\n<what><text, if there are no pieces>"
  const size_t pieces = mine.size() <= kPieceBytes ? 0 : (mine.size() + kPieceBytes - 1) / kPieceBytes;
  std::vector<std::string> texts(world_size());
  std::vector<std::string> keys;  // of this exchange, for clearing up
  int waiting_for = rank();
  try {
    for (size_t i = 0; i < pieces; ++i) {
      store.set(absl::StrCat(exchange, rank(), "/", i), Bytes(absl::string_view(mine).substr(i * kPieceBytes, kPieceBytes)));
    }
    store.set(absl::StrCat(exchange, rank()), Bytes(absl::StrCat(pieces, " ", what.size(), "\n", what, pieces == 0 ? mine : "")));
    for (int r = 0; r < world_size(); ++r) {
      waiting_for = r;
      const std::string key = absl::StrCat(exchange, r);
      keys.push_back(key);
      store.wait({key}, Remaining(deadline));
      const std::string message = Text(store.get(key));
      const size_t newline = message.find('\n');
      const std::vector<std::string> header = absl::StrSplit(message.substr(0, newline), ' ');
      size_t their_pieces = 0;
      size_t what_length = 0;
      if (newline == std::string::npos || header.size() != 2 || !absl::SimpleAtoi(header[0], &their_pieces) ||
          !absl::SimpleAtoi(header[1], &what_length) || message.size() < newline + 1 + what_length) {
        return absl::InternalError(absl::StrCat(context(), ": rank ", r, " sent something unreadable"));
      }
      const std::string their_what = message.substr(newline + 1, what_length);
      if (their_what != what) {
        return absl::FailedPreconditionError(absl::StrCat(context(), ": rank ", r, " is exchanging ", their_what,
                                                          " at this point; all ranks must exchange the same things in the same order"));
      }
      if (their_pieces == 0) {
        texts[r] = message.substr(newline + 1 + what_length);
      }
      for (size_t i = 0; i < their_pieces; ++i) {
        keys.push_back(absl::StrCat(key, "/", i));
        texts[r] += Text(store.get(keys.back()));
      }
    }
    if (world_size() > 1) {
      if (rank() != 0) {
        store.set(absl::StrCat(exchange, rank(), "/read"), Bytes("1"));
      } else {
        for (int r = 1; r < world_size(); ++r) {
          waiting_for = r;
          keys.push_back(absl::StrCat(exchange, r, "/read"));
          store.wait({keys.back()}, Remaining(deadline));
        }
        for (const std::string& key : keys) store.deleteKey(key);
      }
    }
    return texts;
  } catch (const std::exception& e) {
    if (Clock::now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(context(), ": waited ", Seconds(timeout), " for rank ", waiting_for, ", which has not come"));
    }
    return Annotate(
        CommunicationError(e, absl::StrCat("while waiting for rank ", waiting_for, " through rank 0's store at ", impl_->master)),
        context());
  }
}

absl::StatusOr<ProcessGroup> InitProcessGroup(const InitOptions& options) {
  if (options.backend != "gloo") {
    return absl::InvalidArgumentError(
        absl::StrCat("process group backend '", options.backend, "' is not supported; the one there is: 'gloo'"));
  }
  if (options.timeout <= Milliseconds::zero()) {
    return absl::InvalidArgumentError(absl::StrCat("the process group's timeout must be positive, got ", options.timeout.count(), " ms"));
  }
  DDPOPT_ASSIGN_OR_RETURN(const Environment env, ReadEnvironment());
  const Clock::time_point deadline = Clock::now() + options.timeout;

  auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->options = options;
  impl->rank = env.rank;
  impl->world_size = env.world_size;
  impl->local_rank = env.local_rank;
  impl->master = absl::StrCat(env.master_addr, ":", env.master_port);
  const std::string context = absl::StrCat("rank ", env.rank, " of ", env.world_size);

  try {
    c10d::TCPStoreOptions store_options;
    store_options.port = static_cast<uint16_t>(env.master_port);
    store_options.isServer = env.rank == 0;
    store_options.numWorkers = env.world_size;
    store_options.waitWorkers = false;  // AllGatherText below waits, and names who is missing
    store_options.timeout = options.timeout;
    impl->store = c10::make_intrusive<c10d::TCPStore>(env.master_addr, store_options);
    impl->text_store = c10::make_intrusive<c10d::PrefixStore>("ddpopt/text", impl->store);
  } catch (const std::exception& e) {
    const absl::Status status =
        CommunicationError(e, absl::StrCat(context, env.rank == 0 ? ": can't serve the store at " : ": can't reach rank 0's store at ",
                                           impl->master, " (MASTER_ADDR:MASTER_PORT) within ", Seconds(options.timeout)));
    return status.code() == absl::StatusCode::kInternal ? absl::UnavailableError(status.message()) : status;
  }

  try {
    if (impl->store->add(absl::StrCat("ddpopt/rank/", env.rank), 1) != 1) {
      return absl::AlreadyExistsError(
          absl::StrCat(context, ": another process with RANK=", env.rank, " has joined the group at ", impl->master));
    }
  } catch (const std::exception& e) {
    return CommunicationError(e, absl::StrCat(context, ": joining the group at ", impl->master));
  }

  // Everyone is here, with the same idea of the group, before Gloo connects them.
  ProcessGroup group(impl);
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> sizes, group.AllGatherText("the group's size", absl::StrCat(env.world_size)));
  for (int r = 0; r < env.world_size; ++r) {
    if (sizes[r] != sizes[env.rank]) {
      return absl::FailedPreconditionError(
          absl::StrCat(context, ": rank ", r, " has WORLD_SIZE=", sizes[r], ", rank ", env.rank, " has WORLD_SIZE=", sizes[env.rank]));
    }
  }

  std::vector<std::string> interfaces;
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME"); names != nullptr && *names != '\0') {
    interfaces = absl::StrSplit(names, ',', absl::SkipWhitespace());
  }
  try {
    impl->store->setTimeout(Remaining(deadline));
    auto backend = MakeGlooBackend(c10::make_intrusive<c10d::PrefixStore>("ddpopt/gloo", impl->store), env.rank, env.world_size,
                                   options.timeout, interfaces,
                                   !IsLoopback(env.master_addr) ? ""
                                   : env.master_addr == "::1"   ? "::1"
                                                                : "127.0.0.1");
    impl->store->setTimeout(options.timeout);
    impl->group = c10::make_intrusive<c10d::ProcessGroup>(impl->store, env.rank, env.world_size);
    impl->group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, backend);
    impl->group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    impl->group->setGroupName("ddpopt");
  } catch (const std::exception& e) {
    return CommunicationError(
        e, absl::StrCat(context, ": connecting the ranks by Gloo",
                        interfaces.empty() ? "" : absl::StrCat(" over GLOO_SOCKET_IFNAME=", absl::StrJoin(interfaces, ","))));
  }
  // Nobody leaves (rank 0 serves the store) before all are connected.
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> connected, group.AllGatherText("that Gloo is connected", "1"));
  return group;
}

}  // namespace ddpopt
