#include "ddpopt/aot/executor.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "ATen/EmptyTensor.h"
#include "ATen/core/stack.h"
#include "ATen/record_function.h"
#include "c10/core/CPUAllocator.h"
#include "c10/core/Storage.h"
#include "c10/core/TensorImpl.h"
#include "c10/core/impl/LocalDispatchKeySet.h"
#include "ddpopt/aot/buffer_plan.h"
#include "ddpopt/aot/execution_plan.h"
#include "ddpopt/aot/workspace.h"
#include "interpreter/interpreter.h"
#include "interpreter/node_context.h"

namespace ddpopt {

using c10::IValue;
using Group = ExecutionPlan::Group;
using Memory = ExecutionPlan::Memory;
using Range = ExecutionPlan::Range;
using Source = ExecutionPlan::Source;
using Step = ExecutionPlan::Step;
using Value = ExecutionPlan::Value;

namespace {

const c10::DispatchKeySet kCpu(c10::DispatchKey::CPU);

// What tensors are that CPU kernels take as they are.
uint64_t PlainKeys() {
  static const uint64_t keys =
      (kCpu | c10::DispatchKeySet({c10::DispatchKey::AutogradCPU, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutocastCPU})).raw_repr();
  return keys;
}

// Whether operators of this thread go straight to their CPU kernels.
bool NothingBetween() {
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  return (local.included_.raw_repr() & ~local.excluded_.raw_repr() & ~c10::default_included_set.raw_repr()) == 0;
}

bool LiesAs(const at::Tensor& tensor, const Value& value) {
  if (tensor.sizes() != at::IntArrayRef(value.sizes)) return false;
  const at::IntArrayRef strides = tensor.strides();
  if (strides == at::IntArrayRef(value.strides)) return true;
  for (std::size_t d = 0; d < value.sizes.size(); ++d) {
    if (value.sizes[d] > 1 && strides[d] != value.strides[d]) return tensor.numel() == 0;
  }
  return true;
}

c10::Storage NoMemory() {
  return c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, c10::Device(c10::kCPU)), nullptr, /*resizable=*/false);
}

at::Tensor MakeTensor(c10::Storage storage, const Value& value, int64_t byte_offset) {
  const caffe2::TypeMeta dtype = c10::scalarTypeToTypeMeta(value.dtype);
  auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), kCpu, dtype);
  impl->set_sizes_and_strides(value.sizes, value.strides, byte_offset / static_cast<int64_t>(dtype.itemsize()));
  return at::Tensor(std::move(impl));
}

int64_t ByteOffset(const at::Tensor& tensor) { return tensor.storage_offset() * static_cast<int64_t>(tensor.element_size()); }

// A storage of its own in memory that goes when its last part goes.
c10::Storage PartOf(const std::shared_ptr<c10::DataPtr>& block, int64_t offset, int64_t bytes) {
  auto* const holder = new std::shared_ptr<c10::DataPtr>(block);
  c10::DataPtr data(static_cast<char*>(block->get()) + offset, holder, [](void* held) { delete static_cast<std::shared_ptr<c10::DataPtr>*>(held); },
                    c10::Device(c10::kCPU));
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(bytes), std::move(data), c10::GetCPUAllocator(),
                      /*resizable=*/false);
}

}  // namespace

