#include "ddpopt/distributed/process_group.h"

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "base/progress.h"
#include "base/status.h"
#include "c10/core/DeviceGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"
#include "c10/util/Exception.h"
#include "ddpopt/distributed/device_streams.h"
#include "ddpopt/distributed/communication_error.h"
#include "ddpopt/distributed/gloo_backend.h"
#include "ddpopt/distributed/network.h"
#include "ddpopt/distributed/nccl_loader.h"
#include "ddpopt/distributed/process_group_c10d.h"
#include "ddpopt/distributed/run_with_deadline.h"
#include "ddpopt/distributed/watched_backend.h"
#include "torch/csrc/distributed/c10d/PrefixStore.hpp"
#include "torch/csrc/distributed/c10d/TCPStore.hpp"

namespace ddpopt {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

struct Environment {
  std::string master_addr;
  int master_port = 0;
  int rank = 0;
  int world_size = 0;
  int local_rank = 0;
  int restart_count = 0;
  bool agent_store = false;  // torchrun's agent serves the store
  Milliseconds stall_timeout{0};
  bool debug = false;
};

constexpr char kStallVariable[] = "DDPOPT_STALL_TIMEOUT";
constexpr char kDebugVariable[] = "TORCH_DISTRIBUTED_DEBUG";
// Beyond it, moments to come don't fit the clock.
constexpr Milliseconds kFar = std::chrono::hours(24 * 365);

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
  if (const char* count = std::getenv("TORCHELASTIC_RESTART_COUNT"); count != nullptr && *count != '\0') {
    DDPOPT_ASSIGN_OR_RETURN(env.restart_count, ReadInteger("TORCHELASTIC_RESTART_COUNT", 0, kMaxRanks));
  }
  if (const char* text = std::getenv(kStallVariable); text != nullptr && *text != '\0') {
    double seconds = 0;
    if (!absl::SimpleAtod(text, &seconds) || !std::isfinite(seconds) || seconds < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("environment variable ", kStallVariable, "='", text, "' is not a number of seconds, 0 or more"));
    }
    const double milliseconds = std::min(std::ceil(seconds * 1000), static_cast<double>(kFar.count()));
    env.stall_timeout = Milliseconds(static_cast<int64_t>(milliseconds));
  }
  // c10d's own levels. INFO asks for less than there is.
  if (const char* level = std::getenv(kDebugVariable); level != nullptr && *level != '\0') {
    env.debug = absl::EqualsIgnoreCase(level, "DETAIL");
    if (!env.debug && !absl::EqualsIgnoreCase(level, "INFO") && !absl::EqualsIgnoreCase(level, "OFF")) {
      return absl::InvalidArgumentError(
          absl::StrCat("environment variable ", kDebugVariable, "='", level, "' is none of OFF, INFO and DETAIL"));
    }
  }
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  env.agent_store = agent != nullptr && std::string(agent) == "True";
  return env;
}

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
    const auto* kind =
        std::find_if(std::begin(kBackendKinds), std::end(kBackendKinds), [&](const BackendKind& k) { return k.name == name; });
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

constexpr char kShutDown[] = ": the process group has been shut down";

