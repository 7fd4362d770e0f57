#include "ddpopt/distributed/watched_backend.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <typeinfo>
#include <utility>
#include <vector>

#include "ATen/core/ivalue_inl.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "c10/util/Exception.h"

namespace ddpopt {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

c10::Error MakeError(const std::string& message) { return c10::Error({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message); }

// A thread that fails what is late or has failed, with a diagnosis. Ends when its last user lets go.
class Watcher : public std::enable_shared_from_this<Watcher> {
 public:
  Watcher(std::shared_ptr<GroupMonitor> monitor, Milliseconds deadline, int rank, int world_size)
      : deadline_(deadline), context_(absl::StrCat("on rank ", rank, " of ", world_size)), monitor_(std::move(monitor)) {}

  void Start() {
    thread_ = std::thread([self = this] { self->Run(); });
  }
  ~Watcher() {
    Stop();
    if (thread_.joinable()) thread_.join();
  }

  GroupMonitor& monitor() { return *monitor_; }
  // Fails what is outstanding.
  void Stop() {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  bool stopped() {
    std::lock_guard<std::mutex> lock(mutex_);
    return stop_;
  }
  void Add(uint64_t number, c10::weak_intrusive_ptr<c10d::Work> work);
  void Ended(uint64_t number);
  // The inner work failed. It is kept until its future has heard of it: the Reducer has the future alone. False if nobody watches any more.
  bool Failed(uint64_t number, c10::intrusive_ptr<c10d::Work> work, std::string why);
  // Of an operation that failed before there was a work; diagnoses on the calling thread.
  std::string Explain(uint64_t number, const std::string& why) {
    const std::string more = monitor_->Diagnose(number);
    const std::string name = monitor_->Name(number);
    monitor_->Fail(number, why);
    return absl::StrCat("collective ", name, " ", context_, " failed: ", why, more.empty() ? "" : absl::StrCat(". ", more));
  }
  // Of what has no number.
  std::string Explain(const std::string& name, const std::string& why) {
    const std::string more = monitor_->Diagnose(0);
    monitor_->Fail(0, absl::StrCat(name, ": ", why));
    return absl::StrCat(name, " ", context_, " failed: ", why, more.empty() ? "" : absl::StrCat(". ", more));
  }

 private:
  struct Item {
    c10::weak_intrusive_ptr<c10d::Work> work;
    Clock::time_point due;
    bool failed = false;
    std::string why;
    c10::intrusive_ptr<c10d::Work> failed_work;
  };
  void Run();

  const Milliseconds deadline_;
  const std::string context_;
  const std::shared_ptr<GroupMonitor> monitor_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  bool ended_ = false;  // the thread
  std::map<uint64_t, Item> items_;
  std::thread thread_;
};

// gloo ends the process, from a thread of its own, when more data comes than a collective expects. Before that, this says which collective
// it was, and what the other ranks are in; they are told too.
class LastWords {
 public:
  static void Add(const std::shared_ptr<Watcher>& watcher) {
    LastWords& words = Get();
    std::lock_guard<std::mutex> lock(words.mutex_);
    auto& watchers = words.watchers_;
    watchers.erase(std::remove_if(watchers.begin(), watchers.end(), [](const auto& known) { return known.expired(); }), watchers.end());
    watchers.push_back(watcher);
    if (words.previous_ == nullptr) words.previous_ = std::set_terminate(&OnTerminate);
  }

 private:
  static LastWords& Get() {
    static LastWords* const words = new LastWords;  // for as long as there are threads
    return *words;
  }
  static void OnTerminate() {
    static std::atomic<bool> speaking{false};
    std::string why;
    try {
      if (const std::exception_ptr exception = std::current_exception()) std::rethrow_exception(exception);
    } catch (const std::exception& e) {
      if (std::string(typeid(e).name()).find("4gloo") != std::string::npos) why = e.what();
    } catch (...) {
    }
    LastWords& words = Get();
    if (!why.empty() && !speaking.exchange(true)) words.Say(why);
    words.previous_();
    std::abort();
  }
  void Say(const std::string& why) {
    std::vector<std::weak_ptr<Watcher>> watchers;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      watchers = watchers_;
    }
    for (const auto& weak : watchers) {
      const std::shared_ptr<Watcher> watcher = weak.lock();
      if (watcher == nullptr) continue;
      const uint64_t number = watcher->monitor().oldest_outstanding();
      if (number == 0) continue;
      const std::string text = absl::StrCat("ddpopt: ", watcher->Explain(number, why), "\n");
      [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
    }
  }

  std::mutex mutex_;
  std::vector<std::weak_ptr<Watcher>> watchers_;
  std::terminate_handler previous_ = nullptr;
};

// Ends when the inner work does, or when the watcher gives it up.
class WatchedWork : public c10d::Work {
 public:
  WatchedWork(c10::intrusive_ptr<c10d::Work> inner, int rank, std::weak_ptr<Watcher> watcher, uint64_t number,
              c10::intrusive_ptr<c10::ivalue::Future> inner_future)
      : Work(rank, inner->retrieveOpType()),
        inner_(std::move(inner)),
        watcher_(std::move(watcher)),
        number_(number),
        future_(c10::make_intrusive<c10::ivalue::Future>(inner_future->elementType())) {}

  // The inner work completes its future before it counts as completed itself.
  std::vector<at::Tensor> result() override {
    wait(kNoTimeout);
    inner_->wait();
    return inner_->result();
  }
  uint64_t getSequencenumber() const override { return number_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  void Succeed(const c10::IValue& value) {
    if (settled_.exchange(true)) return;
    if (const auto watcher = watcher_.lock()) watcher->Ended(number_);
    future_->markCompleted(value);
    finish();
  }
  void Fail(const std::string& message) {
    if (settled_.exchange(true)) return;
    const auto error = std::make_exception_ptr(MakeError(message));
    future_->setError(error);
    finish(error);
  }

 private:
  const c10::intrusive_ptr<c10d::Work> inner_;
  const std::weak_ptr<Watcher> watcher_;
  const uint64_t number_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::atomic<bool> settled_{false};
};

void Watcher::Add(uint64_t number, c10::weak_intrusive_ptr<c10d::Work> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  items_.emplace(number, Item{std::move(work), Clock::now() + deadline_, false, "", nullptr});
  if (items_.size() == 1) changed_.notify_all();
}

void Watcher::Ended(uint64_t number) {
  monitor_->End(number);
  std::lock_guard<std::mutex> lock(mutex_);
  items_.erase(number);
}

bool Watcher::Failed(uint64_t number, c10::intrusive_ptr<c10d::Work> work, std::string why) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = items_.find(number);
  if (it == items_.end()) return true;
  if (ended_) {
    items_.erase(it);
    return false;
  }
  it->second.failed = true;
  it->second.why = std::move(why);
  it->second.failed_work = std::move(work);
  changed_.notify_all();
  return true;
}

void Watcher::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    // Deadlines are in the order of the numbers; a failure may be of any.
    auto it = items_.begin();
    while (it != items_.end() && !it->second.failed) ++it;
    if (it == items_.end() && !items_.empty() && items_.begin()->second.due <= Clock::now()) it = items_.begin();
    if (it == items_.end() && stop_ && !items_.empty()) {
      it = items_.begin();
      it->second.failed = true;
      it->second.why = "the process group was taken down while it ran";
    }
    if (it == items_.end()) {
      ended_ = stop_;
      if (ended_) return;
      if (items_.empty()) {
        changed_.wait(lock);
      } else {
        // A copy: the item may go while this waits.
        const Clock::time_point due = items_.begin()->second.due;
        changed_.wait_until(lock, due);
      }
      continue;
    }
    const uint64_t number = it->first;
    Item item = std::move(it->second);
    items_.erase(it);
    const bool explain = !stop_;
    lock.unlock();
    if (const auto work = item.work.lock(); work != nullptr && !work->isCompleted()) {
      const std::string why =
          item.failed ? item.why : absl::StrFormat("it has not ended within %g s", static_cast<double>(deadline_.count()) / 1000);
      static_cast<WatchedWork&>(*work).Fail(explain ? Explain(number, why) : why);
    } else {
      monitor_->End(number);
    }
    lock.lock();
  }
}

// What c10d ends by its timeout and tells nobody of but those who wait: transfers between two ranks, and collectives (with a number) that
// are made of these. This says what it was, and how the others are.
class WatchedWait : public c10d::Work {
 public:
  WatchedWait(c10::intrusive_ptr<c10d::Work> inner, int rank, std::weak_ptr<Watcher> watcher, std::string name, uint64_t number)
      : Work(rank, inner->retrieveOpType()),
        inner_(std::move(inner)),
        watcher_(std::move(watcher)),
        name_(std::move(name)),
        number_(number) {}
  ~WatchedWait() override { End(); }

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { wait(kNoTimeout); }
  void abort() override { inner_->abort(); }
  bool wait(Milliseconds timeout) override {
    try {
      const bool ended = inner_->wait(timeout);
      End();
      return ended;
    } catch (const std::exception& e) {
      const std::string why = ExceptionMessage(e);
      const auto watcher = watcher_.lock();
      if (watcher == nullptr) throw MakeError(absl::StrCat(name_, " failed: ", why));
      throw MakeError(number_ == 0 ? watcher->Explain(name_, why) : watcher->Explain(number_, why));
    }
  }

