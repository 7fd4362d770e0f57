// Runs the program: what it refuses, training and resuming. argv[1]: the program.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "ATen/ops/sub.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "ddpopt/capture/pt2/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "testing/environment.h"
#include "testing/matchers.h"
#include "testing/run_program.h"

namespace {

using ::testing::HasSubstr;

std::string program;
constexpr char kConv[] = "testing/testdata/exported/models/convnet_bn/model.pt2";
constexpr char kUnused[] = "testing/testdata/exported/models/unused_params/model.pt2";
constexpr char kBatches[] = "testing/testdata/exported/models/unused_params/batches.safetensors";
constexpr char kForms[] = "testing/testdata/exported/forms/";

struct Result : ddpopt::testing::ProgramResult {
  nlohmann::json json;  // the last line
};

std::string Slurp(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string Folder() {
  static const std::string& folder = *new std::string([] {
    std::string path = ::testing::TempDir() + "/train_pt2.XXXXXX";
    return std::string(mkdtemp(path.data()));
  }());
  return folder;
}

Result RunProgram(const std::string& arguments, const std::string& environment = "") {
  Result result{ddpopt::testing::RunProgram(environment + " '" + program + "' " + arguments), {}};
  result.json = nlohmann::json::parse(result.last_line(), nullptr, /*allow_exceptions=*/false);
  return result;
}

void ExpectRefused(const std::string& arguments, const std::string& message) {
  const Result result = RunProgram(arguments);
  EXPECT_EQ(result.status, 2) << arguments;
  EXPECT_THAT(result.err, HasSubstr(message)) << arguments;
  EXPECT_EQ(result.out, "") << arguments;
}

TEST(TrainPt2, HelpNamesEveryFlag) {
  const Result result = RunProgram("--help");
  EXPECT_EQ(result.status, 0);
  for (const char* flag :
       {"--data", "--loss", "--weights", "--out", "--nproc", "--steps", "--optimizer", "--lr", "--momentum", "--weight_decay", "--seed",
        "--bucket_policy", "--find_unused_parameters", "--save", "--save_every", "--resume", "--timeout", "--stall_timeout", "--json"}) {
    EXPECT_THAT(result.out, HasSubstr(std::string("  ") + flag)) << flag;
  }
}

TEST(TrainPt2, RefusesBadFlagsAndFiles) {
  const std::string model = kUnused;
  ExpectRefused("", "MODEL.pt2 is missing");
  ExpectRefused("a.pt2 b.pt2", "unexpected argument 'b.pt2'");
  ExpectRefused(model + " --nproc=0", "--nproc=0: must be a number of ranks from 1 to 256");
  ExpectRefused(model + " --optimizer=sgdd", "--optimizer=sgdd: must be one of sgd, adam, adamw");
  ExpectRefused(model + " --momentum=-1", "--momentum=-1: must be a number, 0 or above");
  ExpectRefused(model + " --optimizer=adam --momentum=0.9", "--momentum is of --optimizer=sgd");
  ExpectRefused(model + " --bucket_policy=best", "--bucket_policy=best: must be one of caps, auto");
  ExpectRefused(model + " --resume", "--resume needs --save=FOLDER");
  ExpectRefused(model + " --resume=", "--resume=: must be a folder's path");
  ExpectRefused(model + " --save_every=2", "--save_every needs --save");
  ExpectRefused(model + " --step=3", "unknown flag '--step'");
  ExpectRefused("/nonexistent/model.pt2", "\"/nonexistent/model.pt2\": No such file or directory");
  ExpectRefused(std::string(kBatches), "batches.safetensors");
  ExpectRefused(model + " --data=/nonexistent/b.safetensors", "\"/nonexistent/b.safetensors\": No such file or directory");
  ExpectRefused(model + " --weights=" + kBatches, "batches.safetensors\" has no tensor \"m.");
}

TEST(TrainPt2, RefusesBatchesThatDoNotFit) {
  const std::string path = Folder() + "/batches.safetensors";
  const auto expect = [&](const std::vector<std::pair<std::string, at::Tensor>>& tensors, const std::string& message) {
    DDPOPT_ASSERT_OK(ddpopt::WriteSafetensors(path, tensors));
    ExpectRefused(std::string(kUnused) + " --data='" + path + "'", message);
  };
  const at::Tensor x = at::zeros({16, 64}), y = at::zeros({16}, at::kLong);
  expect({{"batch0.x", x}, {"batch0.y", y}, {"batch7.x", at::zeros({16, 63})}, {"batch7.y", y}}, "batch 7: input \"x\"");
  expect({{"batch0.x", x}, {"batch0.y", y.to(at::kInt)}}, "batch 0: input \"y\" has dtype Int");
  expect({{"batch0.x", x}}, "batch 0 has no tensor \"y\" (or \"arg1\"), which the program takes");
  expect({{"x", x}, {"y", y}, {"z", y}}, "has a tensor \"z\", which is no input of the program");
  expect({}, "has no tensors");
}

TEST(TrainPt2, RefusesProgramsWithoutALoss) {
  ExpectRefused(std::string(kForms) + "nested_inputs_outputs/model.pt2", "output 0: add Float [2, 6] is no single floating-point number");
  ExpectRefused(std::string(kForms) + "nested_inputs_outputs/model.pt2 --loss=3", "a constant is no single floating-point number");
  ExpectRefused(std::string(kForms) + "dynamic_batch/model.pt2 --loss=lost",
                "--loss=lost is no output; the program's outputs are 0: div Float [4]");
}

TEST(TrainPt2, TellsWhatTheBucketPolicyExpectsAndGot) {
  const std::string arguments = std::string(kConv) + " --steps=3 --json";
  Result result = RunProgram(arguments + " --bucket_policy=auto");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("bucket_policy auto: "));
  EXPECT_THAT(result.out, HasSubstr("Got in the mean of 3 steps: "));
  const nlohmann::json report = result.json["auto"];
  ASSERT_TRUE(report.is_object()) << result.out;
  EXPECT_TRUE(report["took_caps"].is_boolean());
  EXPECT_GT(report["expected_communication_ms"].get<double>(), 0);
  EXPECT_GT(report["communication_ms"].get<double>(), 0);
  EXPECT_EQ(result.json["params_equal"], true);
  result = RunProgram(arguments + " --bucket_policy=caps");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_FALSE(result.json.contains("auto"));
}

// The same run in one go, and interrupted twice: Adam's state, batch norm's buffers, made-up batches and batches from a file.
TEST(TrainPt2, ResumesBitForBit) {
  for (const std::string& arguments :
       {std::string(kConv) + " --optimizer=adam", std::string(kUnused) + " --find_unused_parameters --momentum=0.9 --data=" + kBatches}) {
    const std::string folder = Folder() + "/checkpoints" + std::to_string(arguments.size());
    const std::string whole = Folder() + "/whole", parts = Folder() + "/parts";
    Result result = RunProgram(arguments + " --steps=7 --json --out=" + whole);
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.json["world_size"], 2);
    EXPECT_EQ(result.json["params_equal"], true);
    EXPECT_EQ(result.json["saved"], nullptr);
    EXPECT_LT(result.json["final_loss"].get<double>(), result.json["initial_loss"].get<double>() + 0.5);
    const double final_loss = result.json["final_loss"];
    const std::string resumed = arguments + " --json --resume --save=" + folder;
    result = RunProgram(resumed + " --steps=2");
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.json["resumed_from"], nullptr);
    result = RunProgram(resumed + " --steps=5 --save_every=1");
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.json["first_step"], 2);
    EXPECT_THAT(result.json["resumed_from"].get<std::string>(), HasSubstr("checkpoint-000000000002.ckpt"));
    // The newest one is damaged: the run goes on from the one before.
    const std::string newest = folder + "/checkpoint-000000000005.ckpt";
    std::string content = Slurp(newest);
    content[content.size() / 2] ^= 16;
    std::ofstream(newest, std::ios::binary) << content;
    result = RunProgram(resumed + " --steps=7 --out=" + parts);
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.json["first_step"], 4);
    EXPECT_THAT(result.err, HasSubstr("passed over: \"" + newest + "\""));
    EXPECT_EQ(result.json["final_loss"].get<double>(), final_loss);
    EXPECT_TRUE(Slurp(whole) == Slurp(parts));
    // Other numbers of ranks take the model and the optimizer along.
    result = RunProgram(resumed + " --steps=8 --nproc=3");
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.json["world_size"], 3);
    EXPECT_EQ(result.json["first_step"], 7);
    EXPECT_THAT(result.err, HasSubstr("saved by 2 ranks: random states are new"));
  }
}

