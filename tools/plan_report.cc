#include "tools/plan_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"

namespace ddpopt {
namespace {

using Json = nlohmann::ordered_json;

double Ms(double seconds) { return 1e3 * seconds; }
double Mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }
double Gib(int64_t bytes) { return static_cast<double>(bytes) / (int64_t{1} << 30); }

std::string ParameterRange(const PlannedBucket& bucket) {
  if (bucket.parameters == 0) return "-";
  return bucket.parameters == 1 ? bucket.first : absl::StrCat(bucket.first, " .. ", bucket.last);
}

// Two lanes of one line each: what computes, and what is communicated.
std::string Lanes(const Plan& plan) {
  constexpr int kColumns = 100;
  const Timeline& timeline = plan.chosen().timeline;
  if (timeline.step <= 0) return "";
  const auto column = [&](double time) { return std::clamp(static_cast<int>(std::lround(time / timeline.step * kColumns)), 0, kColumns); };
  std::string compute(kColumns, ' '), communicate(kColumns, ' ');
  const auto fill = [](std::string* lane, int from, int to, char with) {
    for (int i = from; i < std::max(to, from + 1) && i < static_cast<int>(lane->size()); ++i) (*lane)[static_cast<std::size_t>(i)] = with;
  };
  const double backward_end = timeline.forward + timeline.backward;
  fill(&compute, 0, column(timeline.forward), 'F');
  fill(&compute, column(timeline.forward), column(backward_end), 'B');
  for (std::size_t i = 0; i < timeline.buckets.size(); ++i) {
    const BucketTime& bucket = timeline.buckets[i];
    if (bucket.finish <= bucket.start) continue;
    fill(&communicate, column(timeline.forward + bucket.start), column(timeline.forward + bucket.finish), "0123456789"[i % 10]);
  }
  return absl::StrFormat("  compute     |%s|\n  all-reduce  |%s|\n              0%*s%.3f ms\n", compute, communicate, kColumns - 8, "",
                         Ms(timeline.step));
}

std::string ClusterText(const PlanOptions& options) {
  const Cluster& cluster = options.cluster;
  std::string text = absl::StrFormat("%d ranks", cluster.world_size);
  if (cluster.ranks_per_node > 1) {
    absl::StrAppendFormat(&text, ", %d a node (%g Gbit/s, %g us within)", cluster.ranks_per_node, cluster.node_bandwidth * 8e-9,
                          cluster.node_latency * 1e6);
  }
  absl::StrAppendFormat(&text, ", %g Gbit/s, %g us, %s all-reduces", cluster.bandwidth * 8e-9, cluster.latency * 1e6,
                        AllReduceAlgorithmName(options.algorithm));
  return text;
}

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

// The scaling table's rows, those of one world size together.
struct Scale {
  int64_t world_size;
  std::vector<const ScalingRow*> rows;
};
std::vector<Scale> ByWorldSize(const Plan& plan) {
  std::vector<Scale> result;
  for (const ScalingRow& row : plan.scaling) {
    if (result.empty() || result.back().world_size != row.world_size) result.push_back({row.world_size, {}});
    result.back().rows.push_back(&row);
  }
  return result;
}

Json TimelineJson(const Timeline& timeline) {
  return {{"forward_ms", Ms(timeline.forward)}, {"backward_ms", Ms(timeline.backward)}, {"comm_ms", Ms(timeline.communication)},
          {"exposed_ms", Ms(timeline.exposed)}, {"step_ms", Ms(timeline.step)},         {"buckets", timeline.buckets.size()},
          {"peak_bytes", timeline.peak_bytes}};
}

}  // namespace

