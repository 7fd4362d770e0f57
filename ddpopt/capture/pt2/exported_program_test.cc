#include "ddpopt/capture/pt2/exported_program.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "ATen/core/Dict.h"
#include "ATen/core/List.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using c10::IValue;
using ::testing::ElementsAre;
using testing::ErrorOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using testing::StatusIs;

const std::string kData = "testing/testdata/exported/";

std::shared_ptr<ExportedProgram> Load(const std::string& path) {
  auto program = LoadExportedProgram(kData + path);
  DDPOPT_EXPECT_OK(program);
  return program.ok() ? *program : nullptr;
}

std::vector<std::string> NodeNames(const ExportedProgram& program) {
  std::vector<std::string> names;
  for (const fx::Node* node : program.module()->graph().nodes()) names.emplace_back(node->name());
  return names;
}

TEST(ExportedProgramTest, EveryFormLoadsAndLints) {
  int count = 0;
  for (const char* folder : {"forms", "forms_2_11", "models"}) {
    for (const auto& entry : std::filesystem::directory_iterator(kData + folder)) {
      const auto program = LoadExportedProgram((entry.path() / "model.pt2").string());
      DDPOPT_ASSERT_OK(program);
      DDPOPT_EXPECT_OK((*program)->module()->Lint());
      DDPOPT_EXPECT_OK((*program)->CheckExecutable());
      DDPOPT_EXPECT_OK((*program)->CheckData());
      ++count;
    }
  }
  EXPECT_EQ(count, 21);
}

TEST(ExportedProgramTest, ParametersAreAttributesReadBeforeTheirFirstUse) {
  const auto program = Load("forms/dynamic_batch/model.pt2");
  EXPECT_THAT(NodeNames(*program), ElementsAre("x", "sym_size_int_1", "p_a_weight", "p_a_bias", "linear", "gelu", "p_b_weight", "p_b_bias",
                                               "linear_1", "view", "sum_1", "div", "output"));
  const fx::Node* weight = nullptr;
  for (const fx::Node* node : program->module()->graph().nodes()) weight = node->name() == "p_a_weight" ? node : weight;
  EXPECT_EQ(weight->path(), "a.weight");
  EXPECT_TRUE(weight->meta().is_parameter);
  EXPECT_THAT(weight->meta().val.toTensor(), testing::HasShape({20, 12}));
  ASSERT_EQ(program->parameters().size(), 4u);
  EXPECT_EQ(program->parameters()[0].name, "a.weight");
  EXPECT_TRUE(program->parameters()[0].tensor.requires_grad());
  EXPECT_TRUE(program->parameters()[0].tensor.is_leaf());
  EXPECT_EQ(program->module()->FindAttr("a.weight")->value.toTensor().unsafeGetTensorImpl(),
            program->parameters()[0].tensor.unsafeGetTensorImpl());
}

TEST(ExportedProgramTest, MetadataOfNodes) {
  const auto program = Load("forms/dynamic_batch/model.pt2");
  for (const fx::Node* node : program->module()->graph().nodes()) {
    if (node->name() != "linear") continue;
    EXPECT_EQ(node->meta().nn_module, "a");
    EXPECT_EQ(node->meta().custom.at("symbolic").toStringRef(), "float32[s77, 20]");
    EXPECT_THAT(node->meta().val.toTensor(), testing::HasShape({4, 20}));
    EXPECT_THAT(node->meta().stack_trace, HasSubstr("in forward"));
  }
}

TEST(ExportedProgramTest, OpenSizesWithinTheirRange) {
  const auto program = Load("forms/dynamic_batch/model.pt2");
  for (const int64_t batch : {2, 3, 64}) {
    const std::vector<IValue> outputs = program->RunFlat({at::ones({batch, 12})});
    ASSERT_EQ(outputs.size(), 1u);
    EXPECT_THAT(outputs[0].toTensor(), testing::HasShape({batch}));
    EXPECT_THAT(program->BindInputs({at::ones({batch, 12})}), testing::IsOkAndHolds(ElementsAre(Pair("s77", batch))));
  }
  const auto error = [&](std::vector<IValue> inputs) { return ErrorOf([&] { program->RunFlat(inputs); }); };
  EXPECT_THAT(error({at::ones({65, 12})}), HasSubstr("input \"x\", dimension 0 makes s77 = 65, which must be between 2 and 64"));
  EXPECT_THAT(error({at::ones({1, 12})}), HasSubstr("s77 = 1"));
  EXPECT_THAT(error({at::ones({4, 11})}), HasSubstr("input \"x\", dimension 1 is 11, but the program was exported for 12 alone"));
  EXPECT_THAT(error({at::ones({4, 12, 1})}), HasSubstr("input \"x\" has 3 dimensions"));
  EXPECT_THAT(error({at::ones({4, 12}, at::kDouble)}), HasSubstr("Double"));
  EXPECT_THAT(error({IValue(3)}), HasSubstr("must be a tensor, not 3"));
  EXPECT_THAT(error({}), HasSubstr("takes 1 inputs, but 0 were given"));
}

