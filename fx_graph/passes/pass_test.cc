#include "fx_graph/passes/pass.h"

#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "testing/matchers.h"

namespace ddpopt::fx {
namespace {

using testing::IsOk;
using testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Named : public Pass {
 public:
  explicit Named(std::string text) : text_(std::move(text)) {}
  absl::string_view name() const override { return "named"; }
  std::string ToString() const override { return text_; }
  absl::StatusOr<bool> Run(GraphModule&) const override { return false; }

 private:
  std::string text_;
};

PassRegistry Registry() {
  PassRegistry registry;
  EXPECT_THAT(registry.Add("plain", "does nothing",
                           [](const PassOptions& options) -> absl::StatusOr<std::unique_ptr<Pass>> {
                             if (absl::Status status = CheckPassOptions(options, {}); !status.ok()) return status;
                             return std::make_unique<Named>("plain");
                           }),
              IsOk());
  EXPECT_THAT(registry.Add("chosen", "does nothing, in two ways",
                           [](const PassOptions& options) -> absl::StatusOr<std::unique_ptr<Pass>> {
                             if (absl::Status status = CheckPassOptions(options, {"fast", "text"}); !status.ok()) return status;
                             const absl::StatusOr<bool> fast = BoolPassOption(options, "fast", false);
                             if (!fast.ok()) return fast.status();
                             return std::make_unique<Named>(std::string(*fast ? "fast" : "slow") +
                                                            (options.count("text") ? options.at("text") : ""));
                           }),
              IsOk());
  return registry;
}

std::vector<std::string> Texts(const absl::StatusOr<std::vector<std::unique_ptr<Pass>>>& passes) {
  std::vector<std::string> texts;
  if (!passes.ok()) return {passes.status().ToString()};
  for (const auto& pass : *passes) texts.push_back(pass->ToString());
  return texts;
}

TEST(PassRegistry, NamesAreUniqueIdentifiers) {
  PassRegistry registry = Registry();
  const auto factory = [](const PassOptions&) { return std::make_unique<Named>("x"); };
  EXPECT_THAT(registry.Add("plain", "again", factory), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("\"plain\"")));
  for (const char* name : {"", "a b", "1a", "a-b", "a,b"}) {
    EXPECT_THAT(registry.Add(name, "", factory), StatusIs(absl::StatusCode::kInvalidArgument)) << name;
  }
  EXPECT_THAT(registry.names(), ElementsAre("chosen", "plain"));
  EXPECT_EQ(registry.description("plain"), "does nothing");
}

TEST(PassRegistry, CreatesByName) {
  const PassRegistry registry = Registry();
  EXPECT_EQ((*registry.Create("plain"))->ToString(), "plain");
  EXPECT_THAT(registry.Create("gone").status(),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("\"gone\""), HasSubstr("chosen, plain"))));
  EXPECT_THAT(registry.Create("plain", {{"fast", "true"}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("pass plain: there is no option \"fast\"; there are: none")));
  EXPECT_THAT(registry.Create("chosen", {{"fast", "1"}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("option fast must be true or false, not \"1\"")));
}

TEST(PassRegistry, ReadsPipelines) {
  const PassRegistry registry = Registry();
  EXPECT_THAT(Texts(registry.CreatePipeline("")), ElementsAre());
  EXPECT_THAT(Texts(registry.CreatePipeline("  ")), ElementsAre());
  EXPECT_THAT(Texts(registry.CreatePipeline("plain")), ElementsAre("plain"));
  EXPECT_THAT(Texts(registry.CreatePipeline(" plain , chosen{ fast = true , text = a b } , chosen{} ,plain")),
              ElementsAre("plain", "fasta b", "slow", "plain"));
}

TEST(PassRegistry, PipelineErrorsTellThePosition) {
  const PassRegistry registry = Registry();
  const auto error = [&](const char* text) { return std::string(registry.CreatePipeline(text).status().message()); };
  EXPECT_THAT(error("plain,"), HasSubstr("at column 7: expected the name of a pass"));
  EXPECT_THAT(error(",plain"), HasSubstr("at column 1: expected the name of a pass"));
  EXPECT_THAT(error("plain plain"), HasSubstr("at column 7: expected ','"));
  EXPECT_THAT(error("chosen{fast}"), HasSubstr("at column 12: expected '=' after option fast"));
  EXPECT_THAT(error("chosen{fast=true"), HasSubstr("at column 17: expected '}'"));
  EXPECT_THAT(error("chosen{=true}"), HasSubstr("at column 8: expected the name of an option"));
  EXPECT_THAT(error("chosen{fast=true,fast=false}"), HasSubstr("option fast only once"));
  EXPECT_THAT(error("plain,gone"), HasSubstr("no pass \"gone\""));
}

}  // namespace
}  // namespace ddpopt::fx
