// Streams of a device that exists in this test alone: work takes the time that the test says. The real ones are in
// //ddpopt/ddp:cuda_test.

#include "ddpopt/distributed/device_streams.h"

#include <algorithm>
#include <chrono>

#include "ATen/ops/ones.h"
#include "c10/core/impl/DeviceGuardImplInterface.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

using std::chrono::milliseconds;

// One device whose current stream ends its work at `busy_until`, and that has got to `now`; both in milliseconds.
double busy_until = 0;
double now = 0;
int live_events = 0;

struct TestDevice final : c10::impl::DeviceGuardImplInterface {
  explicit TestDevice(c10::DeviceType) {}
  TestDevice() = default;
  c10::DeviceType type() const override { return c10::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Device getDevice() const override { return {c10::kPrivateUse1, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** event, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    if (flag != c10::EventFlag::BACKEND_DEFAULT) ADD_FAILURE() << "an event that measures no time";
    *event = new double(busy_until);
    ++live_events;
  }
  bool queryEvent(void* event) const override { return *static_cast<double*>(event) <= now; }
  void synchronizeEvent(void* event) const override { now = std::max(now, *static_cast<double*>(event)); }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    return *static_cast<double*>(second) - *static_cast<double*>(first);
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<double*>(event);
    --live_events;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, TestDevice)

const at::Device kTestDevice(c10::kPrivateUse1, 0);

TEST(StreamStamp, IsTheHostsTimeOnTheCpu) {
  const double before = SteadySeconds();
  const StreamStamp origin = StreamStamp::Record(at::kCPU);
  const StreamStamp later = StreamStamp::Record(at::kCPU);
  EXPECT_TRUE(later.recorded());
  EXPECT_TRUE(later.Reached());
  EXPECT_TRUE(later.Wait(milliseconds(0)));
  EXPECT_LE(before, origin.Seconds(origin));
  EXPECT_LE(origin.Seconds(origin), later.Seconds(origin));
  EXPECT_LE(later.Seconds(origin), SteadySeconds());
}

TEST(StreamStamp, NeverRecordedIsZero) {
  const StreamStamp none;
  EXPECT_FALSE(none.recorded());
  EXPECT_TRUE(none.Reached());
  EXPECT_EQ(none.Seconds(StreamStamp::Record(at::kCPU)), 0);
  EXPECT_EQ(none.Seconds(StreamStamp::Record(kTestDevice)), 0);
}

TEST(StreamStamp, IsTheDevicesTimeElsewhere) {
  now = 0;
  busy_until = 100;
  const double before = SteadySeconds();
  const StreamStamp origin = StreamStamp::Record(kTestDevice);
  const double after = SteadySeconds();
  busy_until = 350;
  const StreamStamp later = StreamStamp::Record(kTestDevice);
  EXPECT_FALSE(origin.Reached());
  now = 100;
  EXPECT_TRUE(origin.Reached());
  EXPECT_FALSE(later.Reached());
  EXPECT_GE(origin.Seconds(origin), before);
  EXPECT_LE(origin.Seconds(origin), after);
  EXPECT_NEAR(later.Seconds(origin) - origin.Seconds(origin), 0.25, 1e-9);
  EXPECT_EQ(now, 350) << "the time can't be told before the device has got there";
}

TEST(StreamStamp, WaitsNoLongerThanAllowed) {
  now = 0;
  busy_until = 1;
  const StreamStamp stamp = StreamStamp::Record(kTestDevice);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(stamp.Wait(milliseconds(20)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(20));
  now = 1;
  EXPECT_TRUE(stamp.Wait(milliseconds(0)));
}

TEST(StreamStamp, EventsGoWithTheLastCopy) {
  const int before = live_events;
  {
    StreamStamp copy;
    {
      const StreamStamp stamp = StreamStamp::Record(kTestDevice);
      copy = stamp;
    }
    EXPECT_EQ(live_events, before + 1);
  }
  EXPECT_EQ(live_events, before);
}

TEST(CopyBesideCurrentStream, LeavesWhatIsThereAlready) {
  const at::Tensor tensor = at::ones({2});
  EXPECT_TRUE(CopyBesideCurrentStream(tensor, at::kCPU).is_same(tensor));
}

}  // namespace
}  // namespace ddpopt
