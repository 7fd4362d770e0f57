// Plans data-parallel training of an exported model; `--help` tells the rest.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/flags.h"
#include "base/status.h"
#include "ddpopt/capture/pt2/exported_program.h"
#include "ddpopt/optimizer/builtin_device_profiles.h"
#include "ddpopt/optimizer/planner.h"
#include "tools/plan_report.h"

namespace ddpopt {
namespace {

constexpr char kHelp[] = R"(plan MODEL --world_size=N --bandwidth_gbps=X --latency_us=X [flags]

Tells what data-parallel training of an exported model would be like on a cluster that need not be there: where gradient buckets end, what of their
all-reduces backward hides, how much memory a rank needs, how it scales, and what to do. No weights are read and nothing is run on data.

  MODEL                    a .pt2 archive, or its graph alone (.model.json, gzipped or not). Relative to where you call this.
  --world_size=N           ranks, 1 to 1,048,576.
  --bandwidth_gbps=X       gigabits per second of a rank's link; with --ranks_per_node of the link that a node's ranks share.
  --latency_us=X           microseconds that a message takes, 0 or more.
  --algorithm=NAME         of all-reduces: ring (default; Gloo's), tree, hierarchical.
  --ranks_per_node=N       default 1. Must divide the world size, unless that is smaller. Several need --node_bandwidth_gbps.
  --node_bandwidth_gbps=X  between ranks of a node.  --node_latency_us=X  default: --latency_us.
  --device_profile=WHAT    how fast a rank computes: a name (those of the repository are listed by a wrong one) or a JSON file, such as
                           //tools:profile_device writes. Default nvidia_a100_sxm_80gb.
  --bucket_cap_mb=X, --first_bucket_cap_mb=X
                           show the buckets of these caps in full, not those of auto.
  --optimizer=NAME         whose state counts as memory: sgd, momentum, adam (default).
  --gradient_as_bucket_view  gradients need no memory beside the buckets.
  --memory_gb=X            the memory of a rank (10^9 bytes), which auto keeps within.
  --overlap_slowdown=X     by how many seconds a second of communication delays the backward beside it, 0 (default) to 1.
  --html=FILE              a page with the timeline as a picture.  --trace=FILE  for chrome://tracing or Perfetto.
  --model_name=NAME        which model of an archive that holds several.
  --json                   the last line of standard output is one JSON object: model, cluster, all_reduce, timeline and buckets of what is shown,
                           bucket_ends (for BucketOptions), policies (each cap from 1 to 200 MiB, default, auto), memory, scaling, warnings,
                           recommendation. Times in ms, sizes in bytes.
  --help                   this text.

Times of operators are estimated from their floating-point operations and bytes. Exit status: 0 success, 1 the model can't be planned, 2 bad flags.
)";

int Usage(const std::string& message) {
  std::fprintf(stderr, "plan: %s\nTry --help.\n", message.c_str());
  return 2;
}

struct Options {
  std::string model, html, trace, profile = "nvidia_a100_sxm_80gb", optimizer = "adam", algorithm = "ring";
  LoadOptions load;
  PlanOptions plan;
  bool json = false, help = false;
};

absl::Status CheckAtMost(const char* name, double value, double most) {
  if (value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--", name, "=", value, ": nothing has more than ", most));
}

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments) {
  constexpr int64_t kMostRanks = 1 << 20;
  constexpr double kMostGbps = 1e6, kMostMicroseconds = 1e7, kMostMib = 1e6, kMostGb = 1e6;
  Options options;
  options.load.load_weights = false;
  Cluster& cluster = options.plan.cluster;
  cluster.world_size = 0;
  double bandwidth = 0, latency = -1, node_bandwidth = 0, node_latency = -1, memory = 0, cap = -1, first_cap = -1;
  Flags flags;
  const std::string ranks = absl::StrCat("a whole number from 1 to ", kMostRanks), positive = "a number above 0",
                    from_0 = "a number, 0 or above";
  flags.Integer("world_size", &cluster.world_size, 1, kMostRanks, ranks);
  flags.Integer("ranks_per_node", &cluster.ranks_per_node, 1, kMostRanks, ranks);
  flags.Number("bandwidth_gbps", &bandwidth, 0, positive);
  flags.NumberFrom("latency_us", &latency, 0, from_0);
  flags.Number("node_bandwidth_gbps", &node_bandwidth, 0, positive);
  flags.NumberFrom("node_latency_us", &node_latency, 0, from_0);
  flags.Number("memory_gb", &memory, 0, positive);
  flags.NumberFrom("overlap_slowdown", &options.plan.overlap.slowdown, 0, "a number from 0 to 1");
  flags.NumberFrom("bucket_cap_mb", &cap, 0, from_0);
  flags.NumberFrom("first_bucket_cap_mb", &first_cap, 0, from_0);
  flags.Choice("algorithm", &options.algorithm, {"ring", "tree", "hierarchical"});
  flags.Choice("optimizer", &options.optimizer, {"sgd", "momentum", "adam"});
  flags.Text("device_profile", &options.profile, "a name or a path");
  flags.Text("html", &options.html, "a path");
  flags.Text("trace", &options.trace, "a path");
  flags.Text("model_name", &options.load.model_name, "a name");
  flags.Switch("gradient_as_bucket_view", &options.plan.gradient_as_bucket_view);
  flags.Switch("json", &options.json);
  flags.Switch("help", &options.help);
  std::vector<std::string> rest;
  DDPOPT_RETURN_IF_ERROR(flags.Parse(arguments, &rest));
  if (options.help) return options;
  if (rest.size() != 1)
    return absl::InvalidArgumentError(rest.empty() ? "name a model" : absl::StrCat("unexpected argument \"", rest[1], "\""));
  options.model = rest[0];
  if (cluster.world_size == 0) return absl::InvalidArgumentError("--world_size is missing");
  if (cluster.world_size > 1 && bandwidth == 0) return absl::InvalidArgumentError("--bandwidth_gbps is missing");
  if (cluster.world_size > 1 && latency < 0) return absl::InvalidArgumentError("--latency_us is missing");
  if (cluster.ranks_per_node > 1 && node_bandwidth == 0) return absl::InvalidArgumentError("--ranks_per_node needs --node_bandwidth_gbps");
  DDPOPT_RETURN_IF_ERROR(CheckAtMost("bandwidth_gbps", bandwidth, kMostGbps));
  DDPOPT_RETURN_IF_ERROR(CheckAtMost("node_bandwidth_gbps", node_bandwidth, kMostGbps));
  DDPOPT_RETURN_IF_ERROR(CheckAtMost("latency_us", latency, kMostMicroseconds));
  DDPOPT_RETURN_IF_ERROR(CheckAtMost("node_latency_us", node_latency, kMostMicroseconds));
  DDPOPT_RETURN_IF_ERROR(CheckAtMost("bucket_cap_mb", cap, kMostMib));
  DDPOPT_RETURN_IF_ERROR(CheckAtMost("first_bucket_cap_mb", first_cap, kMostMib));
  DDPOPT_RETURN_IF_ERROR(CheckAtMost("memory_gb", memory, kMostGb));
  DDPOPT_RETURN_IF_ERROR(CheckAtMost("overlap_slowdown", options.plan.overlap.slowdown, 1));
  // One rank alone has no link; the table of other sizes then has an ideal one.
  cluster.bandwidth = bandwidth > 0 ? bandwidth / 8 * 1e9 : 1e15;
  cluster.latency = std::max(latency, 0.0) * 1e-6;
  cluster.node_bandwidth = node_bandwidth / 8 * 1e9;
  cluster.node_latency = std::max(node_latency >= 0 ? node_latency : latency, 0.0) * 1e-6;
  options.plan.memory_limit_bytes = static_cast<int64_t>(memory * 1e9);
  if (cap >= 0) options.plan.buckets.bucket_cap_bytes = static_cast<int64_t>(cap * (1 << 20));
  if (first_cap >= 0) options.plan.buckets.first_bucket_cap_bytes = static_cast<int64_t>(first_cap * (1 << 20));
  options.plan.optimizer_state_per_parameter = options.optimizer == "sgd" ? 0 : options.optimizer == "momentum" ? 1 : 2;
  DDPOPT_ASSIGN_OR_RETURN(options.plan.algorithm, ParseAllReduceAlgorithm(options.algorithm));
  DDPOPT_RETURN_IF_ERROR(CheckCluster(cluster));
  DDPOPT_RETURN_IF_ERROR(CheckBucketOptions(options.plan.buckets));
  DDPOPT_ASSIGN_OR_RETURN(options.plan.device, FindDeviceProfile(options.profile));
  return options;
}

absl::Status PlanModel(const Options& options) {
  DDPOPT_ASSIGN_OR_RETURN(const std::shared_ptr<ExportedProgram> program, LoadExportedProgram(UserPath(options.model), options.load));
  std::vector<c10::IValue> inputs;
  for (const fx::Node* node : program->module()->graph().nodes()) {
    if (node->op() != fx::Op::kPlaceholder) continue;
    if (node->meta().val.isNone() && node->has_meta() && node->meta().custom.contains("symbolic")) {
      return absl::UnimplementedError(absl::StrCat("input \"", node->path(), "\" has open sizes of which the archive has no example"));
    }
    inputs.push_back(node->meta().val);
  }
  std::vector<std::string> warnings;
  for (const auto& [name, with] : program->LikelyTied()) {
    DDPOPT_RETURN_IF_ERROR(program->Tie(name, with));
    warnings.push_back(absl::StrCat("\"", name, "\" is taken for another name of \"", with,
                                    "\": the graph doesn't use it, they are alike, and a graph file doesn't tell what is tied"));
  }
  DDPOPT_ASSIGN_OR_RETURN(Plan plan, MakePlan(*program->module(), inputs, options.plan));
  plan.warnings.insert(plan.warnings.begin(), warnings.begin(), warnings.end());
  const std::vector<std::string> path = absl::StrSplit(options.model, '/');
  const PlanAbout about{path.back(), options.plan};
  std::fputs(PlanText(about, plan).c_str(), stdout);
  if (!options.html.empty()) DDPOPT_RETURN_IF_ERROR(WriteFile(UserPath(options.html), PlanHtml(about, plan)));
  if (!options.trace.empty()) DDPOPT_RETURN_IF_ERROR(WriteFile(UserPath(options.trace), PlanTrace(about, plan)));
  if (options.json) std::printf("%s\n", PlanJson(about, plan).c_str());
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const absl::StatusOr<Options> options = ParseOptions({argv + 1, argv + argc});
  if (!options.ok()) return Usage(std::string(options.status().message()));
  if (options->help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  const absl::Status status = PlanModel(*options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "plan: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace ddpopt

int main(int argc, char** argv) { return ddpopt::Main(argc, argv); }
