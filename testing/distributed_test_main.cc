// main of a ddpopt_distributed_test. Without RANK in the environment it launches itself on --world_size=N ranks (default 2) and merges what
// they record into one XML; with RANK it runs the cases.
//
//   --world_size=N             number of ranks
//   --test_timeout=SECONDS     limit of each case on each rank (default 60)
//   --gtest_...                as ever; --gtest_filter and Bazel's --test_filter choose the same cases on all ranks

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "ddpopt/distributed/launcher.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/distributed_test.h"
#include "testing/test_records.h"

namespace ddpopt::testing {
namespace {

constexpr char kRecordVariable[] = "DDPOPT_TEST_RECORD";

struct Flags {
  int world_size = 2;
  double test_timeout = 60;
  std::string xml_output;           // of --gtest_output=xml:
  std::vector<std::string> others;  // argv[0] and what is not for the launcher alone
  bool list_only = false;
};

// False after a message about a bad flag.
bool ParseFlags(int argc, char** argv, Flags& flags) {
  flags.others.push_back(argv[0]);
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    if (absl::StartsWith(argument, "--world_size=")) {
      if (!absl::SimpleAtoi(argument.substr(13), &flags.world_size) || flags.world_size < 1) {
        std::fprintf(stderr, "%s is no positive number of ranks\n", argv[i]);
        return false;
      }
      continue;
    }
    if (absl::StartsWith(argument, "--test_timeout=") &&
        (!absl::SimpleAtod(argument.substr(15), &flags.test_timeout) || !(flags.test_timeout > 0))) {
      std::fprintf(stderr, "%s is no positive number of seconds\n", argv[i]);
      return false;
    }
    if (absl::StartsWith(argument, "--gtest_output=xml:")) {
      flags.xml_output = std::string(argument.substr(19));
      continue;
    }
    if (argument == "--gtest_list_tests" || argument == "--help") flags.list_only = true;
    flags.others.push_back(argv[i]);
  }
  return true;
}

// Ends the process, with a message, when a case takes too long.
class Watchdog {
 public:
  explicit Watchdog(double seconds) : limit_(seconds), thread_([this] { Run(); }) {}
  ~Watchdog() {
    Change([this] { quit_ = true; });
    thread_.join();
  }
  void Start(std::string name) {
    Change([&] {
      name_ = std::move(name);
      deadline_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(limit_);
    });
  }
  void Stop() {
    Change([this] { name_.clear(); });
  }

 private:
  template <typename Fn>
  void Change(Fn fn) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      fn();
    }
    changed_.notify_one();
  }
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!quit_) {
      if (name_.empty()) {
        changed_.wait(lock);
      } else if (changed_.wait_until(lock, deadline_) == std::cv_status::timeout && !name_.empty() &&
                 std::chrono::steady_clock::now() >= deadline_) {
        std::fprintf(stderr, "%s has run for more than %g s (--test_timeout)\n", name_.c_str(), limit_.count());
        std::fflush(nullptr);
        std::abort();
      }
    }
  }

  const std::chrono::duration<double> limit_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string name_;
  std::chrono::steady_clock::time_point deadline_;
  bool quit_ = false;
  std::thread thread_;
};

class Recorder : public ::testing::EmptyTestEventListener {
 public:
  Recorder(const std::string& path, double test_timeout) : watchdog_(test_timeout) {
    if (!path.empty()) file_.open(path, std::ios::app);
  }

  void OnTestProgramStart(const ::testing::UnitTest& program) override {
    for (int s = 0; s < program.total_test_suite_count(); ++s) {
      const ::testing::TestSuite& suite = *program.GetTestSuite(s);
      for (int t = 0; t < suite.total_test_count(); ++t) {
        const ::testing::TestInfo& info = *suite.GetTestInfo(t);
        // As in googletest's own XML: cases that the filter chose and that are disabled appear, others don't.
        if (!info.is_reportable()) continue;
        Write({{"plan",
                {{"suite", info.test_suite_name()},
                 {"name", info.name()},
                 {"file", info.file()},
                 {"line", info.line()},
                 {"disabled", !info.should_run()}}}});
      }
    }
  }
  void OnTestStart(const ::testing::TestInfo& info) override {
    Write({{"start", Name(info)}});
    watchdog_.Start(Name(info));
  }
  void OnTestEnd(const ::testing::TestInfo& info) override {
    watchdog_.Stop();
    const ::testing::TestResult& result = *info.result();
    nlohmann::json messages = nlohmann::json::array();
    for (int i = 0; i < result.total_part_count(); ++i) {
      const ::testing::TestPartResult& part = result.GetTestPartResult(i);
      if (part.failed()) {
        messages.push_back(
            absl::StrCat(part.file_name() == nullptr ? "" : part.file_name(), ":", part.line_number(), "\n", part.message()));
      }
    }
    Write({{"end", Name(info)},
           {"result", result.Failed()    ? "failed"
                      : result.Skipped() ? "skipped"
                                         : "passed"},
           {"messages", messages},
           {"seconds", static_cast<double>(result.elapsed_time()) / 1000}});
  }

