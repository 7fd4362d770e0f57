#include "ddpopt/distributed/process_group.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
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
#include "c10/core/DeviceGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"
#include "ddpopt/distributed/device_streams.h"
#include "ddpopt/distributed/gloo_backend.h"
#include "ddpopt/distributed/nccl_loader.h"
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

// What there is, and what it takes.
struct BackendKind {
  const char* name;
  at::DeviceType takes;
};
constexpr BackendKind kBackendKinds[] = {{"gloo", at::kCPU}, {"nccl", at::kCUDA}};

std::string DeviceName(at::DeviceType type) { return c10::DeviceTypeName(type, /*lower_case=*/true); }

// "gloo", "nccl", or "cpu:gloo,cuda:nccl".
absl::StatusOr<BackendsByDevice> ParseBackends(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("process group backend '", text, "'", why));
  };
  BackendsByDevice result;
  for (const absl::string_view entry : absl::StrSplit(text, ',')) {
    const std::vector<std::string> parts = absl::StrSplit(entry, ':');
    const std::string& name = parts.back();
    const auto* kind = std::find_if(std::begin(kBackendKinds), std::end(kBackendKinds), [&](const BackendKind& k) { return k.name == name; });
    if (kind == std::end(kBackendKinds)) {
      return refuse(absl::StrCat(name == text ? "" : absl::StrCat(": '", name, "'"),
                                 " is not supported; there are 'gloo' (takes cpu tensors) and 'nccl' (takes cuda tensors)"));
    }
    const std::string device = DeviceName(kind->takes);
    if (parts.size() > 2 || (parts.size() == 2 && parts[0] != device)) {
      return refuse(absl::StrCat(": ", name, " takes ", device, " tensors, so it can serve '", device, "' alone, not '", parts[0], "'"));
    }
    for (const auto& [type, earlier] : result) {
      if (type == kind->takes) return refuse(absl::StrCat(" names two backends for ", device, ": ", earlier, " and ", name));
    }
    result.emplace_back(kind->takes, name);
  }
  return result;
}

bool Uses(const BackendsByDevice& backends, at::DeviceType type) {
  return std::any_of(backends.begin(), backends.end(), [&](const auto& entry) { return entry.first == type; });
}

template <typename Fn>
absl::Status RunCollective(const ProcessGroup& group, const char* name, at::Device device, Fn&& start) {
  const auto& impl = *group.impl();
  const std::string context = absl::StrCat(name, " on rank ", impl.rank, " of ", impl.world_size);
  try {
    const c10::OptionalDeviceGuard guard(device);
    const c10::intrusive_ptr<c10d::Work> work = start(*impl.group);
    if (device.is_cpu()) {
      work->wait(impl.options.timeout);
      return absl::OkStatus();
    }
    // Has the current stream wait, not this thread.
    work->wait();
    if (!StreamStamp::Record(device).Wait(impl.options.timeout)) {
      return absl::DeadlineExceededError(absl::StrCat(context, ": ", device.str(), " has not ended it within ",
                                                      Seconds(impl.options.timeout), "; another rank has not come, or is stuck"));
    }
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return CommunicationError(e, context);
  }
}

absl::Status CheckTensor(const ProcessGroup& group, const char* name, const at::Tensor& tensor) {
  const std::string context = absl::StrCat(name, " on rank ", group.rank());
  if (!tensor.defined()) return absl::InvalidArgumentError(absl::StrCat(context, ": the tensor is undefined"));
  DDPOPT_RETURN_IF_ERROR(group.CheckDevice(absl::StrCat(context, ": the tensor"), tensor.device()));
  if (tensor.layout() != at::kStrided) return absl::InvalidArgumentError(absl::StrCat(context, ": needs a dense tensor"));
  if (!tensor.is_non_overlapping_and_dense()) {
    return absl::InvalidArgumentError(absl::StrCat(context, ": needs a tensor whose elements lie dense in memory"));
  }
  return absl::OkStatus();
}

}  // namespace

// NCCL's communicators are to be taken down while CUDA and the store are still there; left to the end of the process they complain, or hang.
ProcessGroup::Impl::~Impl() {
  if (group == nullptr || !Uses(backends, at::kCUDA)) return;
  try {
    group->shutdown();
  } catch (const std::exception& e) {
    TORCH_WARN("taking down the process group on rank ", rank, ": ", ExceptionMessage(e));
  }
}

