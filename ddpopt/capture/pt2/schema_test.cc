#include "ddpopt/capture/pt2/schema.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "torch/csrc/utils/generated_serialization_types.h"

namespace ddpopt::pt2 {
namespace {

namespace upstream = torch::_export;

// The number that LibTorch's own schema gives a name.
template <typename Enum>
int64_t NumberOf(const char* name) {
  Enum value;
  upstream::parseEnum(name, value);
  return static_cast<int64_t>(value);
}

TEST(SchemaTest, NumbersAreLibTorchsOwn) {
  const std::pair<const char*, c10::ScalarType> dtypes[] = {{"BYTE", c10::kByte},
                                                            {"CHAR", c10::kChar},
                                                            {"SHORT", c10::kShort},
                                                            {"INT", c10::kInt},
                                                            {"LONG", c10::kLong},
                                                            {"HALF", c10::kHalf},
                                                            {"FLOAT", c10::kFloat},
                                                            {"DOUBLE", c10::kDouble},
                                                            {"COMPLEXHALF", c10::kComplexHalf},
                                                            {"COMPLEXFLOAT", c10::kComplexFloat},
                                                            {"COMPLEXDOUBLE", c10::kComplexDouble},
                                                            {"BOOL", c10::kBool},
                                                            {"BFLOAT16", c10::kBFloat16},
                                                            {"UINT16", c10::kUInt16},
                                                            {"UINT32", c10::kUInt32},
                                                            {"UINT64", c10::kUInt64},
                                                            {"FLOAT8E4M3FN", c10::kFloat8_e4m3fn},
                                                            {"FLOAT8E5M2", c10::kFloat8_e5m2}};
  for (const auto& [name, expected] : dtypes) {
    c10::ScalarType dtype;
    ASSERT_TRUE(DtypeFromSchema(NumberOf<upstream::ScalarType>(name), &dtype)) << name;
    EXPECT_EQ(dtype, expected) << name;
  }
  const std::pair<const char*, c10::Layout> layouts[] = {
      {"Strided", c10::kStrided},     {"SparseCoo", c10::kSparse},    {"SparseCsr", c10::kSparseCsr}, {"SparseCsc", c10::kSparseCsc},
      {"SparseBsr", c10::kSparseBsr}, {"SparseBsc", c10::kSparseBsc}, {"_mkldnn", c10::kMkldnn}};
  for (const auto& [name, expected] : layouts) {
    c10::Layout layout;
    ASSERT_TRUE(LayoutFromSchema(NumberOf<upstream::Layout>(name), &layout)) << name;
    EXPECT_EQ(layout, expected) << name;
  }
  const std::pair<const char*, c10::MemoryFormat> formats[] = {{"ContiguousFormat", c10::MemoryFormat::Contiguous},
                                                               {"ChannelsLast", c10::MemoryFormat::ChannelsLast},
                                                               {"ChannelsLast3d", c10::MemoryFormat::ChannelsLast3d},
                                                               {"PreserveFormat", c10::MemoryFormat::Preserve}};
  for (const auto& [name, expected] : formats) {
    c10::MemoryFormat format;
    ASSERT_TRUE(MemoryFormatFromSchema(NumberOf<upstream::MemoryFormat>(name), &format)) << name;
    EXPECT_EQ(format, expected) << name;
  }
  for (const int64_t number : {int64_t{0}, int64_t{-1}, int64_t{14}, int64_t{36}, int64_t{1} << 40}) {
    c10::ScalarType dtype;
    c10::Layout layout;
    c10::MemoryFormat format;
    EXPECT_FALSE(DtypeFromSchema(number, &dtype)) << number;
    EXPECT_FALSE(LayoutFromSchema(number, &layout)) << number;
    EXPECT_FALSE(MemoryFormatFromSchema(number, &format)) << number;
  }
}

// An argument of each kind that our reader knows is one for LibTorch too.
TEST(SchemaTest, KindsOfArguments) {
  for (const char* text :
       {R"({"as_none": true})", R"({"as_int": 1})", R"({"as_float": "Infinity"})", R"({"as_tensor": {"name": "x"}})", R"({"as_ints": [1]})",
        R"({"as_sym_int": {"as_name": "s"}})", R"({"as_sym_ints": [{"as_int": 1}]})", R"({"as_optional_tensor": {"as_none": true}})",
        R"({"as_optional_tensors": [{"as_tensor": {"name": "x"}}]})", R"({"as_complex": {"real": 1.0, "imag": 2.0}})",
        R"({"as_nested_tensors": [[{"name": "x"}]]})", R"({"as_int_lists": [[1]]})", R"({"as_device": {"type": "cpu", "index": null}})"}) {
    upstream::Argument argument;
    EXPECT_NO_THROW(nlohmann::json::parse(text).get_to(argument)) << text;
  }
}

}  // namespace
}  // namespace ddpopt::pt2
