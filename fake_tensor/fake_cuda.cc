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
  Device exchangeDevice(Device /*device*/) const override { return TheDevice(); }
  Device getDevice() const override { return TheDevice(); }
  void setDevice(Device /*device*/) const override {}
  void uncheckedSetDevice(Device /*device*/) const noexcept override {}
  Stream getStream(Device /*device*/) const override { return TheStream(); }
  Stream getDefaultStream(Device /*device*/) const override { return TheStream(); }
  Stream getStreamFromGlobalPool(Device /*device*/, bool /*is_high_priority*/) const override { return TheStream(); }
  Stream getNewStream(Device /*device*/, int /*priority*/) const override { return TheStream(); }
  Stream exchangeStream(Stream /*stream*/) const override { return TheStream(); }
  // Nothing runs, so there is nothing to wait for.
  void destroyEvent(void* /*event*/, const c10::DeviceIndex /*device*/) const noexcept override {}
  void record(void** /*event*/, const Stream& /*stream*/, const c10::DeviceIndex /*device*/, const c10::EventFlag /*flag*/) const override {
  }
  void block(void* /*event*/, const Stream& /*stream*/) const override {}
  bool queryEvent(void* /*event*/) const override { return true; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  bool queryStream(const Stream& /*stream*/) const override { return true; }
  void synchronizeStream(const Stream& /*stream*/) const override {}
  void synchronizeEvent(void* /*event*/) const override {}
  void synchronizeDevice(const c10::DeviceIndex /*device*/) const override {}
  void recordDataPtrOnStream(const c10::DataPtr& /*data*/, const Stream& /*stream*/) const override {}
  // Overrides where LibTorch has it (2.15), of its own otherwise.
  virtual bool isStreamCapturing(const Stream& /*stream*/) const { return false; }

 private:
  static Device TheDevice() { return Device(c10::kCUDA, 0); }
  static Stream TheStream() { return Stream(Stream::DEFAULT, TheDevice()); }
};

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
