// Every recorded figure, altered by 2 % in turn, fails its case of check_models and no other. A sample of the figures of the models at
// hand; all figures of all models of a folder with CHECK_MODELS_DIR=DIR in the environment, and --test_timeout=3000
// --test_arg=--test_timeout=3000.

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "ddpopt/capture/pt2/safetensors.h"
#include "nlohmann/json.hpp"
#include "testing/distributed_test.h"
#include "testing/matchers.h"
#include "tools/check_models_rounding.h"
#include "tools/check_models_training.h"

namespace ddpopt {
namespace {

namespace fs = std::filesystem;
using testing::TestProcessGroup;
using Pointer = nlohmann::json::json_pointer;

struct Figure {
  std::string place;  // in the manifest, or "grads.safetensors NAME"
  std::string fails;  // the case
  double value = 0;   // of the manifest
};

// All of the manifest below `at`.
void Collect(const nlohmann::json& json, const std::string& at, const std::string& fails, std::vector<Figure>* figures) {
  if (json.is_structured()) {
    for (const auto& [key, child] : json.items()) {
      if (child.is_structured()) {
        Collect(child, absl::StrCat(at, "/", key), fails, figures);
        continue;
      }
      if (child.is_number_float()) figures->push_back({absl::StrCat(at, "/", key), fails, child.get<double>()});
    }
  } else if (json.is_number_float()) {
    figures->push_back({at, fails, json.get<double>()});
  }
}

class FiguresTest : public ::testing::Test {
 protected:
  void Check(const fs::path& model, std::size_t every) {
    const ProcessGroup& group = TestProcessGroup();
    const std::string name = model.filename().string();
    const fs::path dir = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", group.rank(), "/", name);
    fs::create_directories(dir.parent_path());
    fs::copy(model, dir, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    for (const auto& entry : fs::directory_iterator(dir)) fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
    const nlohmann::json manifest = nlohmann::json::parse(*ReadFile((dir / "manifest.json").string()));
    std::vector<Figure> figures;
    const auto collect = [&](const char* at, const char* fails) {
      if (manifest.contains(Pointer(at))) Collect(manifest[Pointer(at)], at, fails, &figures);
    };
    collect("/loss0", "loss");
    collect("/losses_single", "trajectory");
    collect("/losses_exported_module", "trajectory");
    collect("/grad_stats", "grads");
    collect("/final_param_stats_single", "trajectory");
    collect("/final_buffer_stats_single", "trajectory");
    collect("/ddp/losses", "ddp_trajectory");
    collect("/ddp/final_param_stats", "ddp_trajectory");
    collect("/ddp/final_buffer_stats", "ddp_trajectory");
    for (const auto& [file, fails] : {std::pair("grads.safetensors", "grads"), std::pair("ddp_grads.safetensors", "ddp_grads")}) {
      const auto opened = SafetensorsFile::Open((dir / file).string());
      DDPOPT_ASSERT_OK(opened);
      for (const auto& [tensor, entry] : opened->entries()) figures.push_back({absl::StrCat(file, " ", tensor), fails, 1});
    }
    ASSERT_GT(figures.size(), 20u);

    ModelChecker checker(dir, nullptr);
    EXPECT_EQ(Failures(group, &checker), "") << name;
    std::vector<std::string> unnoticed;
    std::size_t altered = 0;
    for (std::size_t i = 0; i < figures.size(); i += every) {
      const Figure& figure = figures[i];
      if (figure.value == 0) continue;
      ++altered;
      Alter(dir, manifest, figure);
      const std::string failed = Failures(group, &checker);
      Restore(dir, model, figure);
      if (failed == figure.fails) continue;
      unnoticed.push_back(absl::StrCat(figure.place, " (", figure.value, "): fails \"", failed, "\""));
      ADD_FAILURE() << name << " " << unnoticed.back();
    }
    if (group.rank() == 0) {
      std::cout << name << ": " << altered << " figures altered by 2 %, " << unnoticed.size() << " unnoticed\n";
      for (const std::string& line : unnoticed) std::cout << "  " << line << "\n";
    }
  }

 private:
  static void Alter(const fs::path& dir, const nlohmann::json& manifest, const Figure& figure) {
    const std::vector<std::string> file = absl::StrSplit(figure.place, absl::MaxSplits(' ', 1));
    if (file.size() == 1) {
      nlohmann::json json = manifest;
      json[Pointer(figure.place)] = figure.value * 1.02;
      DDPOPT_ASSERT_OK(WriteFile((dir / "manifest.json").string(), json.dump()));
      return;
    }
    const std::string path = (dir / file[0]).string();
    const auto opened = SafetensorsFile::Open(path);
    DDPOPT_ASSERT_OK(opened);
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& [key, entry] : opened->entries())
      tensors.emplace_back(key, key == file[1] ? opened->Read(key)->mul(1.02) : opened->Read(key)->clone());
    fs::remove(path);
    DDPOPT_ASSERT_OK(WriteSafetensors(path, tensors));
  }
  static void Restore(const fs::path& dir, const fs::path& model, const Figure& figure) {
    const std::vector<std::string> file = absl::StrSplit(figure.place, absl::MaxSplits(' ', 1));
    const std::string name = file.size() == 1 ? "manifest.json" : file[0];
    fs::remove(dir / name);
    fs::copy(model / name, dir / name);
    fs::permissions(dir / name, fs::perms::owner_write, fs::perm_options::add);
  }
  // The cases that fail on any rank.
  static std::string Failures(const ProcessGroup& group, ModelChecker* checker) {
    std::vector<std::string> failed;
    const auto run = [&](const char* name, const std::function<absl::Status(Differences*)>& check) {
      Differences differences;
      differences.AddStatus(check(&differences));
      if (!differences.empty()) failed.emplace_back(name);
    };
    run("loss", [&](Differences* d) { return checker->Loss(d); });
    run("grads", [&](Differences* d) { return checker->Grads(d); });
    run("trajectory", [&](Differences* d) { return checker->Trajectory(d); });
    Differences grads, trajectory;
    if (const absl::Status status = checker->TrainOnRanks(group, &grads, &trajectory); !status.ok()) {
      failed.push_back(std::string(status.message()));
    }
    if (!grads.empty()) failed.emplace_back("ddp_grads");
    if (!trajectory.empty()) failed.emplace_back("ddp_trajectory");
    const auto all = group.AllGatherText("failures", absl::StrJoin(failed, "|"));
    if (!all.ok()) return std::string(all.status().message());
    std::set<std::string> names;
    for (const std::string& of : *all) {
      for (const absl::string_view name : absl::StrSplit(of, '|', absl::SkipEmpty())) names.emplace(name);
    }
    return absl::StrJoin(names, " ");
  }
};

TEST_F(FiguresTest, EachAlteredOneFailsItsCaseAlone) {
  UseRecordedArithmetic();
  if (const char* dir = std::getenv("CHECK_MODELS_DIR")) {
    std::set<fs::path> models;
    for (const auto& entry : fs::directory_iterator(fs::path(dir) / "models")) {
      if (entry.is_directory()) models.insert(entry.path());
    }
    for (const fs::path& model : models) Check(model, 1);
    return;
  }
  Check("testing/testdata/exported/models/convnet_bn", 7);
  Check("testing/testdata/exported/models/unused_params", 5);
}

}  // namespace
}  // namespace ddpopt
