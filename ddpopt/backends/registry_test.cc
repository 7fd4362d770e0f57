#include "ddpopt/backends/registry.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ATen/Functions.h"
#include "fake_tensor/fake_tensor_mode.h"
#include "fx_graph/graph_module.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"
#include "testing/matchers.h"

namespace ddpopt {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using testing::IsOk;
using testing::StatusIs;

CompileFn Refusing() {
  return [](std::shared_ptr<const fx::GraphModule>, const std::vector<c10::IValue>&, const CompileContext&)
             -> absl::StatusOr<std::shared_ptr<const CompiledPiece>> { return absl::UnimplementedError("never"); };
}

TEST(Registry, HasTheLaddersBackendsAndUsers) {
  EXPECT_THAT(BackendNames(), IsSupersetOf({"aot_eager", "eager"}));
  EXPECT_THAT(RegisterBackend("of_a_user", Refusing), IsOk());
  EXPECT_THAT(BackendNames(), IsSupersetOf({"aot_eager", "eager", "of_a_user"}));
  const auto found = FindBackend("of_a_user");
  ASSERT_THAT(found, IsOk());
  EXPECT_THAT((*found)(nullptr, {}, {}).status(), StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("never")));
  EXPECT_THAT(RegisterBackend("of_a_user", Refusing), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'of_a_user'")));
}

TEST(Registry, ErrorsTellWhatThereIs) {
  EXPECT_THAT(FindBackend("inductor"),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("'inductor'"), HasSubstr("aot_eager, eager"))));
  for (const char* name : {"", "off", "Eager", "a b"}) {
    EXPECT_THAT(RegisterBackend(name, Refusing), StatusIs(absl::StatusCode::kInvalidArgument)) << name;
  }
  EXPECT_THAT(RegisterBackend("nothing", nullptr), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'nothing'")));
  ASSERT_THAT(RegisterBackend("gives_nothing", [] { return CompileFn(); }), IsOk());
  EXPECT_THAT(FindBackend("gives_nothing"), StatusIs(absl::StatusCode::kInternal, HasSubstr("'gives_nothing'")));
}

TEST(Registry, SeveralThreads) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 50; ++i) {
        EXPECT_THAT(RegisterBackend("thread" + std::to_string(t) + "." + std::to_string(i), Refusing), IsOk());
        EXPECT_THAT(FindBackend("eager"), IsOk());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Each rung compiles a piece that computes the same.
TEST(Ladder, ByName) {
  auto gm = std::make_shared<fx::GraphModule>();
  fx::Node* x = gm->graph().Placeholder("x");
  gm->graph().Output(fx::Argument::Tuple({gm->graph().CallFunction(testing::FindOperator("aten::sin", ""), {x})}));
  const at::Tensor input = at::arange(3, at::kFloat);
  for (const char* rung : {"eager", "aot_eager"}) {
    SCOPED_TRACE(rung);
    const auto choice = ChooseBackend(rung);
    ASSERT_THAT(choice, IsOk());
    EXPECT_TRUE(choice->capture);
    const auto mode = FakeTensorMode::Create();
    const auto piece = choice->backend(gm, {mode->FromReal(input)}, {"submod_0"});
    ASSERT_THAT(piece, IsOk());
    EXPECT_EQ((*piece)->interprets_graph(), std::string(rung) == "eager");
    EXPECT_THAT((*piece)->Call({input}).toTupleRef().elements()[0].toTensor(), testing::TensorEq(input.sin()));
  }
  const auto off = ChooseBackend("off");
  ASSERT_THAT(off, IsOk());
  EXPECT_FALSE(off->capture);
  EXPECT_FALSE(off->backend);
  EXPECT_THAT(ChooseBackend("on"), StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("'on'"), HasSubstr("eager"), HasSubstr("and off"))));
}

TEST(Ladder, ByEnvironment) {
  ::unsetenv(kBackendVariable);
  auto choice = BackendFromEnvironment();
  ASSERT_THAT(choice, IsOk());
  EXPECT_FALSE(choice->has_value());
  ::setenv(kBackendVariable, "", 1);
  choice = BackendFromEnvironment();
  ASSERT_THAT(choice, IsOk());
  EXPECT_FALSE(choice->has_value());
  ::setenv(kBackendVariable, "off", 1);
  choice = BackendFromEnvironment();
  ASSERT_THAT(choice, IsOk());
  ASSERT_TRUE(choice->has_value());
  EXPECT_FALSE((*choice)->capture);
  ::setenv(kBackendVariable, "aot_eager", 1);
  choice = BackendFromEnvironment();
  ASSERT_THAT(choice, IsOk());
  EXPECT_EQ((*choice)->name, "aot_eager");
  EXPECT_TRUE((*choice)->backend);
  ::setenv(kBackendVariable, "aot", 1);
  EXPECT_THAT(BackendFromEnvironment(),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("DDPOPT_BACKEND"), HasSubstr("'aot'"), HasSubstr("aot_eager"))));
  ::unsetenv(kBackendVariable);
}

}  // namespace
}  // namespace ddpopt
