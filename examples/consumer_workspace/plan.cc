// ddpopt's parts on their own, without processes: a graph from text, where its buckets would end, its shapes under fakes, and a run of it.

#include <iostream>
#include <memory>
#include <string>

#include "ATen/ops/ones.h"
#include "ddpopt/optimizer/bucket_assignment.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/graph_module.h"
#include "fx_graph/text/parse.h"
#include "interpreter/interpreter.h"
#include "interpreter/mode_stack.h"

using ddpopt::fx::GraphModule;

int main() {
  auto graph = ddpopt::fx::ParseGraph(R"(
graph():
    %x = placeholder[target=x]
    %w0 = get_attr[target=w0]
    %mm = call_function[target=torch.ops.aten.mm.default](args = (%x, %w0))
    %w1 = get_attr[target=w1]
    %mm_1 = call_function[target=torch.ops.aten.mm.default](args = (%mm, %w1))
    return mm_1)");
  if (!graph.ok()) {
    std::cerr << graph.status() << "\n";
    return 1;
  }
  GraphModule module;
  module.graph().CopyFrom(**graph);
  for (const char* name : {"w0", "w1"}) {
    const at::Tensor weight = at::ones({4, 4}).requires_grad_();
    if (const absl::Status added = module.AddAttr(name, weight, GraphModule::AttrKind::kParameter); !added.ok()) {
      std::cerr << added << "\n";
      return 1;
    }
  }

  ddpopt::BucketOptions options;
  options.bucket_cap_bytes = 64;
  auto buckets = ddpopt::AssignBuckets(module, options);
  if (!buckets.ok()) {
    std::cerr << buckets.status() << "\n";
    return 1;
  }
  std::cout << buckets->ToTable();

  const at::Tensor y = ddpopt::Interpreter(module).Run({at::ones({2, 4})}).toTensor();
  const at::Tensor fake = ddpopt::FakeTensorMode::Create()->FromReal(y);
  std::cout << "buckets " << buckets->buckets.size() << ", result " << y.sum().item<double>() << ", fake " << fake.sizes() << "\n";
  return 0;
}
