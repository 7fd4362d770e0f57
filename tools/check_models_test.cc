#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ATen/ops/ones.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "ddpopt/capture/pt2/safetensors.h"
#include "nlohmann/json.hpp"
#include "testing/matchers.h"
#include "tools/check_models_compare.h"
#include "tools/check_models_run.h"

namespace ddpopt {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::StatusIs;

const std::string kData = "testing/testdata/exported";

// A copy of a part of the data, to be altered.
class CheckModelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(dir_);
  }
  void Copy(const std::string& part) {
    fs::create_directories(fs::path(dir_ / part).parent_path());
    fs::copy(fs::path(kData) / part, dir_ / part, fs::copy_options::recursive);
    for (const auto& entry : fs::recursive_directory_iterator(dir_))
      fs::permissions(entry.path(), fs::perms::owner_write, fs::perm_options::add);
  }
  void EditJson(const std::string& path, const std::function<void(nlohmann::json&)>& edit) {
    nlohmann::json json = nlohmann::json::parse(*ReadFile((dir_ / path).string()));
    edit(json);
    fs::remove(dir_ / path);
    DDPOPT_ASSERT_OK(WriteFile((dir_ / path).string(), json.dump()));
  }
  void ScaleTensor(const std::string& path, const std::string& name, double factor) {
    const auto file = SafetensorsFile::Open((dir_ / path).string());
    DDPOPT_ASSERT_OK(file);
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& [key, entry] : file->entries())
      tensors.emplace_back(key, key == name ? file->Read(key)->mul(factor) : *file->Read(key));
    fs::remove(dir_ / path);
    DDPOPT_ASSERT_OK(WriteSafetensors((dir_ / path).string(), tensors));
  }
  // The cases that fail, those of two ranks apart.
  std::vector<std::string> Failures(const std::string& only = "") {
    std::vector<std::string> failed;
    cases_ = 0;
    CheckModelsOptions options;
    options.dir = dir_.string();
    options.only = only;
    options.skip_ranks = true;
    options.backend = backend_;
    refused_.clear();
    options.on_refused = [&](const std::string& name, const std::string& why) {
      EXPECT_FALSE(why.empty());
      refused_.push_back(name);
    };
    DDPOPT_EXPECT_OK(CheckModels(options, [&](const ModelCase& result) {
      ++cases_;
      if (!result.difference.empty()) failed.push_back(result.id);
      last_difference_ = result.difference.empty() ? last_difference_ : result.difference;
    }));
    return failed;
  }

  fs::path dir_;
  std::string backend_ = "eager";
  std::vector<std::string> refused_;
  int cases_ = 0;
  std::string last_difference_;
};

TEST_F(CheckModelsTest, AllOfTheFormsPass) {
  Copy("forms");
  Copy("forms_2_11");
  EXPECT_THAT(Failures(), IsEmpty()) << last_difference_;
  EXPECT_EQ(cases_, 48);
}

TEST_F(CheckModelsTest, ModelsAndGraphsPass) {
  Copy("models");
  Copy("graphs");
  EXPECT_THAT(Failures(), IsEmpty()) << last_difference_;
  EXPECT_EQ(cases_, 11);
}

// Compiled whole, ahead of time. A branch that data chooses can't be.
TEST_F(CheckModelsTest, AllPassThroughAotEager) {
  backend_ = "aot_eager";
  Copy("forms");
  Copy("forms_2_11");
  Copy("models");
  EXPECT_THAT(Failures(), IsEmpty()) << last_difference_;
  EXPECT_EQ(cases_, 56);
  EXPECT_THAT(refused_, ElementsAre("forms/cond", "forms_2_11/cond"));
  ScaleTensor("models/unused_params/grads.safetensors", "m.b.bias", 0.98);
  EXPECT_THAT(Failures("unused_params"), ElementsAre("models/unused_params/grads"));
}

