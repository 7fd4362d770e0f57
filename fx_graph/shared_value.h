#ifndef DDPOPT_FX_GRAPH_SHARED_VALUE_H_
#define DDPOPT_FX_GRAPH_SHARED_VALUE_H_

// A string or a vector that its copies share until one of them is changed: copying costs a count, whatever the size. In use it is the value
// itself.
//
//   SharedValue<std::string> trace, copy;
//   trace = "File \"net.py\", line 7";
//   copy = trace;                       // no second text
//   copy = "another";                   // trace stays
//   const std::string& text = trace;
//
// Copies may be used, and changed, on several threads.

#include <cstddef>
#include <memory>
#include <utility>

namespace ddpopt::fx {

template <typename T>
class SharedValue {
 public:
  using value_type = typename T::value_type;
  using const_iterator = typename T::const_iterator;
  using iterator = const_iterator;

  SharedValue& operator=(T value) {
    held_ = value.empty() ? nullptr : std::make_shared<const T>(std::move(value));
    return *this;
  }

  const T& get() const {
    static const T* none = new T();
    return held_ == nullptr ? *none : *held_;
  }
  operator const T&() const { return get(); }  // NOLINT: implicit by design

  bool empty() const { return held_ == nullptr; }
  std::size_t size() const { return get().size(); }
  const_iterator begin() const { return get().begin(); }
  const_iterator end() const { return get().end(); }
  const value_type& operator[](std::size_t index) const { return get()[index]; }
  const value_type& front() const { return get().front(); }
  const value_type& back() const { return get().back(); }

  void clear() { held_ = nullptr; }
  void push_back(value_type element) { emplace_back(std::move(element)); }
  template <typename... Args>
  void emplace_back(Args&&... args) {
    T changed = get();
    changed.emplace_back(std::forward<Args>(args)...);
    *this = std::move(changed);
  }

  friend bool operator==(const SharedValue& a, const SharedValue& b) { return a.held_ == b.held_ || a.get() == b.get(); }
  friend bool operator==(const SharedValue& a, const T& b) { return a.get() == b; }

 private:
  std::shared_ptr<const T> held_;  // null: empty
};

}  // namespace ddpopt::fx

#endif  // DDPOPT_FX_GRAPH_SHARED_VALUE_H_
