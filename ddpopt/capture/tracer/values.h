#ifndef DDPOPT_CAPTURE_TRACER_VALUES_H_
#define DDPOPT_CAPTURE_TRACER_VALUES_H_

// C++ values as c10::IValue and back, for arguments and results of a forward, nested to any depth:
//
//   c10::IValue value = ToValue(std::make_tuple(x, std::vector<at::Tensor>{y, z}, 3));
//   auto [x2, list, n] = FromValue<std::tuple<at::Tensor, std::vector<at::Tensor>, int>>(value);
//
// at::Tensor; bool, integers, floating-point numbers, enums, c10::Scalar, std::string, c10::Device; std::optional, std::vector, std::array,
// std::pair, std::tuple of these, and std::map and std::unordered_map from strings to these. An undefined tensor and an empty optional are
// None. Any other type is a compile-time error. FromValue throws c10::Error for a value of another kind. Thread-safe.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/core/ivalue.h"
#include "c10/util/Exception.h"

namespace ddpopt {

// Appends the tensors inside to `tensors`, left to right, and describes the rest: "(Tensor, [Tensor, Tensor], 3, None)". Two values with
// the same description differ in their tensors at most; floating-point numbers are written with all their bits. Throws c10::Error for an
// object that has no value to compare by.
std::string FlattenValue(const c10::IValue& value, std::vector<at::Tensor>* tensors);

// A copy with each tensor replaced, in the same order.
c10::IValue MapTensors(const c10::IValue& value, const std::function<c10::IValue(const at::Tensor&)>& fn);

// The elements of a tuple or of any list. Throws c10::Error if it is neither.
std::vector<c10::IValue> ElementsOf(const c10::IValue& value);

template <typename T, typename Enable = void>
struct ValueConversion {
  static_assert(!sizeof(T),
                "this type can't be an argument or result of a captured forward; see ddpopt/capture/tracer/values.h for those that can");
};

template <typename T>
c10::IValue ToValue(const T& value) {
  return ValueConversion<std::decay_t<T>>::To(value);
}
template <typename T>
std::decay_t<T> FromValue(const c10::IValue& value) {
  return ValueConversion<std::decay_t<T>>::From(value);
}

template <>
struct ValueConversion<at::Tensor> {
  static c10::IValue To(const at::Tensor& value) { return value.defined() ? c10::IValue(value) : c10::IValue(); }
  static at::Tensor From(const c10::IValue& value) { return value.isNone() ? at::Tensor() : value.toTensor(); }
};
template <>
struct ValueConversion<bool> {
  static c10::IValue To(bool value) { return value; }
  static bool From(const c10::IValue& value) { return value.toBool(); }
};
template <typename T>
struct ValueConversion<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static c10::IValue To(T value) { return static_cast<int64_t>(value); }
  static T From(const c10::IValue& value) { return static_cast<T>(value.toInt()); }
};
template <typename T>
struct ValueConversion<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static c10::IValue To(T value) { return static_cast<double>(value); }
  static T From(const c10::IValue& value) { return static_cast<T>(value.toDouble()); }
};
template <typename T>
struct ValueConversion<T, std::enable_if_t<std::is_enum_v<T>>> {
  static c10::IValue To(T value) { return static_cast<int64_t>(value); }
  static T From(const c10::IValue& value) { return static_cast<T>(value.toInt()); }
};
template <>
struct ValueConversion<c10::Scalar> {
  static c10::IValue To(const c10::Scalar& value) { return value; }
  static c10::Scalar From(const c10::IValue& value) { return value.toScalar(); }
};
template <>
struct ValueConversion<std::string> {
  static c10::IValue To(const std::string& value) { return value; }
  static std::string From(const c10::IValue& value) { return value.toStringRef(); }
};
template <>
struct ValueConversion<c10::Device> {
  static c10::IValue To(c10::Device value) { return value; }
  static c10::Device From(const c10::IValue& value) { return value.toDevice(); }
};
template <typename T>
struct ValueConversion<std::optional<T>> {
  static c10::IValue To(const std::optional<T>& value) { return value.has_value() ? ToValue(*value) : c10::IValue(); }
  static std::optional<T> From(const c10::IValue& value) { return value.isNone() ? std::nullopt : std::optional<T>(FromValue<T>(value)); }
};
template <typename T>
struct ValueConversion<std::vector<T>> {
  static c10::IValue To(const std::vector<T>& value) {
    c10::impl::GenericList list(c10::AnyType::get());
    for (const auto& element : value) list.push_back(ToValue<T>(element));
    return list;
  }
  static std::vector<T> From(const c10::IValue& value) {
    std::vector<T> result;
    for (const c10::IValue& element : ElementsOf(value)) result.push_back(FromValue<T>(element));
    return result;
  }
};
template <typename T, std::size_t N>
struct ValueConversion<std::array<T, N>> {
  static c10::IValue To(const std::array<T, N>& value) { return ToValue(std::vector<T>(value.begin(), value.end())); }
  static std::array<T, N> From(const c10::IValue& value) {
    const std::vector<c10::IValue> elements = ElementsOf(value);
    TORCH_CHECK(elements.size() == N, "a list of ", elements.size(), " values where ", N, " are wanted");
    std::array<T, N> result;
    for (std::size_t i = 0; i < N; ++i) result[i] = FromValue<T>(elements[i]);
    return result;
  }
};
template <typename... T>
struct ValueConversion<std::tuple<T...>> {
  static c10::IValue To(const std::tuple<T...>& value) {
    return std::apply(
        [](const T&... element) -> c10::IValue { return c10::ivalue::Tuple::create(std::vector<c10::IValue>{ToValue<T>(element)...}); },
        value);
  }
  static std::tuple<T...> From(const c10::IValue& value) { return Take(ElementsOf(value), std::index_sequence_for<T...>{}); }

 private:
  template <std::size_t... I>
  static std::tuple<T...> Take([[maybe_unused]] const std::vector<c10::IValue>& elements, std::index_sequence<I...>) {
    TORCH_CHECK(elements.size() == sizeof...(T), "a tuple of ", elements.size(), " values where ", sizeof...(T), " are wanted");
    return std::tuple<T...>{FromValue<T>(elements[I])...};
  }
};
template <typename A, typename B>
struct ValueConversion<std::pair<A, B>> {
  static c10::IValue To(const std::pair<A, B>& value) { return ToValue(std::tuple<A, B>(value.first, value.second)); }
  static std::pair<A, B> From(const c10::IValue& value) {
    auto [first, second] = FromValue<std::tuple<A, B>>(value);
    return {std::move(first), std::move(second)};
  }
};
namespace internal {
template <typename Map>
struct MapConversion {
  using T = typename Map::mapped_type;
  static c10::IValue To(const Map& value) {
    c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
    const std::map<std::string, T> sorted(value.begin(), value.end());
    for (const auto& [key, element] : sorted) dict.insert(key, ToValue<T>(element));
    return dict;
  }
  static Map From(const c10::IValue& value) {
    Map result;
    for (const auto& entry : value.toGenericDict()) result.emplace(entry.key().toStringRef(), FromValue<T>(entry.value()));
    return result;
  }
};
}  // namespace internal
template <typename T>
struct ValueConversion<std::map<std::string, T>> : internal::MapConversion<std::map<std::string, T>> {};
template <typename T>
struct ValueConversion<std::unordered_map<std::string, T>> : internal::MapConversion<std::unordered_map<std::string, T>> {};

}  // namespace ddpopt

#endif  // DDPOPT_CAPTURE_TRACER_VALUES_H_
