#include "ddpopt/aot/min_cut.h"

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/boykov_kolmogorov_max_flow.hpp>
#include <algorithm>
#include <utility>

#include "absl/status/status.h"

namespace ddpopt {
namespace {

// Each value is two vertices: it lies on the source's side of the first unless it is computed again, and of the second if it is at hand
// when it is needed without being saved.
class Network {
 public:
  explicit Network(std::size_t vertices) : graph_(vertices) {}

  void AddEdge(std::size_t from, std::size_t to, int64_t capacity) {
    const auto forth = boost::add_edge(from, to, graph_).first, back = boost::add_edge(to, from, graph_).first;
    boost::put(boost::edge_capacity, graph_, forth, capacity);
    boost::put(boost::edge_capacity, graph_, back, 0);
    boost::put(boost::edge_reverse, graph_, forth, back);
    boost::put(boost::edge_reverse, graph_, back, forth);
  }

  int64_t MaxFlow(std::size_t source, std::size_t sink) { return boost::boykov_kolmogorov_max_flow(graph_, source, sink); }

  // What the sink can still be reached from: its side of the minimum cut that lies nearest to it.
  std::vector<bool> SinkSide(std::size_t sink) const {
    const auto residual = boost::get(boost::edge_residual_capacity, graph_);
    const auto reverse = boost::get(boost::edge_reverse, graph_);
    std::vector<bool> reached(boost::num_vertices(graph_));
    std::vector<std::size_t> pending = {sink};
    reached[sink] = true;
    while (!pending.empty()) {
      const std::size_t vertex = pending.back();
      pending.pop_back();
      for (auto [edge, end] = boost::out_edges(vertex, graph_); edge != end; ++edge) {
        const std::size_t other = boost::target(*edge, graph_);
        if (reached[other] || boost::get(residual, boost::get(reverse, *edge)) == 0) continue;
        reached[other] = true;
        pending.push_back(other);
      }
    }
    return reached;
  }

 private:
  using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
  using EdgeProperties = boost::property<
      boost::edge_capacity_t, int64_t,
      boost::property<boost::edge_residual_capacity_t, int64_t, boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>;
  using VertexProperties = boost::property<
      boost::vertex_color_t, boost::default_color_type,
      boost::property<boost::vertex_distance_t, int64_t, boost::property<boost::vertex_predecessor_t, Traits::edge_descriptor>>>;
  boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS, VertexProperties, EdgeProperties> graph_;
};

}  // namespace

absl::StatusOr<RecomputeChoice> SolveRecompute(const RecomputeProblem& problem) {
  const std::size_t count = problem.values.size();
  int64_t more_than_all = 1;
  for (const RecomputeProblem::Value& value : problem.values) {
    more_than_all += std::max<int64_t>(value.save_cost, 0) + std::max<int64_t>(value.recompute_cost, 0);
  }
  const auto capacity = [&](int64_t cost) { return cost == RecomputeProblem::kNever ? more_than_all : cost; };
  const std::size_t source = 2 * count, sink = source + 1;
  Network network(2 * count + 2);
  for (std::size_t v = 0; v < count; ++v) {
    const RecomputeProblem::Value& value = problem.values[v];
    if (value.recompute_cost != 0) network.AddEdge(source, 2 * v, capacity(value.recompute_cost));
    if (value.save_cost != 0) network.AddEdge(2 * v, 2 * v + 1, capacity(value.save_cost));
    if (value.needed) network.AddEdge(2 * v + 1, sink, more_than_all);
    for (const int operand : value.operands) network.AddEdge(2 * operand + 1, 2 * v, more_than_all);
  }
  RecomputeChoice choice;
  choice.cost = network.MaxFlow(source, sink);
  if (choice.cost >= more_than_all) {
    return absl::FailedPreconditionError("a value is needed that can neither be saved nor computed again from what can");
  }
  const std::vector<bool> needs = network.SinkSide(sink);
  choice.saved.resize(count);
  choice.recomputed.resize(count);
  for (std::size_t v = 0; v < count; ++v) {
    choice.recomputed[v] = needs[2 * v];
    choice.saved[v] = needs[2 * v + 1] && !needs[2 * v];
  }
  return choice;
}

}  // namespace ddpopt