int ProcessGroup::rank() const { return impl_->rank; }
int ProcessGroup::world_size() const { return impl_->world_size; }
int ProcessGroup::local_rank() const { return impl_->local_rank; }
const InitOptions& ProcessGroup::options() const { return impl_->options; }
at::Device ProcessGroup::device() const { return impl_->device; }

absl::Status ProcessGroup::CheckDevice(const std::string& what, at::Device device) const {
  std::vector<std::string> takes;
  for (const auto& [type, backend] : impl_->backends) {
    // NCCL has one device for each rank. A tensor on "cuda" is on the current one.
    const bool bound = type != at::kCPU;
    if (device.type() == type && (!bound || !device.has_index() || device.index() == impl_->device.index())) return absl::OkStatus();
    takes.push_back(absl::StrCat(backend, ", which takes ", bound ? impl_->device.str() : DeviceName(type), " tensors"));
  }
  return absl::InvalidArgumentError(absl::StrCat(what, " is on ", device.str(), ", but the process group's backend is ",
                                                 absl::StrJoin(takes, " and "), impl_->device.is_cpu() ? "" : " (LOCAL_RANK chooses)"));
}

absl::Status ProcessGroup::Broadcast(at::Tensor& tensor, int root) const {
  DDPOPT_RETURN_IF_ERROR(CheckTensor(*this, "Broadcast", tensor));
  if (root < 0 || root >= world_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Broadcast on rank ", rank(), ": root ", root, " is no rank of a group of ", world_size()));
  }
  return RunCollective(*this, "Broadcast", tensor.device(), [&](c10d::ProcessGroup& group) {
    std::vector<at::Tensor> tensors = {tensor.detach()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = impl_->options.timeout;
    return group.broadcast(tensors, options);
  });
}

absl::Status ProcessGroup::AllReduceSum(at::Tensor& tensor) const {
  DDPOPT_RETURN_IF_ERROR(CheckTensor(*this, "AllReduceSum", tensor));
  return RunCollective(*this, "AllReduceSum", tensor.device(), [&](c10d::ProcessGroup& group) {
    std::vector<at::Tensor> tensors = {tensor.detach()};
    c10d::AllreduceOptions options;
    options.timeout = impl_->options.timeout;
    return group.allreduce(tensors, options);
  });
}

absl::Status ProcessGroup::Barrier() const {
  return RunCollective(*this, "Barrier", impl_->device, [&](c10d::ProcessGroup& group) {
    c10d::BarrierOptions options;
    options.timeout = impl_->options.timeout;
    options.device = impl_->device;
    if (!impl_->device.is_cpu()) options.device_ids = {impl_->device.index()};
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

namespace {

absl::Status ConnectGloo(ProcessGroup::Impl& impl, const std::string& master_addr, Milliseconds start_timeout) {
  std::vector<std::string> interfaces;
  if (const char* names = std::getenv("GLOO_SOCKET_IFNAME"); names != nullptr && *names != '\0') {
    interfaces = absl::StrSplit(names, ',', absl::SkipWhitespace());
  }
  try {
    impl.store->setTimeout(start_timeout);
    auto backend = MakeGlooBackend(c10::make_intrusive<c10d::PrefixStore>("ddpopt/gloo", impl.store), impl.rank, impl.world_size,
                                   impl.options.timeout, interfaces,
                                   !IsLoopback(master_addr) ? ""
                                   : master_addr == "::1"   ? "::1"
                                                            : "127.0.0.1");
    impl.store->setTimeout(impl.options.timeout);
    impl.group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return CommunicationError(e, absl::StrCat("connecting the ranks by Gloo", interfaces.empty() ? ""
                                                                                               : absl::StrCat(" over GLOO_SOCKET_IFNAME=",
                                                                                                              absl::StrJoin(interfaces, ","))));
  }
}

absl::Status ConnectNccl(ProcessGroup::Impl& impl, const NcclObject& object) {
  // c10d's watchdog ends the process of a collective that has taken too long; errors of ours are to come first.
  constexpr Milliseconds kGrace = std::chrono::seconds(30);
  try {
    const c10::impl::VirtualGuardImpl device_impl(at::kCUDA);
    device_impl.setDevice(impl.device);
    NcclBackendRequest request;
    request.store = c10::make_intrusive<c10d::PrefixStore>("ddpopt/nccl", impl.store);
    request.rank = impl.rank;
    request.world_size = impl.world_size;
    request.timeout = impl.options.timeout + kGrace;
    const c10::intrusive_ptr<c10d::Backend> backend = object.make_backend(request);
    impl.group->setBackend(at::kCUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
    // Else the first collective would connect, and fail in place of this.
    backend->eagerConnectSingleDevice(impl.device);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return CommunicationError(e, absl::StrCat("connecting the ranks by NCCL from ", impl.device.str()));
  }
}

}  // namespace

absl::StatusOr<ProcessGroup> InitProcessGroup(const InitOptions& options) {
  DDPOPT_ASSIGN_OR_RETURN(const BackendsByDevice backends, ParseBackends(options.backend));
  if (options.timeout <= Milliseconds::zero()) {
    return absl::InvalidArgumentError(absl::StrCat("the process group's timeout must be positive, got ", options.timeout.count(), " ms"));
  }
  DDPOPT_ASSIGN_OR_RETURN(const Environment env, ReadEnvironment());
  const Clock::time_point deadline = Clock::now() + options.timeout;
  const std::string context = absl::StrCat("rank ", env.rank, " of ", env.world_size);

  auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->options = options;
  impl->rank = env.rank;
  impl->world_size = env.world_size;
  impl->local_rank = env.local_rank;
  impl->backends = backends;
  impl->master = absl::StrCat(env.master_addr, ":", env.master_port);

  // Early, and before anything in this process asks LibTorch for CUDA. An error is told to the other ranks, which would wait otherwise.
  const NcclObject* nccl = nullptr;
  absl::Status local;
  if (Uses(backends, at::kCUDA)) {
    if (const absl::StatusOr<const NcclObject*> loaded = LoadNcclObject(env.local_rank); loaded.ok()) {
      nccl = *loaded;
      impl->device = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(env.local_rank));
    } else {
      local = Annotate(loaded.status(), absl::StrCat(context, ": process group backend '", options.backend, "'"));
      if (env.world_size == 1) return local;
    }
  }

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
    if (!local.ok()) return local;
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
    if (!local.ok()) return local;
    return CommunicationError(e, absl::StrCat(context, ": joining the group at ", impl->master));
  }

  // Everyone is here, with the same idea of the group and able to take part, before the backends connect them.
  ProcessGroup group(impl);
  const absl::StatusOr<std::vector<std::string>> ideas =
      group.AllGatherText("the group's size and backend", absl::StrCat(env.world_size, "\n", options.backend, "\n", local.message()));
  if (!local.ok()) return local;
  DDPOPT_RETURN_IF_ERROR(ideas.status());
  const auto idea = [&](int r) -> std::vector<std::string> { return absl::StrSplit((*ideas)[r], absl::MaxSplits('\n', 2)); };
  const std::vector<std::string> mine = idea(env.rank);
  for (int r = 0; r < env.world_size; ++r) {
    const std::vector<std::string> theirs = idea(r);
    const auto differs = [&](const char* what, size_t i) {
      return absl::FailedPreconditionError(
          absl::StrCat(context, ": rank ", r, " has ", what, theirs[i], ", rank ", env.rank, " has ", what, mine[i]));
    };
    if (theirs[0] != mine[0]) return differs("WORLD_SIZE=", 0);
    if (theirs[1] != mine[1]) return differs("backend ", 1);
    if (!theirs[2].empty()) return absl::FailedPreconditionError(absl::StrCat(context, ": another rank can't take part: ", theirs[2]));
  }

  impl->group = c10::make_intrusive<c10d::ProcessGroup>(impl->store, env.rank, env.world_size);
  if (nccl != nullptr) impl->group->setBoundDeviceId(impl->device);
  for (const auto& [type, name] : backends) {
    const absl::Status connected = type == at::kCUDA ? ConnectNccl(*impl, *nccl) : ConnectGloo(*impl, env.master_addr, Remaining(deadline));
    if (!connected.ok()) return Annotate(connected, context);
  }
  impl->group->setDefaultBackend(nccl != nullptr ? c10d::ProcessGroup::BackendType::NCCL : c10d::ProcessGroup::BackendType::GLOO);
  impl->group->setGroupName("ddpopt");
  // Nobody leaves (rank 0 serves the store) before all are connected.
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> connected, group.AllGatherText("that the backends are connected", "1"));
  return group;
}

}  // namespace ddpopt