std::string PlanText(const PlanAbout& about, const Plan& plan) {
  std::string text;
  const Timeline& timeline = plan.chosen().timeline;
  double flops = 0;
  for (const auto& [node, cost] : plan.costs.nodes) flops += cost.forward_flops + cost.backward_flops;
  absl::StrAppendFormat(&text, "%s on %s, %s\n", about.model, about.options.device.name, ClusterText(about.options));
  absl::StrAppendFormat(
      &text,
      "%.2f MiB of gradients; forward %.3f ms, backward %.3f ms, %.4g GFLOP a step; an all-reduce takes %.3f ms and %.4f ms a MiB\n\n",
      Mib(plan.step.model.parameter_bytes()), Ms(timeline.forward), Ms(timeline.backward), flops / 1e9, Ms(plan.all_reduce.latency),
      Ms(plan.all_reduce.seconds_per_byte) * (1 << 20));

  absl::StrAppendFormat(&text,
                        "buckets (%s), in the order of reduction; times in ms since backward began\n%4s %10s %6s %10s %10s %10s  %s\n",
                        plan.chosen().name, "", "MiB", "params", "ready", "start", "end", "first to last ready");
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    const PlannedBucket& bucket = plan.buckets[i];
    absl::StrAppendFormat(&text, "%4d %10.3f %6d %10.3f %10.3f %10.3f  %s\n", i, Mib(bucket.time.bytes), bucket.parameters,
                          Ms(bucket.time.ready), Ms(bucket.time.start), Ms(bucket.time.finish), ParameterRange(bucket));
  }
  absl::StrAppend(&text, "\ntimeline (F forward, B backward, digits the buckets)\n", Lanes(plan), "\n");

  absl::StrAppendFormat(&text, "%-14s %8s %10s %12s %12s\n", "policy", "buckets", "comm ms", "exposed ms", "step ms");
  for (const Policy& policy : plan.policies) {
    absl::StrAppendFormat(&text, "%-14s %8d %10.3f %12.3f %12.3f\n", policy.name, policy.timeline.buckets.size(),
                          Ms(policy.timeline.communication), Ms(policy.timeline.exposed), Ms(policy.timeline.step));
  }
  const MemoryNeeds& memory = plan.memory;
  absl::StrAppendFormat(&text,
                        "\nmemory of a rank: %.3f GiB at most (parameters %.3f, buffers %.3f, gradients %.3f, buckets %.3f, optimizer "
                        "%.3f, activations %.3f)\n\n",
                        Gib(memory.peak), Gib(memory.parameters), Gib(memory.buffers), Gib(memory.gradients), Gib(memory.buckets),
                        Gib(memory.optimizer), Gib(memory.activations));

  absl::StrAppendFormat(&text, "scaling: exposed ms of auto (of default), and the share of the step that computes\n%8s", "ranks");
  for (const char* name : {"ring", "tree", "hierarchical"}) absl::StrAppendFormat(&text, "  %30s", name);
  text += "\n";
  for (const Scale& scale : ByWorldSize(plan)) {
    absl::StrAppendFormat(&text, "%8d", scale.world_size);
    for (const ScalingRow* row : scale.rows) {
      absl::StrAppendFormat(&text, "  %10.3f (%10.3f) %5.1f %%", Ms(row->exposed_auto), Ms(row->exposed_default), 100 * row->efficiency);
    }
    text += "\n";
  }
  text += "\n";
  for (const std::string& warning : plan.warnings) absl::StrAppend(&text, "warning: ", warning, "\n");
  absl::StrAppend(&text, plan.recommendation, "\n");
  return text;
}