// What one run at a time uses: the values, most of them made once.
class Executor::Frame {
 public:
  explicit Frame(const ExecutionPlan& plan) : plan_(plan), nothing_(NoMemory()) {
    workspace_ = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(plan.workspace_bytes),
                              c10::DataPtr(nullptr, c10::Device(c10::kCPU)), nullptr, /*resizable=*/false);
    slots.resize(plan.values.size());
    for (std::size_t v = 0; v < slots.size(); ++v) {
      const Value& value = plan.values[v];
      const int index = static_cast<int>(v);
      if (plan.InWorkspace(index)) {
        slots[v] = MakeTensor(workspace_, value, plan.memories[value.memory].offset + value.byte_offset);
      } else if (value.constant.defined()) {
        slots[v] = value.constant;
      } else if (!plan.IsWhole(index)) {
        slots[v] = MakeTensor(nothing_, value, 0);
      }
    }
    saved.resize(plan.groups.size());
    together.resize(plan.groups.size());
    stack.reserve(plan.max_stack);
  }

  // Where the values of the workspace lie from now on.
  void Attach(void* workspace) { workspace_.set_data_ptr_noswap(c10::DataPtr(workspace, c10::Device(c10::kCPU))); }
  bool IsWorkspace(const at::Tensor& tensor) const {
    return tensor.storage().unsafeGetStorageImpl() == workspace_.unsafeGetStorageImpl();
  }

  // Lays a view over the memory that it is a view of.
  void Bind(int index) {
    const at::Tensor& base = BaseOf(index);
    const Value& value = plan_.values[index];
    c10::TensorImpl* const impl = slots[index].unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(base.storage());
    impl->set_storage_offset((ByteOffset(base) + value.byte_offset) / static_cast<int64_t>(impl->itemsize()));
  }

  at::Tensor NewView(int index) const {
    const at::Tensor& base = BaseOf(index);
    const Value& value = plan_.values[index];
    return MakeTensor(base.storage(), value, ByteOffset(base) + value.byte_offset);
  }

  void Free(int index) {
    if (plan_.IsWhole(index)) {
      slots[index].reset();
    } else {
      slots[index].unsafeGetTensorImpl()->set_storage_keep_dtype(nothing_);
    }
  }

  void Allocate(int index) {
    const Value& value = plan_.values[index];
    const Memory& memory = plan_.memories[value.memory];
    if (!targets.empty() && memory.output >= 0 && memory.output < static_cast<int>(targets.size())) {
      const at::Tensor& target = targets[memory.output];
      const Value& wanted = plan_.values[plan_.outputs[memory.output]];
      if (target.defined() && target.scalar_type() == wanted.dtype && target.device().is_cpu() && LiesAs(target, wanted)) {
        slots[index] = MakeTensor(target.storage(), value, ByteOffset(target));
        return;
      }
    }
    // With targets, most of a group may lie elsewhere.
    switch (memory.kind == Memory::Kind::kTogether && !targets.empty() ? Memory::Kind::kResult : memory.kind) {
      case Memory::Kind::kTogether: {
        std::shared_ptr<c10::DataPtr>& block = together[memory.group];
        if (block == nullptr) block = std::make_shared<c10::DataPtr>(AllocateGroup(memory.group));
        slots[index] = MakeTensor(PartOf(block, memory.offset, memory.bytes), value, 0);
        break;
      }
      case Memory::Kind::kSaved: {
        c10::Storage& storage = saved[memory.group];
        if (!storage) {
          storage = c10::Storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(plan_.groups[memory.group].bytes),
                                 AllocateGroup(memory.group), c10::GetCPUAllocator(), /*resizable=*/false);
        }
        slots[index] = MakeTensor(storage, value, memory.offset);
        break;
      }
      default:
        // Until it is handed out, nobody shall resize it.
        slots[index] = MakeTensor(c10::Storage(c10::Storage::use_byte_size_t(), static_cast<std::size_t>(memory.bytes),
                                               c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(memory.bytes)), c10::GetCPUAllocator(),
                                               /*resizable=*/false),
                                  value, 0);
    }
  }

  std::vector<at::Tensor> slots;    // by value
  std::vector<at::Tensor> targets;  // by output
  torch::jit::Stack stack;
  std::vector<at::Tensor> outs;
  // By group.
  std::vector<c10::Storage> saved;
  std::vector<std::shared_ptr<c10::DataPtr>> together;

 private:
  const at::Tensor& BaseOf(int index) const { return slots[plan_.memories[plan_.values[index].memory].value]; }
  c10::DataPtr AllocateGroup(int group) const { return c10::GetCPUAllocator()->allocate(static_cast<std::size_t>(plan_.groups[group].bytes)); }

  const ExecutionPlan& plan_;
  const c10::Storage nothing_;
  c10::Storage workspace_;
};