TEST_F(CheckModelsTest, AnAlteredFigureFailsInItsCaseAlone) {
  Copy("models/unused_params");
  const std::string manifest = "models/unused_params/manifest.json";
  EditJson(manifest, [](nlohmann::json& json) { json["loss0"] = json["loss0"].get<double>() * 1.02; });
  EXPECT_THAT(Failures(), ElementsAre("models/unused_params/loss"));
  EditJson(manifest, [](nlohmann::json& json) {
    json["loss0"] = json["loss0"].get<double>() / 1.02;
    json["losses_single"][7] = json["losses_single"][7].get<double>() * 1.02;
  });
  EXPECT_THAT(Failures(), ElementsAre("models/unused_params/trajectory"));
  EditJson(manifest, [](nlohmann::json& json) {
    json["losses_single"][7] = json["losses_single"][7].get<double>() / 1.02;
    json["final_param_stats_single"]["m.a.weight"]["l2"] = json["final_param_stats_single"]["m.a.weight"]["l2"].get<double>() * 1.02;
  });
  EXPECT_THAT(Failures(), ElementsAre("models/unused_params/trajectory"));
  EditJson(manifest, [](nlohmann::json& json) {
    json["final_param_stats_single"]["m.a.weight"]["l2"] = json["final_param_stats_single"]["m.a.weight"]["l2"].get<double>() / 1.02;
    json["params"][0]["shape"][0] = 65;
  });
  EXPECT_THAT(Failures(), ElementsAre("models/unused_params/load"));
  EditJson(manifest, [](nlohmann::json& json) { json["params"][0]["shape"][0] = 64; });
  EXPECT_THAT(Failures(), IsEmpty()) << last_difference_;
  ScaleTensor("models/unused_params/grads.safetensors", "m.b.bias", 0.98);
  EXPECT_THAT(Failures(), ElementsAre("models/unused_params/grads"));
  EXPECT_THAT(last_difference_, HasSubstr("m.b.bias"));
}

TEST_F(CheckModelsTest, AlteredCalls) {
  Copy("forms/mutated_buffers");
  Copy("forms/dynamic_batch");
  const std::string calls = "forms/mutated_buffers/calls.safetensors";
  ScaleTensor(calls, "call1.post.ema", 1.02);
  EXPECT_THAT(Failures(), ElementsAre("forms/mutated_buffers/call1"));
  ScaleTensor(calls, "call1.post.ema", 1 / 1.02);
  ScaleTensor(calls, "call0.grad.l.weight", 1.02);
  EXPECT_THAT(Failures(), ElementsAre("forms/mutated_buffers/call0"));
  ScaleTensor("forms/dynamic_batch/calls.safetensors", "call2.out0", 1.02);
  EditJson("forms/mutated_buffers/manifest.json", [](nlohmann::json& json) {
    json["calls"][0]["outs"][0]["requires_grad"] = false;
    json["calls"][1]["post"] = nlohmann::json::array({"ema"});
  });
  EXPECT_THAT(Failures(), ElementsAre("forms/dynamic_batch/call2", "forms/mutated_buffers/call0", "forms/mutated_buffers/call1"));
  EXPECT_THAT(last_difference_, HasSubstr("the call changed \"steps\""));
}

TEST_F(CheckModelsTest, MissingAndDamagedFilesFail) {
  Copy("forms/cond");
  Copy("forms/bf16");
  fs::remove(dir_ / "forms/cond/model.pt2");
  fs::resize_file(dir_ / "forms/bf16/calls.safetensors", 50);
  EXPECT_THAT(Failures(), ElementsAre("forms/bf16/call0", "forms/bf16/refused_size", "forms/cond/call0", "forms/cond/refused_size"));
  Copy("graphs");
  EditJson("graphs/resnet50.meta.json", [](nlohmann::json& json) { json["params"].erase(3); });
  EXPECT_THAT(Failures("graphs"), ElementsAre("graphs/resnet50/load"));
}

TEST_F(CheckModelsTest, NothingToCheckIsAnError) {
  CheckModelsOptions options;
  options.dir = dir_.string();
  EXPECT_THAT(CheckModels(options, [](const ModelCase&) {}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("models/, graphs/")));
}

// Runs the program itself.
std::string RunProgram(const std::string& arguments, int* status) {
  FILE* pipe = popen(absl::StrCat("tools/check_models ", arguments, " 2>/dev/null").c_str(), "r");
  std::string output;
  char buffer[4096];
  while (const std::size_t got = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, got);
  *status = WEXITSTATUS(pclose(pipe));
  return output;
}