std::string PlanJson(const PlanAbout& about, const Plan& plan) {
  Json result;
  const Cluster& cluster = about.options.cluster;
  result["model"] = about.model;
  result["device_profile"] = about.options.device.name;
  result["world_size"] = cluster.world_size;
  result["ranks_per_node"] = cluster.ranks_per_node;
  result["bandwidth_gbps"] = cluster.bandwidth * 8e-9;
  result["latency_us"] = cluster.latency * 1e6;
  result["algorithm"] = std::string(AllReduceAlgorithmName(about.options.algorithm));
  result["all_reduce"] = {{"latency_ms", Ms(plan.all_reduce.latency)}, {"ms_per_mib", Ms(plan.all_reduce.seconds_per_byte) * (1 << 20)}};
  result["parameter_bytes"] = plan.step.model.parameter_bytes();
  result["chosen"] = plan.chosen().name;
  result["timeline"] = TimelineJson(plan.chosen().timeline);
  result["buckets"] = Json::array();
  for (const PlannedBucket& bucket : plan.buckets) {
    result["buckets"].push_back({{"bytes", bucket.time.bytes},
                                 {"parameters", bucket.parameters},
                                 {"collectives", bucket.time.collectives},
                                 {"first", bucket.first},
                                 {"last", bucket.last},
                                 {"ready_ms", Ms(bucket.time.ready)},
                                 {"start_ms", Ms(bucket.time.start)},
                                 {"end_ms", Ms(bucket.time.finish)}});
  }
  result["bucket_ends"] = plan.step.BucketEnds(plan.chosen().borders);
  result["policies"] = Json::array();
  for (const Policy& policy : plan.policies) {
    Json entry = TimelineJson(policy.timeline);
    entry["name"] = policy.name;
    if (policy.cap_mib > 0) entry["cap_mib"] = policy.cap_mib;
    result["policies"].push_back(std::move(entry));
  }
  const MemoryNeeds& memory = plan.memory;
  result["memory"] = {{"parameters", memory.parameters},
                      {"buffers", memory.buffers},
                      {"gradients", memory.gradients},
                      {"buckets", memory.buckets},
                      {"optimizer", memory.optimizer},
                      {"activations", memory.activations},
                      {"peak", memory.peak}};
  result["scaling"] = Json::array();
  for (const ScalingRow& row : plan.scaling) {
    result["scaling"].push_back({{"world_size", row.world_size},
                                 {"algorithm", std::string(AllReduceAlgorithmName(row.algorithm))},
                                 {"comm_ms", Ms(row.communication)},
                                 {"exposed_default_ms", Ms(row.exposed_default)},
                                 {"exposed_auto_ms", Ms(row.exposed_auto)},
                                 {"efficiency", row.efficiency}});
  }
  result["warnings"] = plan.warnings;
  result["recommendation"] = plan.recommendation;
  return result.dump();
}