// The same batch on every rank: the mean gradient is each rank's own, up to rounding, so the number of ranks makes no difference but that.
TEST(TrainPt2, ResumesWithAnotherNumberOfRanksWithinTheTolerance) {
  const std::string batch = Folder() + "/one.safetensors";
  const auto batches = ddpopt::SafetensorsFile::Open(kBatches);
  DDPOPT_ASSERT_OK(batches);
  DDPOPT_ASSERT_OK(ddpopt::WriteSafetensors(batch, {{"x", *batches->Read("rank0.arg0")}, {"y", *batches->Read("rank0.arg1")}}));
  const std::string arguments = std::string(kUnused) + " --find_unused_parameters --momentum=0.9 --lr=0.05 --data=" + batch;
  const std::string folder = Folder() + "/other", two = Folder() + "/two", three = Folder() + "/three";
  ASSERT_EQ(RunProgram(arguments + " --steps=12 --out=" + two).status, 0);
  ASSERT_EQ(RunProgram(arguments + " --steps=2 --save=" + folder).status, 0);
  const Result result = RunProgram(arguments + " --steps=12 --nproc=3 --resume=" + folder + " --out=" + three);
  ASSERT_EQ(result.status, 0) << result.err;
  const auto a = ddpopt::SafetensorsFile::Open(two), b = ddpopt::SafetensorsFile::Open(three);
  DDPOPT_ASSERT_OK(a);
  DDPOPT_ASSERT_OK(b);
  for (const auto& [name, entry] : a->entries()) {
    const at::Tensor x = *a->Read(name), y = *b->Read(name);
    EXPECT_LE(at::sub(x, y).abs().max().item<double>(), 10 * 1e-6 * x.abs().max().item<double>()) << name;
  }
}