// The program starts its own ranks: a parameter that is never used, and batch norms whose statistics rank 0 hands out.
TEST_F(CheckModelsTest, TwoRanks) {
  int status;
  EXPECT_EQ(RunProgram(absl::StrCat("--dir=", kData, " --only=/ddp_"), &status), "4 passed, 0 failed, 0 skipped\n");
  EXPECT_EQ(RunProgram(absl::StrCat("--dir=", kData, " --only=convnet_bn/ddp_ --backend=aot_eager"), &status),
            "2 passed, 0 failed, 0 skipped\n");
  Copy("models");
  const auto failures = [&](const std::string& model) {
    const std::string output = RunProgram(absl::StrCat("--dir=", dir_.string(), " --only=", model, "/ddp_ --json"), &status);
    EXPECT_EQ(status, 1);
    const nlohmann::json result = nlohmann::json::parse(output.substr(output.rfind('\n', output.size() - 2) + 1));
    std::vector<std::string> cases;
    for (const auto& failure : result["failures"]) cases.push_back(failure["case"]);
    return cases;
  };
  const auto scale = [&](const std::string& model, const nlohmann::json::json_pointer& figure, double factor) {
    EditJson(absl::StrCat("models/", model, "/manifest.json"),
             [&](nlohmann::json& json) { json[figure] = json[figure].get<double>() * factor; });
  };
  using Pointer = nlohmann::json::json_pointer;
  scale("unused_params", Pointer("/ddp/losses/rank1/7"), 1.02);
  EXPECT_THAT(failures("unused_params"), ElementsAre("models/unused_params/ddp_trajectory"));
  scale("unused_params", Pointer("/ddp/losses/rank1/7"), 1 / 1.02);
  ScaleTensor("models/unused_params/ddp_grads.safetensors", "m.b.bias", 0.98);
  EXPECT_THAT(failures("unused_params"), ElementsAre("models/unused_params/ddp_grads"));
  const std::string buffer = "/ddp/final_buffer_stats/rank1/m.b1.running_var/l2";
  scale("convnet_bn", Pointer(buffer), 1.02);
  EXPECT_THAT(failures("convnet_bn"), ElementsAre("models/convnet_bn/ddp_trajectory"));
}

TEST_F(CheckModelsTest, Program) {
  int status;
  EXPECT_EQ(RunProgram(absl::StrCat("--dir=", kData, " --only=forms/dynamic_batch"), &status), "4 passed, 0 failed, 0 skipped\n");
  EXPECT_EQ(status, 0);
  Copy("forms/float64");
  ScaleTensor("forms/float64/calls.safetensors", "call0.out0", 1.00001);
  const std::string output = RunProgram(absl::StrCat("--dir=", dir_.string(), " --json"), &status);
  EXPECT_EQ(status, 1);
  EXPECT_THAT(output, HasSubstr("FAILED forms/float64/call0\n"));
  const nlohmann::json last = nlohmann::json::parse(output.substr(output.rfind('\n', output.size() - 2) + 1));
  EXPECT_EQ(last["failed"], 1);
  EXPECT_EQ(last["passed"], 1);
  EXPECT_EQ(last["failures"][0]["case"], "forms/float64/call0");
  RunProgram("--backend=none --dir=x", &status);
  EXPECT_EQ(status, 2);
}

TEST(TensorDifferenceTest, ToleranceIsOfTheLargestValue) {
  const at::Tensor expected = at::ones({2}).mul(100);
  at::Tensor actual = expected.clone();
  actual.select(0, 0).add_(0.009);
  EXPECT_EQ(TensorDifference(actual, expected), "");
  actual.select(0, 0).add_(0.003);
  EXPECT_THAT(TensorDifference(actual, expected), HasSubstr("differs by 0.012"));
  EXPECT_THAT(TensorDifference(actual.to(at::kDouble), expected), HasSubstr("Double"));
  EXPECT_THAT(TensorDifference(at::ones({3}), expected), HasSubstr("[3]"));
  EXPECT_THAT(TensorDifference(at::ones({2}).mul(std::nan("")), at::ones({2})), HasSubstr("finite"));
  EXPECT_THAT(TensorDifference(at::ones({2}, at::kLong), at::ones({2}, at::kLong).mul(2)), HasSubstr("values differ"));
}

}  // namespace
}  // namespace ddpopt
