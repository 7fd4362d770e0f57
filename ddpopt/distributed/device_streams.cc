#include "ddpopt/distributed/device_streams.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "c10/core/Stream.h"
#include "c10/core/StreamGuard.h"
#include "c10/core/impl/VirtualGuardImpl.h"

namespace ddpopt {

double SteadySeconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

StreamStamp StreamStamp::Record(at::Device device) {
  StreamStamp stamp;
  stamp.recorded_ = true;
  stamp.host_seconds_ = SteadySeconds();
  if (!device.is_cpu()) {
    // The default of c10::Event measures no time.
    auto event = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    stamp.event_ = std::move(event);
  }
  return stamp;
}

bool StreamStamp::Reached() const { return event_ == nullptr || event_->query(); }

bool StreamStamp::Wait(std::chrono::milliseconds timeout) const {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  // Mostly it is a matter of microseconds; later, a look every millisecond costs nothing.
  auto pause = std::chrono::microseconds(10);
  while (!Reached()) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(1000));
  }
  return true;
}

double StreamStamp::Seconds(const StreamStamp& origin) const {
  if (event_ == nullptr || origin.event_ == nullptr) return host_seconds_;
  event_->synchronize();
  origin.event_->synchronize();
  return origin.host_seconds_ + origin.event_->elapsedTime(*event_) / 1000.0;
}

at::Tensor CopyBesideCurrentStream(const at::Tensor& source, at::Device device) {
  if (source.device() == device) return source;
  if (device.is_cpu()) return source.to(device);
  const c10::impl::VirtualGuardImpl impl(device.type());
  const c10::Stream current = impl.getStream(device);
  const c10::Stream side = impl.getStreamFromGlobalPool(device);
  at::Tensor copy;
  {
    const c10::StreamGuard guard(side);
    copy = source.to(device);
  }
  c10::Event copied(device.type());
  copied.record(side);
  copied.block(current);
  // The memory belongs to the side stream, which would give it to its next copy while the current stream still reads it.
  copy.record_stream(current);
  return copy;
}

}  // namespace ddpopt