template <typename Fn>
absl::Status RunCollective(const ProcessGroup& group, const char* name, at::Device device, Fn&& start) {
  const auto& impl = *group.impl();
  const std::string context = absl::StrCat(name, " on rank ", impl.rank, " of ", impl.world_size);
  if (impl.shut_down) return absl::FailedPreconditionError(absl::StrCat(context, kShutDown));
  try {
    const c10::OptionalDeviceGuard guard(device);
    const c10::intrusive_ptr<c10d::Work> work = start(*impl.group);
    if (device.is_cpu()) {
      work->wait();  // the watched backend ends it by the deadline
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

// Backends move memory in its own order, whatever the strides, which may differ between the ranks: so a tensor of others is moved as a
// contiguous copy.
class Contiguous {
 public:
  explicit Contiguous(const at::Tensor& tensor)
      : original_(tensor.detach()),
        data_(original_.is_contiguous() && !original_.is_conj() && !original_.is_neg()
                  ? original_
                  : original_.resolve_conj().resolve_neg().contiguous()) {}
  const at::Tensor& tensor() const { return data_; }
  absl::Status Return(absl::Status status) {
    if (status.ok() && !data_.is_same(original_)) original_.copy_(data_);
    return status;
  }

 private:
  at::Tensor original_, data_;
};

}  // namespace

absl::Status ProcessGroup::CheckSummable(const std::string& what, at::ScalarType dtype) {
  for (const at::ScalarType allowed : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kChar, at::kByte, at::kInt, at::kLong}) {
    if (dtype == allowed) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": tensors of ", c10::toString(dtype),
                   " can't be summed over ranks; float, double, half, bfloat16, int8, uint8, int32 and int64 can"));
}

void ProcessGroup::Shutdown() const {
  if (impl_->shut_down.exchange(true)) return;
  try {
    impl_->group->shutdown();
  } catch (const std::exception& e) {
    TORCH_WARN("shutting down the process group on rank ", impl_->rank, ": ", ExceptionMessage(e));
  }
}

bool ProcessGroup::is_shut_down() const { return impl_->shut_down; }