TEST(ExportedProgramTest, FixedValuesAreCompared) {
  const auto program = Load("forms/values_in/model.pt2");
  const at::Tensor x = at::ones({5, 6});
  EXPECT_THAT(program->RunFlat({x, 3, 0.5, true})[0].toTensor(), testing::HasShape({3, 6}));
  EXPECT_THAT(ErrorOf([&] {
                program->RunFlat({x, 4, 0.5, true});
              }),
              HasSubstr("input \"n\" is 4, but the program was exported for 3 alone"));
  EXPECT_THAT(ErrorOf([&] { program->RunFlat({x, 3, 0.25, true}); }), HasSubstr("input \"s\" is 0.25"));
  EXPECT_THAT(ErrorOf([&] { program->RunFlat({x, 3, 0.5, false}); }), HasSubstr("input \"flag\" is False"));
  EXPECT_THAT(ErrorOf([&] { program->RunFlat({x, 3.0, 0.5, true}); }), HasSubstr("input \"n\" is 3"));
}

TEST(ExportedProgramTest, TreesOfInputsAndOutputs) {
  const auto program = Load("forms/nested_inputs_outputs/model.pt2");
  const at::Tensor x = at::ones({2, 6});
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  c10::impl::GenericList inner(c10::AnyType::get());
  inner.push_back(at::zeros({6}));
  dict.insert("inner", inner);
  dict.insert("x", x);
  const IValue pair = c10::ivalue::Tuple::create({IValue(at::ones({2, 6})), IValue(at::ones({3}))});
  const IValue result = program->Run({IValue(dict), pair});
  const auto out = result.toGenericDict();
  EXPECT_EQ(out.at("same").toTensor().unsafeGetTensorImpl(), x.unsafeGetTensorImpl());
  EXPECT_EQ(out.at("t").toTupleRef().elements()[1].toList().get(1).toInt(), 2);
  EXPECT_THAT(ErrorOf([&] { program->Run({IValue(dict)}); }), HasSubstr("inputs[0]: expected a tuple of 2, got a tuple of 1"));
  // By keyword it was not exported.
  EXPECT_THAT(ErrorOf([&] { program->Run({IValue(dict), pair}, {{"extra", IValue(1)}}); }), HasSubstr("inputs[1]"));
}

TEST(ExportedProgramTest, BuffersAndInputsAreWritten) {
  const auto program = Load("forms/mutated_buffers/model.pt2");
  EXPECT_THAT(program->mutated_buffers(), ElementsAre("ema", "steps"));
  EXPECT_THAT(program->mutated_inputs(), IsEmpty());
  const int64_t before = program->FindTensor("steps")->item<int64_t>();
  program->RunFlat({at::ones({3, 4})});
  EXPECT_EQ(program->FindTensor("steps")->item<int64_t>(), before + 1);

  const auto decomposed = Load("forms/batchnorm_decomposed/model.pt2");
  EXPECT_THAT(decomposed->mutated_buffers(), ElementsAre("n.num_batches_tracked", "n.running_mean", "n.running_var"));

  const auto writes_input = Load("forms/mutated_input/model.pt2");
  EXPECT_THAT(writes_input->mutated_inputs(), ElementsAre("cache"));
  const at::Tensor cache = at::zeros({3, 4});
  writes_input->RunFlat({at::ones({3, 4}), cache});
  EXPECT_FALSE(at::equal(cache, at::zeros({3, 4})));
}

TEST(ExportedProgramTest, GraphFilesHaveNoData) {
  const auto program = Load("graphs/resnet50.model.json.gz");
  DDPOPT_EXPECT_OK(program->module()->Lint());
  EXPECT_THAT(program->CheckData(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has no data")));
  EXPECT_EQ(program->parameters().size(), 161u);
  const std::string name = program->parameters()[0].name;
  const at::Tensor old = program->parameters()[0].tensor;
  const at::Tensor data = at::ones(old.sizes());
  DDPOPT_ASSERT_OK(program->SetTensor(name, data));
  EXPECT_THAT(*program->FindTensor(name), testing::TensorEq(data));
  EXPECT_TRUE(program->parameters()[0].tensor.requires_grad());
  EXPECT_THAT(program->SetTensor(name, at::ones({1})), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  EXPECT_THAT(program->SetTensor("nothing", data), StatusIs(absl::StatusCode::kNotFound));
}

TEST(ExportedProgramTest, WrongFiles) {
  EXPECT_THAT(LoadExportedProgram("/no/such/file.pt2"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/file.pt2")));
  EXPECT_THAT(LoadExportedProgram(kData + "README.md"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("README.md")));
  EXPECT_THAT(ParseExportedProgram("{}"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("schema_version")));
  EXPECT_THAT(ParseExportedProgram(R"({"graph_module": {}, "schema_version": {"major": 9, "minor": 0}})"),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("expected 8.0 to 8.20")));
  EXPECT_THAT(ParseExportedProgram(R"({"graph_module": {}, "schema_version": {"major": 8, "minor": 21}})"),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("got 8.21")));
}

}  // namespace
}  // namespace ddpopt