 private:
  void End() {
    const auto watcher = watcher_.lock();
    if (number_ != 0 && watcher != nullptr) watcher->monitor().End(number_);
  }

  const c10::intrusive_ptr<c10d::Work> inner_;
  const std::weak_ptr<Watcher> watcher_;
  const std::string name_;
  const uint64_t number_;
};

// Null for works that have none.
c10::intrusive_ptr<c10::ivalue::Future> FutureOf(c10d::Work& work) {
  try {
    return work.getFuture();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

CollectiveInfo Info(const char* operation, const std::vector<at::Tensor>& tensors) {
  CollectiveInfo info;
  info.operation = operation;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) continue;
    info.elements += tensor.numel();
    info.dtype = tensor.scalar_type();
  }
  return info;
}
bool IsMoved(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::ScalarType::Float:
    case c10::ScalarType::Double:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Bool:
    case c10::ScalarType::Char:
    case c10::ScalarType::Byte:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
      return true;
    default:
      return false;
  }
}
CollectiveInfo Info(const char* operation, const at::Tensor& tensor) { return Info(operation, std::vector<at::Tensor>{tensor}); }

// LibTorch 2.11 to 2.15 renamed some of c10d's functions. Both names are declared below, without `override`: one of the two overrides.
#define DDPOPT_RENAMED_(new_name, old_name)                                   \
  template <typename B, typename... Args>                                     \
  c10::intrusive_ptr<c10d::Work> Call_##new_name(B& backend, Args&... args) { \
    if constexpr (requires { backend.new_name(args...); }) {                  \
      return backend.new_name(args...);                                       \
    } else {                                                                  \
      return backend.old_name(args...);                                       \
    }                                                                         \
  }