 private:
  static std::string Name(const ::testing::TestInfo& info) { return absl::StrCat(info.test_suite_name(), ".", info.name()); }
  void Write(const nlohmann::json& event) {
    if (file_.is_open()) file_ << event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  }

  std::ofstream file_;
  Watchdog watchdog_;
};

int RunCases(int argc, char** argv) {
  Flags flags;
  if (!ParseFlags(argc, argv, flags)) return 2;
  ::testing::InitGoogleMock(&argc, argv);
  const char* path = std::getenv(kRecordVariable);
  const bool inside_death_test = !::testing::internal::GetArgvs().empty() && !GTEST_FLAG_GET(internal_run_death_test).empty();
  if (!inside_death_test && !flags.list_only) {
    ::testing::UnitTest::GetInstance()->listeners().Append(new Recorder(path == nullptr ? "" : path, flags.test_timeout));
  }
  const int status = RUN_ALL_TESTS();
  ReleaseTestProcessGroup();
  return status;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

int LaunchRanks(int argc, char** argv) {
  Flags flags;
  if (!ParseFlags(argc, argv, flags)) return 2;
  if (flags.list_only) return RunCases(argc, argv);

  const char* base = std::getenv("TEST_TMPDIR");
  std::string folder = absl::StrCat(base != nullptr ? base : "/tmp", "/ddpopt_test_XXXXXX");
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 1;
  }
  const auto record_path = [&](int rank) { return absl::StrCat(folder, "/rank", rank, ".json"); };

  std::array<char, 4096> self;
  const ssize_t length = readlink("/proc/self/exe", self.data(), self.size());
  if (length <= 0 || static_cast<size_t>(length) >= self.size()) {
    std::perror("/proc/self/exe");
    return 1;
  }
  flags.others[0] = std::string(self.data(), length);

  LaunchOptions options;
  options.nproc_per_node = flags.world_size;
  options.linger_seconds = 25;  // longer than the group's timeout: ranks that lost a peer fail by themselves, and record it
  double bazel_timeout = 0;
  if (const char* text = std::getenv("TEST_TIMEOUT"); text != nullptr && absl::SimpleAtod(text, &bazel_timeout) && bazel_timeout > 20) {
    options.timeout_seconds = bazel_timeout - 10;  // so that the XML gets written
  }
  options.unset = {"XML_OUTPUT_FILE", "GTEST_OUTPUT", "TEST_PREMATURE_EXIT_FILE"};
  options.rank_environment = [&](int rank) { return EnvironmentList{{kRecordVariable, record_path(rank)}}; };
  const absl::StatusOr<LaunchResult> result = Launch(flags.others, options);
  if (!result.ok()) {
    std::fprintf(stderr, "launching the ranks: %s\n", result.status().ToString().c_str());
    return 1;
  }

  std::vector<RankRecord> records;
  for (int rank = 0; rank < flags.world_size; ++rank) {
    const RankOutcome& outcome = result->ranks[rank];
    records.push_back(
        {ReadFile(record_path(rank)), outcome.exit_status == 0,
         absl::StrCat(outcome.text, outcome.ended_by_launcher ? absl::StrCat(", ended by the launcher because ", result->reason) : "")});
    unlink(record_path(rank).c_str());
  }
  rmdir(folder.c_str());

  const std::vector<MergedCase> cases = MergeRecords(records);
  if (const char* path = std::getenv("XML_OUTPUT_FILE"); path != nullptr && flags.xml_output.empty()) flags.xml_output = path;
  if (!flags.xml_output.empty()) {
    std::ofstream xml(flags.xml_output, std::ios::trunc);
    xml << ToXml(cases);
    xml.close();
    if (!xml) {
      std::fprintf(stderr, "can't write %s\n", flags.xml_output.c_str());
      return 1;
    }
  }
  int failed = 0, skipped = 0, disabled = 0;
  for (const MergedCase& c : cases) {
    skipped += c.skipped ? 1 : 0;
    disabled += c.disabled ? 1 : 0;
    if (c.failures.empty()) continue;
    ++failed;
    std::printf("FAILED %s.%s\n", c.suite.c_str(), c.name.c_str());
    for (const std::string& failure : c.failures) std::printf("  %s\n", failure.c_str());
  }
  std::printf("on %d ranks: %zu passed, %d failed, %d skipped, %d disabled\n", flags.world_size, cases.size() - failed - skipped - disabled,
              failed, skipped, disabled);
  return failed == 0 && result->exit_status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ddpopt::testing

int main(int argc, char** argv) {
  return std::getenv("RANK") == nullptr ? ddpopt::testing::LaunchRanks(argc, argv) : ddpopt::testing::RunCases(argc, argv);
}
