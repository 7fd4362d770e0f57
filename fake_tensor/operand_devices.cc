#include "fake_tensor/operand_devices.h"

#include "ATen/detail/CUDAHooksInterface.h"
#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "c10/util/Exception.h"
#include "fake_tensor/fake_errors.h"

namespace ddpopt {
namespace {

// Those of EnableFakeCuda, which has guards of devices without a GPU; 0 without it. Of other CUDA devices any may be named.
int FakeCudaDevices() {
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA) || at::detail::getCUDAHooks().getNumGPUs() != 0) return 0;
  return c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
}

}  // namespace

c10::Device Indexed(c10::Device device) {
  if (device.has_index() || device.is_cpu() || device.is_meta()) return device;
  return c10::Device(device.type(), 0);
}

void OperandDevices::Add(const at::Tensor& operand, std::size_t index) {
  const c10::Device device = operand.device();
  if (!device_.has_value()) {
    device_ = device;
    weak_ = info_.devices == OpInfo::Devices::kOne && operand.dim() == 0 && device.is_cpu();
    return;
  }
  if (*device_ == device) {
    weak_ = weak_ && operand.dim() == 0;
    return;
  }
  switch (info_.devices) {
    case OpInfo::Devices::kAny:
      return;
    case OpInfo::Devices::kIndices:
      // Indices, and the one number that is put.
      if (device.is_cpu() && (operand.dim() == 0 || !info_.writes[index])) {
        const bool is_index = op_.schema().arguments()[index].type()->kind() == c10::TypeKind::ListType;
        if (is_index || operand.dim() == 0) return;
      }
      Refuse(operand, index);
    case OpInfo::Devices::kOne:
      if (op_.schema().name() == "aten::equal") Refuse(operand, index);
      if (operand.dim() == 0 && device.is_cpu()) return;
      if (!weak_) Refuse(operand, index);
      device_ = device;
      weak_ = false;
  }
}

void OperandDevices::Set(c10::Device device) {
  named_ = Indexed(device);
  const int devices = device.is_cuda() ? FakeCudaDevices() : 0;
  TORCH_CHECK(devices == 0 || named_->index() < devices, NameOf(op_), ": there is no ", *named_,
              ": fake CUDA (EnableFakeCuda) has the devices cuda:0 to cuda:", devices - 1);
}

void OperandDevices::CheckWritten(const at::Tensor& operand, std::size_t index) const {
  if (info_.devices == OpInfo::Devices::kOne && operand.device() != Result() && !named_.has_value()) Refuse(operand, index);
}

void OperandDevices::Refuse(const at::Tensor& operand, std::size_t index) const {
  fake_errors_internal::Throw<FakeDeviceMismatch>(NameOf(op_), ": Expected all tensors to be on the same device, but argument ", index,
                                                  " ('", ArgName(op_, index), "') is on ", operand.device().str(), ", others are on ",
                                                  device_->str());
}

}  // namespace ddpopt
