#include "ddpopt/optimizer/device_profile.h"

#include <string>

#include "ddpopt/optimizer/builtin_device_profiles.h"
#include "gtest/gtest.h"

namespace ddpopt {
namespace {

constexpr char kGood[] = R"({"name": "toy", "matmul_flops_per_second": {"float32": 1e9, "bfloat16": 4e9}, "matmul_efficiency": 0.5,
  "memory_bytes_per_second": 1e8, "operator_overhead_seconds": 0.25, "view_overhead_seconds": 0.125, "memory_bytes": 1e10,
  "sources": {"matmul_flops_per_second": "made up", "matmul_efficiency": "made up", "memory_bytes_per_second": "made up",
              "operator_overhead_seconds": "made up", "view_overhead_seconds": "made up", "memory_bytes": "made up"}})";

std::string Without(const std::string& what, const std::string& instead = "") {
  std::string text = kGood;
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), instead);
}

std::string Message(const std::string& text) { return std::string(ParseDeviceProfile(text).status().message()); }

TEST(DeviceProfileTest, AnOperatorTakesItsOverheadAndTheLongerOfComputingAndMoving) {
  const absl::StatusOr<DeviceProfile> profile = ParseDeviceProfile(kGood);
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_DOUBLE_EQ(profile->Seconds({1e9, 1e7, false, "float32"}), 2.25);
  EXPECT_DOUBLE_EQ(profile->Seconds({1e9, 1e7, false, "bfloat16"}), 0.75);
  EXPECT_DOUBLE_EQ(profile->Seconds({1e9, 1e7, false, "float16"}), 2.25);  // as float32
  EXPECT_DOUBLE_EQ(profile->Seconds({0, 1e8, false, "float32"}), 1.25);
  EXPECT_DOUBLE_EQ(profile->Seconds({0, 1e8, true, "float32"}), 0.125);
}

TEST(DeviceProfileTest, WhatIsWrittenReadsBack) {
  const absl::StatusOr<DeviceProfile> profile = ParseDeviceProfile(kGood);
  ASSERT_TRUE(profile.ok());
  const absl::StatusOr<DeviceProfile> again = ParseDeviceProfile(profile->ToJson());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->ToJson(), profile->ToJson());
  EXPECT_EQ(again->memory_bytes, 1e10);
}

TEST(DeviceProfileTest, RefusesByName) {
  EXPECT_EQ(Message("[]"), "the device profile is no JSON object");
  EXPECT_EQ(Message(Without("\"name\": \"toy\", ")), "the device profile has no \"name\"");
  EXPECT_EQ(Message(Without("\"float32\": 1e9, ")), "the device profile's \"matmul_flops_per_second\" has no \"float32\"");
  EXPECT_EQ(Message(Without("\"float32\": 1e9", "\"float32\": -1")),
            "device profile: \"matmul_flops_per_second\" of \"float32\" is -1, no number above 0");
  EXPECT_EQ(Message(Without("\"memory_bytes_per_second\": 1e8,")), "the device profile has no \"memory_bytes_per_second\"");
  EXPECT_EQ(Message(Without("\"memory_bytes_per_second\": 1e8", "\"memory_bytes_per_second\": 0")),
            "device profile: \"memory_bytes_per_second\" is 0, which can't be");
  EXPECT_EQ(Message(Without("\"matmul_efficiency\": 0.5", "\"matmul_efficiency\": 1.5")),
            "device profile: \"matmul_efficiency\" is 1.5, above 1");
  EXPECT_EQ(Message(Without(", \"memory_bytes\": \"made up\"")), "device profile: \"memory_bytes\" has no source");
  EXPECT_EQ(Message(Without("\"name\"", "\"speed\": 1, \"name\"")), "device profile: unknown key \"speed\"");
}

TEST(DeviceProfileTest, EveryProfileOfTheRepositoryCanBeRead) {
  EXPECT_GE(BuiltinDeviceProfiles().size(), 3u);
  EXPECT_EQ(BuiltinDeviceProfileNames().size(), BuiltinDeviceProfiles().size());
  for (const std::string& text : BuiltinDeviceProfiles()) EXPECT_TRUE(ParseDeviceProfile(text).ok()) << ParseDeviceProfile(text).status();
  for (const std::string& name : BuiltinDeviceProfileNames()) EXPECT_EQ(FindDeviceProfile(name)->name, name);
  const std::string message(FindDeviceProfile("no_such_device").status().message());
  EXPECT_NE(message.find("\"no_such_device\" is none of "), std::string::npos) << message;
}

}  // namespace
}  // namespace ddpopt