DDPOPT_RENAMED_(all_gather_single, _allgather_base)
DDPOPT_RENAMED_(all_gather_single_coalesced, allgather_into_tensor_coalesced)
DDPOPT_RENAMED_(reduce_scatter_single, _reduce_scatter_base)
DDPOPT_RENAMED_(reduce_scatter_single_coalesced, reduce_scatter_tensor_coalesced)
DDPOPT_RENAMED_(all_to_all_single, alltoall_base)
#undef DDPOPT_RENAMED_

class WatchedBackend : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  WatchedBackend(c10::intrusive_ptr<c10d::Backend> inner, c10::intrusive_ptr<c10d::Backend> transfers, std::shared_ptr<GroupMonitor> monitor,
                 Milliseconds deadline)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        transfers_(std::move(transfers)),
        watcher_(std::make_shared<Watcher>(std::move(monitor), deadline, rank_, size_)) {
    watcher_->Start();
    LastWords::Add(watcher_);
  }
  // The inner backend waits, when it dies, for what is outstanding in it: until its own timeout, if a rank never comes. Nobody is to wait
  // for that.
  ~WatchedBackend() override {
    if (*pending_ > 0) {
      std::thread([inner = std::move(inner_), transfers = std::move(transfers_)]() mutable {
        transfers.reset();
        inner.reset();
      }).detach();
    }
  }

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  void setTimeout(Milliseconds timeout) override { inner_->setTimeout(timeout); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }
  void enableCollectivesTiming() override { inner_->enableCollectivesTiming(); }
  void abort() override {
    shutdown();
    inner_->abort();
  }
  void shutdown() override {
    watcher_->monitor().Leave();
    watcher_->Stop();
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    CheckDense("broadcast", tensors);
    return Watch(Info("broadcast", tensors), [&] { return inner_->broadcast(tensors, opts); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    CheckDense("allreduce", tensors);
    return Watch(Info("allreduce", tensors), [&] { return inner_->allreduce(tensors, opts); });
  }
  WorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return Watch(Info("sparse allreduce", tensors), [&] { return inner_->allreduce_sparse(tensors, opts); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    CheckDense("coalesced allreduce", tensors);
    return Watch(Info("coalesced allreduce", tensors), [&] { return inner_->allreduce_coalesced(tensors, opts); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    CheckDense("reduce", tensors);
    // gloo keeps parts of the sum in the others' tensors. The copies live as long as the inner work, which has them.
    Tensors copies;
    if (rank_ != opts.rootRank) {
      for (const at::Tensor& tensor : tensors) copies.push_back(tensor.clone());
    }
    return Watch(Info("reduce", tensors), [&] { return inner_->reduce(copies.empty() ? tensors : copies, opts); });
  }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return Watch(Info("allgather", inputs), [&] { return inner_->allgather(outputs, inputs, opts); });
  }
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return Watch(Info("coalesced allgather", inputs), [&] { return inner_->allgather_coalesced(outputs, inputs, opts); });
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    return Watch(Info("gather", inputs), [&] { return inner_->gather(outputs, inputs, opts); });
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override {
    return Watch(Info("scatter", outputs), [&] { return inner_->scatter(outputs, inputs, opts); });
  }
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& opts) override {
    return Watch(Info("reduce_scatter", outputs), [&] { return inner_->reduce_scatter(outputs, inputs, opts); });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    return Watch(Info("alltoall", inputs), [&] { return inner_->alltoall(outputs, inputs, opts); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    return Watch(Info("barrier", Tensors()), [&] { return inner_->barrier(opts); });
  }

#define DDPOPT_BOTH_(new_name, old_name, operation, info, parameters, ...)                      \
  virtual WorkPtr new_name parameters {                                                         \
    return Watch(Info(operation, info), [&] { return Call_##new_name(*inner_, __VA_ARGS__); }); \
  }                                                                                             \
  virtual WorkPtr old_name parameters { return new_name(__VA_ARGS__); }
  DDPOPT_BOTH_(all_gather_single, _allgather_base, "allgather", input,
               (at::Tensor & output, at::Tensor& input, const c10d::AllgatherOptions& opts), output, input, opts)
  DDPOPT_BOTH_(all_gather_single_coalesced, allgather_into_tensor_coalesced, "coalesced allgather", inputs,
               (Tensors & outputs, Tensors& inputs, const c10d::AllgatherOptions& opts), outputs, inputs, opts)
  DDPOPT_BOTH_(reduce_scatter_single, _reduce_scatter_base, "reduce_scatter", output,
               (at::Tensor & output, at::Tensor& input, const c10d::ReduceScatterOptions& opts), output, input, opts)
  DDPOPT_BOTH_(reduce_scatter_single_coalesced, reduce_scatter_tensor_coalesced, "coalesced reduce_scatter", outputs,
               (Tensors & outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts), outputs, inputs, opts)
  DDPOPT_BOTH_(all_to_all_single, alltoall_base, "alltoall", input,
               (at::Tensor & output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
                const c10d::AllToAllOptions& opts),
               output, input, output_splits, input_splits, opts)
#undef DDPOPT_BOTH_

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return Transfer("send", absl::StrCat("to rank ", to), tensors, tag, [&] { return transfers_->send(tensors, to, tag); });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return Transfer("recv", absl::StrCat("from rank ", from), tensors, tag, [&] { return transfers_->recv(tensors, from, tag); });
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return Transfer("recv", "from any rank", tensors, tag, [&] { return transfers_->recvAnysource(tensors, tag); });
  }
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    transfers_->monitoredBarrier(opts, wait_all_ranks);
  }

 private:
  void CheckUsable(const CollectiveInfo& info) {
    TORCH_CHECK(!watcher_->stopped(), info.operation, " on rank ", rank_, " of ", size_, ": the process group has been shut down");
    TORCH_CHECK(info.dtype == c10::ScalarType::Undefined || IsMoved(info.dtype), info.operation, " on rank ", rank_, " of ", size_,
                ": tensors of ", info.dtype, " are not supported; ", getBackendName(), " takes float, double, half, bfloat16, bool, int8, ",
                "uint8, int32 and int64");
  }

  // Where the backend takes a tensor for so many elements one after the other.
  void CheckDense(const char* operation, const Tensors& tensors) const {
    for (const at::Tensor& tensor : tensors) {
      TORCH_CHECK(!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_non_overlapping_and_dense(), operation, " on rank ", rank_,
                  " of ", size_, ": needs tensors whose elements lie dense in memory, got one of sizes ", tensor.sizes(), " and strides ",
                  tensor.strides());
    }
  }

  template <typename Start>
  WorkPtr Transfer(const char* operation, const std::string& peer, const Tensors& tensors, int tag, Start&& start) {
    const CollectiveInfo info = Info(operation, tensors);
    CheckUsable(info);
    CheckDense(operation, tensors);
    const std::string name = absl::StrCat(CollectiveText(info), " ", peer, " with tag ", tag);
    try {
      return c10::make_intrusive<WatchedWait>(start(), rank_, watcher_, name, 0);
    } catch (const std::exception& e) {
      throw MakeError(watcher_->Explain(name, ExceptionMessage(e)));
    }
  }

  template <typename Start>
  WorkPtr Watch(const CollectiveInfo& info, Start&& start) {
    CheckUsable(info);
    if (const std::string difference = watcher_->monitor().Difference(); !difference.empty()) {
      const std::string text =
          absl::StrCat(difference, "; results since then are wrong (", info.operation, " on rank ", rank_, " of ", size_, ")");
      watcher_->monitor().Fail(0, text);
      throw MakeError(text);
    }
    const uint64_t number = watcher_->monitor().Begin(info);
    WorkPtr inner;
    try {
      inner = start();
    } catch (const std::exception& e) {
      throw MakeError(watcher_->Explain(number, ExceptionMessage(e)));
    }
    const c10::intrusive_ptr<c10::ivalue::Future> inner_future = FutureOf(*inner);
    if (inner_future == nullptr) return c10::make_intrusive<WatchedWait>(inner, rank_, watcher_, CollectiveText(info), number);
    auto work = c10::make_intrusive<WatchedWork>(inner, rank_, watcher_, number, inner_future);
    watcher_->Add(number, c10::weak_intrusive_ptr<c10d::Work>(WorkPtr(work)));
    ++*pending_;
    // The work stays until the inner one has ended: its tensors are written until then.
    inner_future->addCallback([work, watcher = std::weak_ptr<Watcher>(watcher_), pending = pending_, number](c10::ivalue::Future& future) {
      --*pending;
      if (!future.hasError()) {
        work->Succeed(future.value());
        return;
      }
      std::string why = future.tryRetrieveErrorMessage();
      if (const std::size_t end = why.find("\nException raised from"); end != std::string::npos) why.resize(end);
      const auto held = watcher.lock();
      if (held == nullptr || !held->Failed(number, work, why)) work->Fail(why);
    });
    return work;
  }

  c10::intrusive_ptr<c10d::Backend> inner_, transfers_;
  const std::shared_ptr<std::atomic<int>> pending_ = std::make_shared<std::atomic<int>>(0);  // that the inner backend has not ended
  const std::shared_ptr<Watcher> watcher_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> WatchBackend(c10::intrusive_ptr<c10d::Backend> inner, c10::intrusive_ptr<c10d::Backend> transfers,
                                               std::shared_ptr<GroupMonitor> monitor, Milliseconds deadline) {
  return c10::make_intrusive<WatchedBackend>(std::move(inner), std::move(transfers), std::move(monitor), deadline);
}

}  // namespace ddpopt
