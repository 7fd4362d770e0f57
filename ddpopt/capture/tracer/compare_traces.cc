#include "ddpopt/capture/tracer/compare_traces.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ddpopt/capture/tracer/values.h"
#include "fx_graph/format.h"
#include "fx_graph/passes/identical.h"

namespace ddpopt {
namespace {

using fx::Argument;
using fx::Node;

std::string Describe(const at::Tensor& tensor) {
  return absl::StrCat(c10::toString(tensor.scalar_type()), " [", absl::StrJoin(tensor.sizes(), ", "), "] with strides [",
                      absl::StrJoin(tensor.strides(), ", "), "] on ", tensor.device().str(),
                      tensor.requires_grad() ? ", requiring grad" : "");
}

// Of a node's value: all tensors in it.
std::string DescribeValue(const Node* node) {
  if (!node->has_meta()) return "";
  std::vector<std::string> parts;
  MapTensors(node->meta().val, [&](const at::Tensor& tensor) -> c10::IValue {
    parts.push_back(Describe(tensor));
    return tensor;
  });
  return absl::StrJoin(parts, "; ");
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (Describe(a) != Describe(b) || a.storage_offset() != b.storage_offset() || a.storage().nbytes() != b.storage().nbytes()) return false;
  return std::memcmp(a.storage().data(), b.storage().data(), a.storage().nbytes()) == 0;
}

class Comparison {
 public:
  Comparison(const TracedModule& a, const TracedModule& b) : a_(a), b_(b), other_(a.module->graph()) {}

  std::optional<TraceDifference> Run() {
    if (a_.arguments != b_.arguments) {
      return TraceDifference{"", absl::StrCat("forward's arguments were ", a_.arguments, ", and are ", b_.arguments)};
    }
    const Node* x = a_.module->graph().front();
    const Node* y = b_.module->graph().front();
    for (; x != nullptr && y != nullptr; x = x->next(), y = y->next()) {
      if (!Same(x, y)) return TraceDifference{std::string(x->name()), absl::StrCat("%", x->name(), " was ", Text(x), ", and is ", Text(y))};
      const std::string before = DescribeValue(x), now = DescribeValue(y);
      if (before != now) {
        return TraceDifference{std::string(x->name()), absl::StrCat("the value of %", x->name(), " was ", before, ", and is ", now)};
      }
      if (std::string attr = AttributeDifference(x, y); !attr.empty()) return TraceDifference{std::string(x->name()), std::move(attr)};
      other_[x] = y;
    }
    if (const Node* more = x != nullptr ? x : y; more != nullptr) {
      return TraceDifference{std::string(more->name()),
                             absl::StrCat("%", more->name(), ", ", Text(more),
                                          x != nullptr ? ", is called no more" : ", was not called before")};
    }
    return std::nullopt;
  }

 private:
  static std::string Text(const Node* node) {
    std::string text;
    fx::AppendNode(*node, {}, &text);
    return text;
  }

  bool Same(const Node* x, const Node* y) const {
    if (x->op() != y->op() || x->args().size() != y->args().size() || x->kwargs().size() != y->kwargs().size()) return false;
    // Constants are numbered as they come; AttributeDifference compares what they hold.
    if (!(x->target() == y->target()) && !(x->op() == fx::Op::kGetAttr && IsConstant(a_, x) && IsConstant(b_, y))) return false;
    for (std::size_t i = 0; i < x->args().size(); ++i) {
      if (!Same(x->args()[i], y->args()[i])) return false;
    }
    for (std::size_t i = 0; i < x->kwargs().size(); ++i) {
      if (x->kwargs()[i].first != y->kwargs()[i].first || !Same(x->kwargs()[i].second, y->kwargs()[i].second)) return false;
    }
    return true;
  }

  bool Same(const Argument& x, const Argument& y) const {
    if (x.kind() != y.kind() || x.elements().size() != y.elements().size()) return false;
    if (x.is_node()) return other_.at(x.node()) == y.node();
    if (x.kind() == Argument::Kind::kConstant) return fx::Identical(x.constant(), y.constant());
    for (std::size_t i = 0; i < x.elements().size(); ++i) {
      if (!Same(x.elements()[i], y.elements()[i])) return false;
    }
    return true;
  }

  static bool IsConstant(const TracedModule& traced, const Node* node) {
    const fx::GraphModule::Attr* attr = traced.module->FindAttr(node->path());
    return attr != nullptr && attr->kind == fx::GraphModule::AttrKind::kConstant;
  }

  static bool IsOwn(const TracedModule& traced, const Node* node) {
    return std::find(traced.own_constants.begin(), traced.own_constants.end(), node->path()) != traced.own_constants.end();
  }

  // Of two get_attr nodes that are called alike.
  std::string AttributeDifference(const Node* x, const Node* y) const {
    if (x->op() != fx::Op::kGetAttr) return "";
    const fx::GraphModule::Attr* before = a_.module->FindAttr(x->path());
    const fx::GraphModule::Attr* now = b_.module->FindAttr(y->path());
    if (before == nullptr || now == nullptr || !before->value.isTensor() || !now->value.isTensor()) return "";
    if (before->value.toTensor().is_same(now->value.toTensor())) return "";
    if (!IsOwn(a_, x) || !IsOwn(b_, y)) return absl::StrCat("%", x->name(), " (", x->path(), ") is another tensor than it was");
    if (SameBits(before->value.toTensor(), now->value.toTensor())) return "";
    return absl::StrCat("the constant %", x->name(), " (", x->path(), "), made in forward, has other values than before");
  }

  const TracedModule& a_;
  const TracedModule& b_;
  fx::NodeTable<const Node*> other_;
};

}  // namespace

std::optional<TraceDifference> CompareTraces(const TracedModule& a, const TracedModule& b) { return Comparison(a, b).Run(); }

}  // namespace ddpopt
