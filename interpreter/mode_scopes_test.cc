#include "interpreter/mode_scopes.h"

#include <optional>
#include <string>

#include "ATen/autocast_mode.h"
#include "c10/core/GradMode.h"
#include "c10/core/InferenceMode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/calls.h"

namespace ddpopt {
namespace {

using c10::IValue;
using testing::ErrorOf;
using ::testing::HasSubstr;
using Function = ModeScopes::Function;

struct State {
  bool grad = c10::GradMode::is_enabled();
  bool inference = c10::InferenceMode::is_enabled();
  bool autocast = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  bool cache = at::autocast::is_autocast_cache_enabled();
  bool operator==(const State&) const = default;
};

const IValue kBFloat16 = static_cast<int64_t>(at::kBFloat16);
const IValue kHalf = static_cast<int64_t>(at::kHalf);

TEST(ModeScopes, KnowsTorchsNames) {
  EXPECT_EQ(ModeScopes::Find("torch._C._set_grad_enabled"), Function::kSetGradEnabled);
  EXPECT_EQ(ModeScopes::Find("torch.amp.autocast_mode._enter_autocast"), Function::kEnterAutocast);
  EXPECT_EQ(ModeScopes::Find("torch.amp._exit_autocast"), Function::kExitAutocast);
  EXPECT_EQ(ModeScopes::Find("torch.autograd.grad_mode._enter_inference_mode"), Function::kEnterInferenceMode);
  EXPECT_EQ(ModeScopes::Find("torch.autograd.grad_mode._exit_inference_mode"), Function::kExitInferenceMode);
  EXPECT_EQ(ModeScopes::Find("my._set_grad_enabled"), std::nullopt);
  EXPECT_EQ(ModeScopes::Find("torch.relu"), std::nullopt);
}

TEST(ModeScopes, EntersAndLeaves) {
  const State before;
  ModeScopes scopes;
  scopes.Run(Function::kSetGradEnabled, {false});
  EXPECT_FALSE(c10::GradMode::is_enabled());
  const IValue outer = scopes.Run(Function::kEnterAutocast, {"cpu", kBFloat16, true, false});
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
  const IValue inner = scopes.Run(Function::kEnterAutocast, {"cpu", kHalf, true, IValue()});
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  scopes.Run(Function::kExitAutocast, {inner});
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
  const IValue off = scopes.Run(Function::kEnterAutocast, {"cpu", IValue(), false, IValue()});
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  scopes.Run(Function::kExitAutocast, {off});
  scopes.Run(Function::kExitAutocast, {outer});
  scopes.Run(Function::kSetGradEnabled, {true});
  EXPECT_EQ(State(), before);
}

TEST(ModeScopes, RestoresWhatIsStillOpen) {
  const State before;
  {
    ModeScopes scopes;
    scopes.Run(Function::kSetGradEnabled, {false});
    scopes.Run(Function::kEnterAutocast, {"cpu", kHalf, true, true});
    scopes.Run(Function::kEnterInferenceMode, {true});
    scopes.Run(Function::kSetGradEnabled, {true});
    scopes.Run(Function::kSetGradEnabled, {false});
    EXPECT_TRUE(c10::InferenceMode::is_enabled());
    EXPECT_FALSE(State() == before);
  }
  EXPECT_EQ(State(), before);
}

TEST(ModeScopes, InferenceModeNests) {
  ModeScopes scopes;
  const IValue outer = scopes.Run(Function::kEnterInferenceMode, {true});
  const IValue inner = scopes.Run(Function::kEnterInferenceMode, {false});
  EXPECT_FALSE(c10::InferenceMode::is_enabled());
  EXPECT_THAT(ErrorOf([&] { scopes.Run(Function::kExitInferenceMode, {outer}); }), HasSubstr("must nest"));
  scopes.Run(Function::kExitInferenceMode, {inner});
  EXPECT_TRUE(c10::InferenceMode::is_enabled());
  scopes.Run(Function::kExitInferenceMode, {outer});
  EXPECT_FALSE(c10::InferenceMode::is_enabled());
}

TEST(ModeScopes, RefusesWhatDoesNotFit) {
  ModeScopes scopes;
  const State before;
  EXPECT_THAT(ErrorOf([&] { scopes.Run(Function::kSetGradEnabled, {}); }), HasSubstr("_set_grad_enabled: takes 1"));
  EXPECT_THAT(ErrorOf([&] { scopes.Run(Function::kSetGradEnabled, {1}); }), HasSubstr("must be a bool, not Int"));
  EXPECT_THAT(ErrorOf([&] { scopes.Run(Function::kEnterAutocast, {"cpu"}); }), HasSubstr("_enter_autocast: takes 4"));
  EXPECT_THAT(ErrorOf([&] { scopes.Run(Function::kEnterAutocast, {1, IValue(), true, true}); }), HasSubstr("'device_type'"));
  EXPECT_THAT(ErrorOf([&] { scopes.Run(Function::kEnterAutocast, {"cpu", "bf16", true, true}); }), HasSubstr("'dtype'"));
  EXPECT_THAT(ErrorOf([&] { scopes.Run(Function::kExitAutocast, {7}); }), HasSubstr("not open"));
  EXPECT_THAT(ErrorOf([&] { scopes.Run(Function::kExitAutocast, {"x"}); }), HasSubstr("not by String"));
  const IValue handle = scopes.Run(Function::kEnterAutocast, {"cpu", kBFloat16, true, true});
  EXPECT_THAT(ErrorOf([&] { scopes.Run(Function::kExitInferenceMode, {handle}); }), HasSubstr("not open"));
  scopes.Run(Function::kExitAutocast, {handle});
  EXPECT_THAT(ErrorOf([&] { scopes.Run(Function::kExitAutocast, {handle}); }), HasSubstr("not open"));
  // As in PyTorch: autocast to float32 is no autocast.
  const IValue none = scopes.Run(Function::kEnterAutocast, {"cpu", static_cast<int64_t>(at::kFloat), true, true});
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  scopes.Run(Function::kExitAutocast, {none});
  EXPECT_EQ(State(), before);
}

}  // namespace
}  // namespace ddpopt