std::string PlanHtml(const PlanAbout& about, const Plan& plan) {
  constexpr double kWidth = 1100, kLeft = 90, kLane = 34;
  const Timeline& timeline = plan.chosen().timeline;
  const double scale = timeline.step > 0 ? kWidth / timeline.step : 0;
  std::string svg =
      absl::StrFormat("<svg viewBox=\"0 0 %g 170\" width=\"100%%\" font-family=\"sans-serif\" font-size=\"12\">\n", kWidth + kLeft + 10);
  const auto box = [&](double from, double to, int lane, const std::string& colour, const std::string& title, const std::string& label) {
    const double x = kLeft + from * scale, width = std::max((to - from) * scale, 0.5);
    absl::StrAppendFormat(
        &svg,
        "<g><title>%s</title><rect x=\"%.2f\" y=\"%g\" width=\"%.2f\" height=\"%g\" fill=\"%s\" stroke=\"#fff\" stroke-width=\"0.5\"/>",
        Escaped(title), x, 10 + lane * (kLane + 8), width, kLane, colour);
    if (width > 9.0 * static_cast<double>(label.size())) {
      absl::StrAppendFormat(&svg, "<text x=\"%.2f\" y=\"%g\" text-anchor=\"middle\">%s</text>", x + width / 2,
                            10 + lane * (kLane + 8) + kLane / 2 + 4, Escaped(label));
    }
    svg += "</g>\n";
  };
  const char* const lanes[] = {"compute", "ready", "all-reduce"};
  for (int lane = 0; lane < 3; ++lane)
    absl::StrAppendFormat(&svg, "<text x=\"4\" y=\"%g\">%s</text>\n", 10 + lane * (kLane + 8) + kLane / 2 + 4, lanes[lane]);
  box(0, timeline.forward, 0, "#9ecae1", absl::StrFormat("forward, %.3f ms", Ms(timeline.forward)), "forward");
  box(timeline.forward, timeline.forward + timeline.backward, 0, "#fdae6b", absl::StrFormat("backward, %.3f ms", Ms(timeline.backward)),
      "backward");
  double before = 0;
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    const PlannedBucket& bucket = plan.buckets[i];
    const std::string colour = absl::StrFormat("hsl(%d,55%%,70%%)", static_cast<int>(i * 47 % 360));
    const std::string title =
        absl::StrFormat("bucket %d: %.3f MiB, %d parameters (%s); ready %.3f, runs %.3f to %.3f ms", i, Mib(bucket.time.bytes),
                        bucket.parameters, ParameterRange(bucket), Ms(bucket.time.ready), Ms(bucket.time.start), Ms(bucket.time.finish));
    box(timeline.forward + before, timeline.forward + bucket.time.ready, 1, colour, title, absl::StrCat(i));
    box(timeline.forward + bucket.time.start, timeline.forward + bucket.time.finish, 2, colour, title, absl::StrCat(i));
    before = std::min(bucket.time.ready, timeline.backward);
  }
  absl::StrAppendFormat(&svg, "<text x=\"%g\" y=\"155\">0</text><text x=\"%g\" y=\"155\" text-anchor=\"end\">%.3f ms</text>\n</svg>\n",
                        kLeft, kLeft + kWidth, Ms(timeline.step));

  std::string policies, scaling, buckets;
  double worst = 1e-12;
  for (const Policy& policy : plan.policies) worst = std::max(worst, policy.timeline.exposed);
  for (const Policy& policy : plan.policies) {
    absl::StrAppendFormat(
        &policies,
        "<tr><td>%s</td><td>%d</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td class=\"bar\"><div style=\"width:%.1f%%\"></div></td></tr>\n",
        Escaped(policy.name), policy.timeline.buckets.size(), Ms(policy.timeline.communication), Ms(policy.timeline.exposed),
        Ms(policy.timeline.step), 100 * policy.timeline.exposed / worst);
  }
  for (const Scale& of : ByWorldSize(plan)) {
    absl::StrAppendFormat(&scaling, "<tr><td>%d</td>", of.world_size);
    for (const ScalingRow* row : of.rows) {
      absl::StrAppendFormat(&scaling, "<td>%.3f</td><td>%.3f</td><td>%.1f %%</td>", Ms(row->exposed_auto), Ms(row->exposed_default),
                            100 * row->efficiency);
    }
    scaling += "</tr>\n";
  }
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    const PlannedBucket& bucket = plan.buckets[i];
    absl::StrAppendFormat(&buckets,
                          "<tr><td>%d</td><td>%.3f</td><td>%d</td><td>%.3f</td><td>%.3f</td><td>%.3f</td><td class=\"text\">%s</td></tr>\n",
                          i, Mib(bucket.time.bytes), bucket.parameters, Ms(bucket.time.ready), Ms(bucket.time.start),
                          Ms(bucket.time.finish), Escaped(ParameterRange(bucket)));
  }
  std::string warnings;
  for (const std::string& warning : plan.warnings) absl::StrAppend(&warnings, "<p><b>warning: ", Escaped(warning), "</b></p>\n");
  const MemoryNeeds& memory = plan.memory;
  return absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>", Escaped(about.model),
      "</title>\n<style>body{font-family:sans-serif;margin:2em;max-width:1250px}table{border-collapse:collapse;margin:1em "
      "0}td,th{border:1px solid "
      "#ccc;padding:2px 8px;text-align:right}td.text{text-align:left}td.bar{width:200px}td.bar "
      "div{background:#fb6a4a;height:12px}</style></head><body>\n<h1>",
      Escaped(about.model), "</h1>\n<p>", Escaped(about.options.device.name), ", ", Escaped(ClusterText(about.options)), "</p>\n", warnings,
      "<p><b>", Escaped(plan.recommendation), "</b></p>\n<h2>Timeline (", Escaped(plan.chosen().name), ")</h2>\n", svg,
      "<h2>Policies</h2>\n<table><tr><th>policy</th><th>buckets</th><th>comm ms</th><th>exposed ms</th><th>step "
      "ms</th><th>exposed</th></tr>\n",
      policies, "</table>\n<h2>Memory of a rank</h2>\n<p>",
      absl::StrFormat("%.3f GiB at most: parameters %.3f, buffers %.3f, gradients %.3f, buckets %.3f, optimizer %.3f, activations %.3f",
                      Gib(memory.peak), Gib(memory.parameters), Gib(memory.buffers), Gib(memory.gradients), Gib(memory.buckets),
                      Gib(memory.optimizer), Gib(memory.activations)),
      "</p>\n<h2>Scaling</h2>\n<table><tr><th rowspan=\"2\">ranks</th><th colspan=\"3\">ring</th><th colspan=\"3\">tree</th><th "
      "colspan=\"3\">hierarchical</th></tr><tr>",
      "<th>exposed ms, auto</th><th>default</th><th>computing</th><th>exposed ms, auto</th><th>default</th><th>computing</th><th>exposed "
      "ms, auto</th><th>default</th><th>computing</th>",
      "</tr>\n", scaling,
      "</table>\n<h2>Buckets</h2>\n<table><tr><th></th><th>MiB</th><th>parameters</th><th>ready ms</th><th>start ms</th><th>end "
      "ms</th><th>first to last ready</th></tr>\n",
      buckets, "</table>\n</body></html>\n");
}

