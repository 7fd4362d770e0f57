#ifndef DDPOPT_DISTRIBUTED_DEVICE_STREAMS_H_
#define DDPOPT_DISTRIBUTED_DEVICE_STREAMS_H_

// The one place that deals with streams and events, of whatever device a tensor lives on and without that device's headers.
//
// What LibTorch does by itself needs nothing here: c10d::Reducer fills a bucket on the stream of the backward; NCCL has the stream of its
// all-reduce wait for that one; the future that comes back runs its callbacks on streams that wait for the all-reduce, and whoever waits for
// the future has his current stream wait in turn; the autograd engine joins the backward's streams with the caller's before its final
// callbacks. What remains: moments on a stream, for times and for blocking calls, and copies of inputs beside the current stream.

#include <chrono>
#include <memory>

#include "ATen/core/Tensor.h"
#include "c10/core/Device.h"
#include "c10/core/Event.h"

namespace ddpopt {

// Seconds on std::chrono::steady_clock.
double SteadySeconds();

// A moment in a device's work. Copies are the same moment. Throws what the device throws.
class StreamStamp {
 public:
  StreamStamp() = default;
  // When all that the current stream of `device` has been given so far will be done. On the CPU, which works at once: now.
  static StreamStamp Record(at::Device device);

  bool recorded() const { return recorded_; }
  // Whether the device has got there. A stamp that was never recorded has been reached.
  bool Reached() const;
  // Blocks this thread until the device has got there; false if that takes longer than `timeout`.
  bool Wait(std::chrono::milliseconds timeout) const;
  // The moment in steady seconds; 0 if never recorded. Blocks until the device has got there and to `origin`, a stamp on the same device:
  // a device tells the time between two moments only, which is added to the time at which the host recorded `origin`.
  double Seconds(const StreamStamp& origin) const;

 private:
  bool recorded_ = false;
  double host_seconds_ = 0;
  std::shared_ptr<const c10::Event> event_;  // null on the CPU
};

// `source` on `device`. From another device, it is copied on a side stream, so that the copy does not wait for what the current stream still
// has to do; the current stream waits for the copy, and the copy's memory is kept until the current stream is done with it.
at::Tensor CopyBesideCurrentStream(const at::Tensor& source, at::Device device);

}  // namespace ddpopt

#endif  // DDPOPT_DISTRIBUTED_DEVICE_STREAMS_H_