// A frame of the executor's for one run. One whose run threw isn't used again.
class Executor::FrameLease {
 public:
  explicit FrameLease(const Executor& executor) : executor_(executor) {
    {
      const std::lock_guard<std::mutex> lock(executor.mutex_);
      if (!executor.idle_.empty()) {
        frame_ = std::move(executor.idle_.back());
        executor.idle_.pop_back();
      }
    }
    if (frame_ == nullptr) frame_ = std::make_unique<Frame>(*executor.plan_);
  }
  void GiveBack() {
    const std::lock_guard<std::mutex> lock(executor_.mutex_);
    executor_.idle_.push_back(std::move(frame_));
  }
  Frame& frame() { return *frame_; }

 private:
  const Executor& executor_;
  std::unique_ptr<Frame> frame_;
};

struct Executor::Need {
  explicit Need(int64_t bytes) : workspace(bytes) {}
  WorkspaceNeed workspace;
};

Executor::Executor(std::shared_ptr<const fx::GraphModule> graph, ExecutorOptions options)
    : graph_(std::move(graph)), options_(std::move(options)) {}

Executor::~Executor() = default;

std::shared_ptr<const Executor> Executor::Compile(std::shared_ptr<const fx::GraphModule> graph, ExecutorOptions options) {
  std::shared_ptr<Executor> executor(new Executor(std::move(graph), std::move(options)));
  absl::StatusOr<std::shared_ptr<const ExecutionPlan>> plan = PlanExecution(*executor->graph_, executor->options_);
  if (plan.ok()) {
    executor->plan_ = *std::move(plan);
    executor->copied_ = std::make_unique<std::atomic<bool>[]>(executor->plan_->steps.size());
    executor->need_ = std::make_unique<Need>(executor->plan_->workspace_bytes);
  } else {
    executor->why_interpreted_ = std::string(plan.status().message());
  }
  return executor;
}

bool Executor::CanRun(const std::vector<at::Tensor>& inputs) const {
  if (plan_ == nullptr || inputs.size() != plan_->inputs.size() || !NothingBetween()) return false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    const Value& value = plan_->values[plan_->inputs[i]];
    if (!input.defined() || (input.key_set().raw_repr() & ~PlainKeys()) != 0 || input.scalar_type() != value.dtype || !LiesAs(input, value)) {
      return false;
    }
  }
  return true;
}

std::vector<at::Tensor> Executor::Interpret(std::vector<at::Tensor> inputs) const {
  std::vector<IValue> args(std::make_move_iterator(inputs.begin()), std::make_move_iterator(inputs.end()));
  inputs.clear();
  const IValue result = CallGraphModule(*graph_, std::move(args));
  std::vector<at::Tensor> tensors;
  tensors.reserve(result.toTupleRef().elements().size());
  for (const IValue& element : result.toTupleRef().elements()) tensors.push_back(element.isNone() ? at::Tensor() : element.toTensor());
  return tensors;
}

std::vector<at::Tensor> Executor::Run(std::vector<at::Tensor> inputs, std::vector<at::Tensor> targets) const {
  if (!CanRun(inputs)) return Interpret(std::move(inputs));
  const ExecutionPlan& plan = *plan_;
  const Workspace workspace(plan.workspace_bytes);
  FrameLease lease(*this);
  Frame& frame = lease.frame();
  frame.Attach(workspace.data());
  frame.targets = std::move(targets);
  for (std::size_t i = 0; i < inputs.size(); ++i) frame.slots[plan.inputs[i]] = std::move(inputs[i]);
  RunSteps(frame);

  std::vector<at::Tensor> outputs(plan.outputs.size());
  for (const int view : plan.output_views) {
    const at::Tensor tensor = frame.NewView(view);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (plan.outputs[i] == view) outputs[i] = tensor;
    }
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (plan.outputs[i] >= 0 && plan.IsWhole(plan.outputs[i])) outputs[i] = frame.slots[plan.outputs[i]];
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (plan.outputs[i] < 0) continue;
    const Memory::Kind kind = plan.memories[plan.values[plan.outputs[i]].memory].kind;
    if (kind == Memory::Kind::kResult || kind == Memory::Kind::kTogether) outputs[i].storage().unsafeGetStorageImpl()->set_resizable(true);
  }
  // What the run holds besides.
  for (const int output : plan.outputs) {
    if (output < 0) continue;
    const int whole = plan.memories[plan.values[output].memory].value;
    if (!plan.values[whole].constant.defined()) frame.slots[whole].reset();
  }
  for (const int input : plan.inputs) frame.slots[input].reset();
  std::fill(frame.saved.begin(), frame.saved.end(), c10::Storage());
  std::fill(frame.together.begin(), frame.together.end(), nullptr);
  frame.targets.clear();
  if (options_.poison && plan.workspace_bytes > 0) std::memset(workspace.data(), 0xff, static_cast<std::size_t>(plan.workspace_bytes));
  frame.Attach(nullptr);
  lease.GiveBack();
  return outputs;
}

