#include "fake_tensor/fake_cuda.h"

#include <memory>

#include "ATen/Context.h"
#include "ATen/detail/CUDAHooksInterface.h"
#include "c10/core/Device.h"
#include "c10/core/Stream.h"
#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "c10/util/Exception.h"

namespace ddpopt {
namespace {

using c10::Device;
using c10::Stream;

constexpr c10::DeviceIndex kDevices = 8;

class FakeCudaHooks final : public at::CUDAHooksInterface {
 public:
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*index*/) const override { return true; }
  // manual_seed() seeds the generators of as many devices.
  c10::DeviceIndex deviceCount() const override { return 0; }
  int getNumGPUs() const override { return 0; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex /*device*/) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex /*device*/) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex /*device*/) const override {}
  void deviceSynchronize(c10::DeviceIndex /*device*/) const override {}
};

class FakeCudaGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::kCUDA; }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override { return Device(c10::kCUDA, current); }
  void setDevice(Device device) const override { current = Checked(device).index(); }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.has_index()) current = device.index();
  }
  // One for all devices: where a gradient goes from one stream to another, autograd asks for its data's address.
  Stream getStream(Device /*device*/) const override { return Stream(Stream::DEFAULT, Device(c10::kCUDA, 0)); }
  Stream getDefaultStream(Device device) const override { return getStream(device); }
  Stream getStreamFromGlobalPool(Device device, bool /*is_high_priority*/) const override { return getStream(device); }
  Stream getNewStream(Device device, int /*priority*/) const override { return getStream(device); }
  Stream exchangeStream(Stream stream) const override { return stream; }
  // Nothing runs, so there is nothing to wait for.
  void destroyEvent(void* /*event*/, const c10::DeviceIndex /*device*/) const noexcept override {}
  void record(void** /*event*/, const Stream& /*stream*/, const c10::DeviceIndex /*device*/, const c10::EventFlag /*flag*/) const override {
  }
  void block(void* /*event*/, const Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  bool queryStream(const Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const Stream& /*stream*/) const override {}
  void synchronizeEvent(void* /*event*/) const override {}
  void synchronizeDevice(const c10::DeviceIndex /*device*/) const override {}
  void recordDataPtrOnStream(const c10::DataPtr& /*data*/, const Stream& /*stream*/) const override {}
  // Overrides where LibTorch has it (2.15), of its own otherwise.
  virtual bool isStreamCapturing(const Stream& /*stream*/) const { return false; }

 private:
  static Device Checked(Device device) {
    if (!device.has_index()) return Device(c10::kCUDA, current);
    TORCH_CHECK(device.index() < kDevices, "there is no ", device,
                ": fake CUDA (EnableFakeCuda) has the devices cuda:0 to cuda:", kDevices - 1);
    return device;
  }

  static thread_local c10::DeviceIndex current;
};

thread_local c10::DeviceIndex FakeCudaGuard::current = 0;

bool Enable() {
  auto* registry = at::CUDAHooksRegistry();
  TORCH_CHECK(!registry->Has("CUDAHooks"), "EnableFakeCuda: this LibTorch has CUDA; fakes of CUDA tensors need no more than that");
  registry->Register("CUDAHooks",
                     [](at::CUDAHooksArgs) -> std::unique_ptr<at::CUDAHooksInterface> { return std::make_unique<FakeCudaHooks>(); });
  TORCH_CHECK(at::globalContext().hasCUDA(),
              "EnableFakeCuda: LibTorch was asked about CUDA before, and keeps the answer; call it when the program starts");
  // LibTorch keeps the pointer.
  static const FakeCudaGuard guard;
  const c10::impl::DeviceGuardImplRegistrar registrar(c10::kCUDA, &guard);
  return true;
}

}  // namespace

void EnableFakeCuda() {
  static const bool enabled = Enable();
  static_cast<void>(enabled);
}

}  // namespace ddpopt
