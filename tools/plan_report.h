#ifndef DDPOPT_TOOLS_PLAN_REPORT_H_
#define DDPOPT_TOOLS_PLAN_REPORT_H_

// A plan (ddpopt/optimizer/planner.h) as text, JSON, a picture and a trace.
//
//   std::cout << PlanText(about, plan);
//   DDPOPT_RETURN_IF_ERROR(WriteFile("plan.html", PlanHtml(about, plan)));

#include <string>

#include "ddpopt/optimizer/planner.h"

namespace ddpopt {

// What the plan is of.
struct PlanAbout {
  std::string model;
  PlanOptions options;
};

// For a terminal: figures, bucket table, timeline, exposed time by policy, memory, scaling, recommendation.
std::string PlanText(const PlanAbout& about, const Plan& plan);
// One JSON object; times in milliseconds, sizes in bytes. See plan's --help.
std::string PlanJson(const PlanAbout& about, const Plan& plan);
// A page of its own, with the timeline as SVG.
std::string PlanHtml(const PlanAbout& about, const Plan& plan);
// Events for chrome://tracing or Perfetto: forward, each node's backward, and each bucket's all-reduce.
std::string PlanTrace(const PlanAbout& about, const Plan& plan);

}  // namespace ddpopt

#endif  // DDPOPT_TOOLS_PLAN_REPORT_H_