void Executor::RunSteps(Frame& frame) const {
  // Who watches operators wants to see them.
  const bool observed = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
  const int size = static_cast<int>(plan_->steps.size());
  for (int index = 0; index < size; ++index) {
    try {
      RunStep(frame, index, observed);
    } catch (c10::Error& error) {
      error.add_context(NodeContext(*plan_->steps[index].node));
      throw;
    } catch (const std::exception& error) {
      TORCH_CHECK(false, error.what(), " (", NodeContext(*plan_->steps[index].node), ")");
    }
  }
}

void Executor::PushArguments(Frame& frame, int index) const {
  const ExecutionPlan& plan = *plan_;
  const Step& step = plan.steps[index];
  torch::jit::Stack& stack = frame.stack;
  stack.clear();
  for (int i = step.sources.first; i < step.sources.first + step.sources.size; ++i) {
    const Source& source = plan.sources[i];
    switch (source.kind) {
      case Source::Kind::kConstant:
        stack.push_back(plan.constants[source.index]);
        break;
      case Source::Kind::kValue:
        stack.emplace_back(frame.slots[source.index]);
        break;
      case Source::Kind::kTensors: {
        c10::List<at::Tensor> list;
        list.reserve(source.size);
        for (int k = source.index; k < source.index + source.size; ++k) list.push_back(frame.slots[plan.lists[k]]);
        stack.emplace_back(std::move(list));
        break;
      }
      case Source::Kind::kOptionalTensors: {
        c10::List<std::optional<at::Tensor>> list;
        list.reserve(source.size);
        for (int k = source.index; k < source.index + source.size; ++k) {
          list.push_back(plan.lists[k] < 0 ? std::nullopt : std::optional<at::Tensor>(frame.slots[plan.lists[k]]));
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
}

// Whether the kernel has written where it was told to; one that resizes its results has not. Then, and after an error, whoever computes them
// elsewhere finds what to do.
bool Executor::WriteResults(Frame& frame, int index, bool observed) const {
  const Step& step = plan_->steps[index];
  const c10::ArrayRef<int> results(plan_->result_values.data() + step.results.first, step.results.size);
  for (const int result : results) frame.stack.emplace_back(frame.slots[result]);
  bool kept = true;
  try {
    if (observed) {
      step.op.callBoxed(frame.stack);
    } else {
      step.op.redispatchBoxed(kCpu, &frame.stack);
    }
  } catch (const c10::Error&) {
    kept = false;
  }
  for (const int result : results) {
    const Value& value = plan_->values[result];
    const at::Tensor& tensor = frame.slots[result];
    if (LiesAs(tensor, value)) continue;
    kept = false;
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(value.sizes, value.strides);
  }
  return kept;
}

void Executor::RunStep(Frame& frame, int index, bool observed) const {
  const ExecutionPlan& plan = *plan_;
  const Step& step = plan.steps[index];
  const auto in = [](const std::vector<int>& all, const Range& range) { return c10::ArrayRef<int>(all.data() + range.first, range.size); };
  for (const int value : in(plan.allocations, step.allocated)) frame.Allocate(value);
  for (const int value : in(plan.bound_views, step.views)) frame.Bind(value);

  torch::jit::Stack& stack = frame.stack;
  PushArguments(frame, index);
  const c10::ArrayRef<int> results = in(plan.result_values, step.results);
  switch (step.code) {
    case Step::Code::kDirect: {
      frame.outs.clear();
      for (const int result : results) frame.outs.push_back(result < 0 ? at::Tensor() : frame.slots[result]);
      step.kernel(stack, frame.outs);
      frame.outs.clear();
      break;
    }
    case Step::Code::kOut: {
      if (!copied_[index].load(std::memory_order_relaxed) && WriteResults(frame, index, observed)) break;
      PushArguments(frame, index);
      step.giving.callBoxed(stack);
      for (std::size_t i = 0; i < results.size(); ++i) frame.slots[results[i]].copy_(stack[i].toTensor());
      copied_[index].store(true, std::memory_order_relaxed);
      break;
    }
    case Step::Code::kCall: {
      if (observed) {
        step.op.callBoxed(stack);
      } else {
        step.op.redispatchBoxed(kCpu, &stack);
      }
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (results[i] < 0) continue;
        at::Tensor tensor = std::move(stack[i]).toTensor();
        const Value& value = plan.values[results[i]];
        TORCH_CHECK(tensor.defined() && tensor.sizes() == at::IntArrayRef(value.sizes) && tensor.scalar_type() == value.dtype,
                    c10::toString(step.op.operator_name()), ": gives a result of another shape or dtype than was told when it was compiled");
        // Strides of another layout than views of it were planned for; an operand, whose memory others will take.
        if (!LiesAs(tensor, value) || tensor.use_count() > 1 || frame.IsWorkspace(tensor)) {
          const at::Tensor copy = at::Tensor(at::detail::empty_strided_cpu(value.sizes, value.strides, value.dtype));
          copy.copy_(tensor);
          tensor = copy;
        }
        frame.slots[results[i]] = std::move(tensor);
      }
      break;
    }
  }
  stack.clear();
  for (const int value : in(plan.freed_values, step.freed)) frame.Free(value);
}

Executor::MemoryUse Executor::memory_use() const {
  const ExecutionPlan& plan = *plan_;
  MemoryUse use;
  use.workspace = plan.workspace_bytes;
  const auto steps = static_cast<int>(plan.steps.size());
  std::vector<int64_t> change(plan.steps.size() + 1, 0);
  std::vector<int> group_begin(plan.groups.size(), steps);
  for (const Memory& memory : plan.memories) {
    const bool mine = plan.values[memory.value].memory >= 0 && &plan.memories[plan.values[memory.value].memory] == &memory;
    if (!mine || memory.kind == Memory::Kind::kInput || memory.kind == Memory::Kind::kPlanned) continue;
    if (memory.group >= 0) {
      group_begin[memory.group] = std::min(group_begin[memory.group], memory.first);
      continue;
    }
    change[memory.first] += memory.bytes;
    if (memory.last < steps) change[memory.last + 1] -= memory.bytes;
  }
  for (std::size_t g = 0; g < plan.groups.size(); ++g) change[group_begin[g]] += plan.groups[g].bytes;
  int64_t live = 0;
  for (int s = 0; s < steps; ++s) {
    live += change[s];
    use.live.push_back(live);
  }
  for (const int input : plan.inputs) use.inputs_freed.push_back(plan.memories[plan.values[input].memory].last);
  std::vector<bool> counted(plan.memories.size(), false);
  for (const int output : plan.outputs) {
    MemoryUse::Output told;
    if (output >= 0 && !counted[plan.values[output].memory]) {
      const Memory& memory = plan.memories[plan.values[output].memory];
      counted[plan.values[output].memory] = true;
      if (memory.kind != Memory::Kind::kInput) told.bytes = memory.group >= 0 ? AlignBytes(memory.bytes) : memory.bytes;
      if (memory.kind == Memory::Kind::kSaved) told.group = memory.group;
    }
    use.outputs.push_back(told);
  }
  return use;
}

}  // namespace ddpopt