std::string PlanTrace(const PlanAbout& about, const Plan& plan) {
  Json events = Json::array();
  const auto add = [&](const std::string& name, const char* category, int thread, double from, double to, Json args) {
    events.push_back({{"name", name},
                      {"cat", category},
                      {"ph", "X"},
                      {"pid", 0},
                      {"tid", thread},
                      {"ts", 1e6 * from},
                      {"dur", 1e6 * (to - from)},
                      {"args", std::move(args)}});
  };
  const auto name_thread = [&](int thread, const char* name) {
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", 0}, {"tid", thread}, {"args", {{"name", name}}}});
  };
  events.push_back({{"name", "process_name"},
                    {"ph", "M"},
                    {"pid", 0},
                    {"args", {{"name", absl::StrCat(about.model, ", a rank of ", about.options.cluster.world_size)}}}});
  name_thread(0, "compute");
  name_thread(1, "all-reduce");
  const Timeline& timeline = plan.chosen().timeline;
  // Forward runs from the last position to the first.
  double time = 0;
  for (std::size_t i = plan.step.nodes.size(); i-- > 0;) {
    const auto cost = plan.costs.nodes.find(plan.step.nodes[i]);
    if (cost == plan.costs.nodes.end() || cost->second.forward <= 0) continue;
    add(std::string(plan.step.nodes[i]->name()), "forward", 0, time, time + cost->second.forward,
        {{"flops", cost->second.forward_flops}, {"bytes", cost->second.forward_bytes}});
    time += cost->second.forward;
  }
  time = timeline.forward;
  for (std::size_t i = 0; i < plan.step.nodes.size(); ++i) {
    const double seconds = plan.step.model.nodes[i].backward;
    if (seconds <= 0) continue;
    const auto cost = plan.costs.nodes.find(plan.step.nodes[i]);
    Json args;
    if (cost != plan.costs.nodes.end()) args = {{"flops", cost->second.backward_flops}, {"bytes", cost->second.backward_bytes}};
    add(absl::StrCat(plan.step.nodes[i]->name(), " backward"), "backward", 0, time, time + seconds, std::move(args));
    time += seconds;
  }
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    const PlannedBucket& bucket = plan.buckets[i];
    add(absl::StrCat("bucket ", i), "all-reduce", 1, timeline.forward + bucket.time.start, timeline.forward + bucket.time.finish,
        {{"bytes", bucket.time.bytes},
         {"parameters", bucket.parameters},
         {"ready_ms", Ms(bucket.time.ready)},
         {"first", bucket.first},
         {"last", bucket.last}});
  }
  return Json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump();
}

}  // namespace ddpopt
