#include "benchmarks/slow_link.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace ddpopt::benchmarks {
namespace {

constexpr char kPrefix[] = "ddpopt-overlap-";

absl::Status Shell(const std::string& command, std::string* output = nullptr) {
  std::string text;
  FILE* const pipe = popen(absl::StrCat("(", command, ") 2>&1").c_str(), "r");
  if (pipe == nullptr) return absl::InternalError("no shell can be started");
  std::array<char, 4096> buffer;
  for (std::size_t got; (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), got);
  const int status = pclose(pipe);
  if (output != nullptr) *output = text;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("`", command, "`: ", absl::StripAsciiWhitespace(text)));
}

// Namespaces of programs that are gone.
void RemoveLeftovers() {
  std::string list;
  if (!Shell("ip netns list", &list).ok()) return;
  for (absl::string_view line : absl::StrSplit(list, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    absl::string_view rest = words[0];
    if (!absl::ConsumePrefix(&rest, kPrefix)) continue;
    int pid = 0;
    if (!absl::SimpleAtoi(rest.substr(0, rest.find('-')), &pid)) continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) Shell(absl::StrCat("ip netns del ", words[0])).IgnoreError();
  }
}

}  // namespace

std::string SlowLink::Address(int node) { return absl::StrCat("10.79.0.", node + 1); }

absl::StatusOr<std::unique_ptr<SlowLink>> SlowLink::Create(double mbit) {
  RemoveLeftovers();
  std::unique_ptr<SlowLink> link(new SlowLink());
  const auto make = [&]() -> absl::Status {
    for (int node = 0; node < 2; ++node) {
      const std::string name = absl::StrCat(kPrefix, getpid(), node == 0 ? "-a" : "-b");
      DDPOPT_RETURN_IF_ERROR(Shell(absl::StrCat("ip netns add ", name)));
      link->names_[node] = name;
    }
    DDPOPT_RETURN_IF_ERROR(
        Shell(absl::StrCat("ip -n ", link->names_[0], " link add link0 type veth peer name link0 netns ", link->names_[1])));
    // Bursts of the time that the kernel's clock may be late, and not less than a few packets.
    const std::string shape =
        absl::StrFormat("tbf rate %.0fkbit burst %.0fk latency 400ms", 1000 * mbit, std::max(32.0, 256 * mbit / 1000));
    for (int node = 0; node < 2; ++node) {
      const std::string& name = link->names_[node];
      DDPOPT_RETURN_IF_ERROR(Shell(absl::StrCat("ip -n ", name, " addr add ", Address(node), "/24 dev link0")));
      DDPOPT_RETURN_IF_ERROR(Shell(absl::StrCat("ip -n ", name, " link set lo up")));
      DDPOPT_RETURN_IF_ERROR(Shell(absl::StrCat("ip -n ", name, " link set link0 up")));
      DDPOPT_RETURN_IF_ERROR(Shell(absl::StrCat("tc -n ", name, " qdisc add dev link0 root ", shape)));
    }
    return absl::OkStatus();
  };
  const absl::Status status = make();
  if (!status.ok()) return Annotate(status, "a slowed link needs root, network namespaces (ip netns), veth and tc's tbf");
  return link;
}

SlowLink::~SlowLink() {
  for (const std::string& name : names_) {
    if (!name.empty()) Shell(absl::StrCat("ip netns del ", name)).IgnoreError();
  }
}

}  // namespace ddpopt::benchmarks