TEST(TrainPt2, AnotherRunsFolderIsRefusedAndARestartGoesOn) {
  const std::string folder = Folder() + "/used";
  const std::string arguments = std::string(kUnused) + " --json --find_unused_parameters --nproc=1 --save=" + folder;
  Result result = RunProgram(arguments + " --steps=2");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("exposed ms"));
  ExpectRefused(arguments + " --steps=4", "checkpoint-000000000002.ckpt\": --resume goes on from it, or save elsewhere");
  ExpectRefused(arguments + " --steps=4 --resume=" + Folder(), "has checkpoints of another run");
  // As a launcher starts a rank again after a failure.
  const std::string restarted = absl::StrCat(
      "RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=", ddpopt::testing::FreePort(), " TORCHELASTIC_RESTART_COUNT=1");
  result = RunProgram(arguments + " --steps=4 --resume=" + Folder(), restarted);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.json["first_step"], 2);
}

TEST(TrainPt2, ARankThatStallsIsNamed) {
  const std::string err = Folder() + "/stalled";
  const std::string command =
      absl::StrCat("'", program, "' ", kUnused, " --find_unused_parameters --steps=100000000 --stall_timeout=1 2>", err);
  // Without a launcher, which would see that the second rank stands still.
  const auto result = ddpopt::testing::RunProgram(absl::StrCat(
      "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=", ddpopt::testing::FreePort(), "; RANK=1 LOCAL_RANK=1 ", command,
      "1 & second=$!; RANK=0 LOCAL_RANK=0 ", command, "0 & first=$!; until grep -q 'step ' ", err,
      "0 || ! kill -0 $first; do sleep 0.1; done; kill -STOP $second; wait $first; status=$?; kill -KILL $second; exit $status"));
  EXPECT_EQ(result.status, 1) << Slurp(err + "0");
  EXPECT_THAT(Slurp(err + "0"), ::testing::AllOf(HasSubstr("it has not ended within 1 s"), HasSubstr("rank 1 doesn't answer")));
}

TEST(TrainPt2, AFolderToResumeFromMustHaveACheckpoint) {
  const Result result = RunProgram(std::string(kUnused) + " --resume=/nonexistent/folder");
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("train_pt2: \"/nonexistent/folder\": No such file or directory"));
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: train_pt2_test PROGRAM\n");
    return 2;
  }
  program = argv[1];
  const int status = RUN_ALL_TESTS();
  std::filesystem::remove_all(Folder());
  return status;
}