// NCCL's communicators are to be taken down while CUDA and the store are still there; left to the end of the process they complain, or
// hang.
ProcessGroup::Impl::~Impl() {
  if (group == nullptr || shut_down || !Uses(backends, at::kCUDA)) return;
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
  Contiguous data(tensor);
  return data.Return(RunCollective(*this, "Broadcast", tensor.device(), [&](c10d::ProcessGroup& group) {
    // Values that no backend knows go as bytes.
    const bool known = tensor.scalar_type() == at::kBool || CheckSummable("", tensor.scalar_type()).ok();
    std::vector<at::Tensor> tensors = {known ? data.tensor() : data.tensor().reshape({-1}).view(at::kByte)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    options.timeout = impl_->options.timeout;
    return group.broadcast(tensors, options);
  }));
}

absl::Status ProcessGroup::AllReduceSum(at::Tensor& tensor) const {
  DDPOPT_RETURN_IF_ERROR(CheckTensor(*this, "AllReduceSum", tensor));
  DDPOPT_RETURN_IF_ERROR(CheckSummable(absl::StrCat("AllReduceSum on rank ", rank()), tensor.scalar_type()));
  Contiguous data(tensor);
  return data.Return(RunCollective(*this, "AllReduceSum", tensor.device(), [&](c10d::ProcessGroup& group) {
    std::vector<at::Tensor> tensors = {data.tensor()};
    c10d::AllreduceOptions options;
    options.timeout = impl_->options.timeout;
    return group.allreduce(tensors, options);
  }));
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

absl::StatusOr<std::vector<std::string>> ProcessGroup::AllGatherText(const std::string& what, const std::string& mine) const {
  if (impl_->shut_down) {
    return absl::FailedPreconditionError(absl::StrCat("exchanging ", what, " on rank ", rank(), " of ", world_size(), kShutDown));
  }
  GroupMonitor* monitor = impl_->monitor.get();
  if (monitor == nullptr) return impl_->texts->AllGather(what, mine, impl_->deadline());
  const uint64_t number = monitor->Begin({absl::StrCat("exchange of ", what)});
  absl::StatusOr<std::vector<std::string>> result = impl_->texts->AllGather(what, mine, impl_->deadline());
  if (result.ok()) {
    monitor->End(number);
    return result;
  }
  const std::string more = monitor->Diagnose(number);
  monitor->Fail(number, std::string(result.status().message()));
  return more.empty() ? result.status() : absl::Status(result.status().code(), absl::StrCat(result.status().message(), "; ", more));
}

const std::string& ProcessGroup::network() const { return impl_->network; }

namespace {

absl::Status ConnectGloo(ProcessGroup::Impl& impl, const Network& network, Milliseconds start_timeout) {
  try {
    impl.store->setTimeout(start_timeout);
    GlooBackend backend = MakeGlooBackend(c10::make_intrusive<c10d::PrefixStore>("ddpopt/gloo", impl.store), impl.rank, impl.world_size,
                                   impl.deadline(), network.interfaces, network.address, impl.options.debug);
    impl.store->setTimeout(impl.options.timeout);
    impl.group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                           WatchBackend(std::move(backend.collectives), std::move(backend.transfers), impl.monitor, impl.deadline()));
    return absl::OkStatus();
  } catch (const std::exception& e) {
    const absl::Status status =
        CommunicationError(e, absl::StrCat("connecting the ranks by Gloo over ", network.name,
                                           " (GLOO_SOCKET_IFNAME chooses the interface; the ranks must reach each other by it)"));
    const std::string more = impl.monitor->Diagnose(0);
    impl.monitor->Fail(0, std::string(status.message()));
    return absl::Status(status.code(), absl::StrCat(status.message(), more.empty() ? "" : ". ", more));
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

namespace {

// A peer that has gone must be an error, not a signal that ends this process without a word: c10d's sockets don't see to that.
void IgnoreBrokenPipes() {
  struct sigaction action = {};
  if (sigaction(SIGPIPE, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0 || action.sa_handler != SIG_DFL) return;
  action = {};
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

// What one restart leaves in a store that outlives it is not the next one's.
c10::intrusive_ptr<c10d::Store> OfRestart(const c10::intrusive_ptr<c10d::Store>& store, int restart) {
  return c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("ddpopt/restart/", restart), store);
}

absl::StatusOr<c10::intrusive_ptr<c10d::Store>> ConnectStore(const Environment& env, bool serve, Milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(env.master_port);
  options.isServer = serve;
  options.numWorkers = env.world_size;
  options.waitWorkers = false;  // the text exchange waits, and names who is missing
  options.timeout = timeout;
  // It hangs where a process that was stopped still has the port.
  const auto made = std::make_shared<c10::intrusive_ptr<c10d::Store>>();
  const bool back = RunWithDeadline(DeadlineIn(timeout) + std::chrono::seconds(2), [made, options, address = env.master_addr] {
    *made = c10::make_intrusive<c10d::TCPStore>(address, options);
  });
  if (!back) return absl::DeadlineExceededError("it doesn't answer");
  return *made;
}

constexpr char kRestartKey[] = "ddpopt/restarts";
constexpr Milliseconds kRetry(200);

std::string RankKey(int rank) { return absl::StrCat("rank/", rank); }

struct Start {
  int restart = 0;
  bool place_taken = false;
};

// Which start of the run the store's rank 0 is, and whether a process has this rank's place in it.
absl::StatusOr<Start> StartOf(const c10::intrusive_ptr<c10d::Store>& store, int rank, Clock::time_point deadline) {
  const auto start = std::make_shared<absl::optional<Start>>();
  const bool back = RunWithDeadline(deadline + std::chrono::seconds(2), [start, store, rank, deadline] {
    store->wait({kRestartKey}, Remaining(deadline));
    const std::vector<uint8_t> bytes = store->get(kRestartKey);
    Start found;
    if (!absl::SimpleAtoi(std::string(bytes.begin(), bytes.end()), &found.restart)) return;
    found.place_taken = OfRestart(store, found.restart)->add(RankKey(rank), 0) > 0;
    *start = found;
  });
  if (!back || !start->has_value()) return absl::DeadlineExceededError("it doesn't answer");
  return **start;
}

// Connects to the store, which rank 0 serves unless an agent does. Launchers of several machines count their restarts each for itself: the
// group is at rank 0's, and this rank belongs to it if nobody has its place there. Else an earlier start's rank 0 may still serve the store:
// wait for that to go.
absl::Status ReachStore(ProcessGroup::Impl& impl, const Environment& env, Clock::time_point deadline) {
  const std::string context = absl::StrCat("rank ", env.rank, " of ", env.world_size);
  const bool serve = env.rank == 0 && !env.agent_store;
  const std::string where = absl::StrCat(context, serve ? ": can't serve the store at " : ": can't reach rank 0's store at ", impl.master,
                                         " (MASTER_ADDR:MASTER_PORT) within ", Seconds(impl.options.timeout));
  while (true) {
    absl::Status failed;
    try {
      const absl::StatusOr<c10::intrusive_ptr<c10d::Store>> connected = ConnectStore(env, serve, Remaining(deadline));
      if (!connected.ok()) return absl::Status(connected.status().code(), absl::StrCat(where, ": ", connected.status().message()));
      const c10::intrusive_ptr<c10d::Store>& store = *connected;
      impl.restart = env.restart_count;
      impl.store = OfRestart(store, impl.restart);
      if (env.agent_store) return absl::OkStatus();
      if (serve) {
        const std::string count = absl::StrCat(env.restart_count);
        store->set(kRestartKey, std::vector<uint8_t>(count.begin(), count.end()));
        return absl::OkStatus();
      }
      const absl::StatusOr<Start> theirs = StartOf(store, env.rank, deadline);
      if (!theirs.ok()) return Annotate(theirs.status(), where);
      impl.restart = theirs->restart;
      impl.store = OfRestart(store, impl.restart);
      // Two processes of one start are told apart in Join.
      if (impl.restart == env.restart_count || !theirs->place_taken) return absl::OkStatus();
      const std::string both = absl::StrCat("rank 0 is at restart ", impl.restart, " with a rank ", env.rank,
                                            " already, this rank is at restart ", env.restart_count, " (TORCHELASTIC_RESTART_COUNT)");
      if (impl.restart > env.restart_count) return absl::FailedPreconditionError(absl::StrCat(context, ": ", both, ": it comes too late"));
      failed = absl::DeadlineExceededError(absl::StrCat(where, ": ", both));
    } catch (const std::exception& e) {
      failed = CommunicationError(e, where);
      if (failed.code() == absl::StatusCode::kInternal) failed = absl::UnavailableError(failed.message());
      // While an earlier start's rank 0 goes, its connections break. Serving doesn't get better by waiting.
      if (serve || env.restart_count == 0) return failed;
    }
    if (Clock::now() + kRetry >= deadline) return failed;
    std::this_thread::sleep_for(kRetry);
  }
}

// This rank, once; as many of them as rank 0 thinks.
absl::Status Join(ProcessGroup::Impl& impl, const Environment& env, Clock::time_point deadline) {
  const std::string context = absl::StrCat("rank ", env.rank, " of ", env.world_size);
  struct Answer {
    int64_t joined = 0;
    std::string world_size;
  };
  const auto answer = std::make_shared<Answer>();
  try {
    const bool back = RunWithDeadline(deadline + std::chrono::seconds(2),
                                      [answer, store = impl.store, rank = env.rank, world_size = env.world_size, deadline] {
                                        answer->joined = store->add(RankKey(rank), 1);
                                        const std::string text = absl::StrCat(world_size);
                                        if (rank == 0) store->set("world_size", std::vector<uint8_t>(text.begin(), text.end()));
                                        store->wait({"world_size"}, Remaining(deadline));
                                        const std::vector<uint8_t> bytes = store->get("world_size");
                                        answer->world_size.assign(bytes.begin(), bytes.end());
                                      });
    if (!back)
      return absl::DeadlineExceededError(absl::StrCat(context, ": joining the group: rank 0's store at ", impl.master, " doesn't answer"));
  } catch (const std::exception& e) {
    return CommunicationError(e, absl::StrCat(context, ": joining the group at ", impl.master, ": rank 0 has not come"));
  }
  if (answer->joined != 1) {
    return absl::AlreadyExistsError(
        absl::StrCat(context, ": another process with RANK=", env.rank, " has joined the group at ", impl.master));
  }
  if (answer->world_size != absl::StrCat(env.world_size)) {
    return absl::FailedPreconditionError(
        absl::StrCat(context, ": rank 0 has WORLD_SIZE=", answer->world_size, ", rank ", env.rank, " has WORLD_SIZE=", env.world_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ProcessGroup> InitProcessGroup(const InitOptions& options) {
  DDPOPT_ASSIGN_OR_RETURN(const BackendsByDevice backends, ParseBackends(options.backend));
  if (options.stall_timeout < Milliseconds::zero()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the process group's stall_timeout must not be negative, got ", options.stall_timeout.count(), " ms"));
  }
  if (options.timeout <= Milliseconds::zero()) {
    return absl::InvalidArgumentError(absl::StrCat("the process group's timeout must be positive, got ", options.timeout.count(), " ms"));
  }
  DDPOPT_ASSIGN_OR_RETURN(const Environment env, ReadEnvironment());
  const Milliseconds stall_timeout = options.stall_timeout.count() > 0 ? options.stall_timeout : env.stall_timeout;
  if (Uses(backends, at::kCUDA)) {
    const auto refuse = [&](bool own, const char* name, const char* variable, const char* why) {
      return absl::InvalidArgumentError(absl::StrCat("process group backend '", options.backend, "': ", name,
                                                     own ? "" : absl::StrCat(" (", variable, " in the environment)"),
                                                     " is not supported with NCCL, ", why));
    };
    if (stall_timeout.count() > 0) {
      return refuse(options.stall_timeout.count() > 0, "stall_timeout", kStallVariable, "whose collectives end by `timeout` alone");
    }
    if (options.debug || env.debug) return refuse(options.debug, "debug", kDebugVariable, "whose collectives are not compared between ranks");
  }
  IgnoreBrokenPipes();
  const Clock::time_point deadline = DeadlineIn(options.timeout);
  const std::string context = absl::StrCat("rank ", env.rank, " of ", env.world_size);

  const ProgressScope progress(env.local_rank == 0, absl::StrCat("waiting for all of ", env.world_size, " ranks to come to ",
                                                                env.master_addr, ":", env.master_port));
  auto impl = std::make_shared<ProcessGroup::Impl>();
  impl->options = options;
  impl->options.timeout = std::min(impl->options.timeout, kFar);
  impl->options.stall_timeout = std::min(stall_timeout, kFar);
  impl->options.debug = options.debug || env.debug;
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

  const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  absl::StatusOr<Network> network = absl::UnavailableError("");
  while (true) {
    network = ChooseNetwork(env.master_addr, env.master_port, interfaces == nullptr ? "" : interfaces);
    // A link that is down may come up.
    if (!absl::IsUnavailable(network.status()) || Clock::now() + kRetry >= deadline) break;
    std::this_thread::sleep_for(kRetry);
  }
  if (!network.ok()) return Annotate(network.status(), context);
  impl->network = network->name;

  const absl::Status reached = ReachStore(*impl, env, deadline);
  if (!local.ok() && !reached.ok()) return local;
  DDPOPT_RETURN_IF_ERROR(reached);
  impl->texts = std::make_shared<TextExchange>(c10::make_intrusive<c10d::PrefixStore>("ddpopt/text", impl->store), env.rank, env.world_size,
                                               impl->master);

  // Everyone is here, with the same idea of the group and able to take part, before the backends connect them.
  ProcessGroup group(impl);
  const absl::Status agreed = [&]() -> absl::Status {
    if (absl::Status joined = Join(*impl, env, deadline); !joined.ok()) {
      impl->texts->Abort(joined);
      return joined;
    }
    const absl::StatusOr<std::vector<std::string>> ideas = impl->texts->AllGather(
        "the group's size and backend",
        absl::StrJoin({absl::StrCat(env.world_size), impl->options.backend + (impl->options.debug ? " with checks of collectives" : ""),
                       std::string(network->loopback ? "loopback" : ""), impl->network, std::string(local.message())},
                      "\n"),
        Remaining(deadline));
    if (!local.ok()) return local;
    DDPOPT_RETURN_IF_ERROR(ideas.status());
    const auto idea = [&](int r) -> std::vector<std::string> { return absl::StrSplit((*ideas)[r], absl::MaxSplits('\n', 4)); };
    const std::vector<std::string> mine = idea(env.rank);
    for (int r = 0; r < env.world_size; ++r) {
      const std::vector<std::string> theirs = idea(r);
      const auto differs = [&](const char* what, size_t i) {
        return absl::FailedPreconditionError(
            absl::StrCat(context, ": rank ", r, " has ", what, theirs[i], ", rank ", env.rank, " has ", what, mine[i]));
      };
      if (theirs[0] != mine[0]) return differs("WORLD_SIZE=", 0);
      if (theirs[1] != mine[1]) return differs("backend ", 1);
      if (!theirs[4].empty()) return absl::FailedPreconditionError(absl::StrCat(context, ": another rank can't take part: ", theirs[4]));
      if (theirs[2] != mine[2]) {
        return absl::FailedPreconditionError(
            absl::StrCat(context, ": rank ", r, " would use interface ", theirs[3], ", rank ", env.rank, " ", mine[3],
                         ": a loopback interface reaches no other machine; GLOO_SOCKET_IFNAME chooses another"));
      }
    }
    return absl::OkStatus();
  }();
  if (!agreed.ok()) {
    if (env.rank == 0 && env.world_size > 1 && absl::IsFailedPrecondition(agreed)) impl->texts->Linger();
    return agreed;
  }
  if (env.local_rank == 0 && !network->loopback) {
    std::fprintf(stderr, "ddpopt: rank %d of %d uses interface %s\n", env.rank, env.world_size, impl->network.c_str());
  }

  {
    // A connection of its own: a rank that waits in the other must not keep this one from telling so.
    const absl::StatusOr<c10::intrusive_ptr<c10d::Store>> store =
        CatchAsStatus("", [&] { return ConnectStore(env, false, Remaining(deadline)); });
    if (!store.ok()) {
      return Annotate(store.status(), absl::StrCat(context, ": connecting to rank 0's store at ", impl->master, " for the second time"));
    }
    GroupMonitor::Options monitor_options;
    monitor_options.rank = env.rank;
    monitor_options.world_size = env.world_size;
    monitor_options.master = impl->master;
    monitor_options.compare = !impl->options.debug;
    impl->monitor = GroupMonitor::Create(OfRestart(*store, impl->restart), std::move(monitor_options));
  }
  impl->group = c10::make_intrusive<c10d::ProcessGroup>(impl->store, env.rank, env.world_size);
  if (nccl != nullptr) impl->group->setBoundDeviceId(impl->device);
  for (const auto& [type, name] : backends) {
    const absl::Status connected = type == at::kCUDA ? ConnectNccl(*impl, *nccl) : ConnectGloo(*impl, *network, Remaining(deadline));
    if (!connected.ok()) return Annotate(connected, context);
  }
  impl->group->setDefaultBackend(nccl != nullptr ? c10d::ProcessGroup::BackendType::NCCL : c10d::ProcessGroup::BackendType::GLOO);
  impl->group->setGroupName("ddpopt");
  // Nobody leaves (rank 0 serves the store) before all are connected.
  DDPOPT_ASSIGN_OR_RETURN(const std::vector<std::string> connected, group.AllGatherText("that the backends are connected", "1"));
  return group;
}

}  // namespace ddpopt
