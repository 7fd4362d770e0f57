// Trains a small character-level GPT on several ranks of this machine; `--help` tells the rest.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ATen/CPUGeneratorImpl.h"
#include "ATen/Context.h"
#include "ATen/ops/multinomial.h"
#include "ATen/ops/randint.h"
#include "ATen/ops/softmax.h"
#include "ATen/ops/stack.h"
#include "ATen/ops/tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/flags.h"
#include "base/status.h"
#include "c10/core/GradMode.h"
#include "ddpopt/ddpopt.h"
#include "ddpopt/distributed/launcher.h"
#include "examples/corpus.h"
#include "examples/gpt.h"
#include "examples/program.h"
#include "nlohmann/json.hpp"
#include "torch/optim/adamw.h"

namespace ddpopt::examples {
namespace {

constexpr char kHelp[] = R"(Trains a small character-level GPT, data-parallel on this machine, and writes a sample of what it learnt.

  train_gpt [--nproc_per_node=N] [--steps=N] [--data=FILE] [--seed=N] [--lr=X] [--bucket_policy=NAME] [--stall_timeout=SECONDS]
            [--trace=PATH] [--json]

  --nproc_per_node=N  ranks (processes), 1 to 256; default 2. Each is started by this program and uses its share of the processors
                      (or OMP_NUM_THREADS threads). Started by a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
                      (as torchrun does), the program is one of that launcher's ranks and this flag is not used.
  --steps=N           training steps; default 160. Each rank sees 16 pieces of 64 characters a step.
  --data=FILE         text to learn, relative to where you are; a character is a byte. Default: files of this project. One tenth of
                      the text, spread over it, is held out for validation.
  --seed=N            for the parameters, the order of the text and the sample; default 1.
  --lr=X              highest learning rate; default 0.002.
  --bucket_policy=NAME  caps (default: gradient buckets of 1 and then 25 MiB), or auto: buckets that a model of the step chooses, from
                      all-reduces and a backward that are measured first; what it expects and what came of it is told.
  --stall_timeout=SECONDS  a rank that the others have waited for that long is named, and the run ends; default 0: after five minutes.
  --trace=PATH        writes PATH.rank<N>.json for each rank: a Chrome trace (ui.perfetto.dev shows it) of steps 3 to 5, in which the buckets'
                      reductions are named.
  --json              makes the last line of standard output a JSON object: initial_loss (first step), final_loss (mean of the last
                      ten steps), val_loss (held-out text), all in nats per character; vocab, corpus_bytes, steps, world_size,
                      seconds and tokens_per_s (of the training loop), buckets (bytes of each gradient bucket, in the order of
                      their reduction), params_equal; with --bucket_policy=auto also auto: took_caps, expected_communication_ms,
                      expected_exposed_ms, expected_exposed_of_caps_ms, communication_ms and exposed_ms (means of a step).
  --help              this text.

Progress goes to standard error. Exit status: 0 success, 1 the training failed (or the ranks ended with different parameters), 2 bad
flags or data.
)";

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

constexpr int64_t kBatch = 16;
constexpr int64_t kContext = 64;
constexpr int64_t kWarmUpSteps = 20;
constexpr int64_t kSampleLength = 240;

struct Options {
  int64_t nproc_per_node = 2;
  int64_t steps = 160;
  std::string data;  // empty: the default text
  int64_t seed = 1;
  double lr = 2e-3;
  double stall_timeout = 0;
  std::string trace;  // empty: none
  std::string bucket_policy = "caps";
  bool json = false;
  bool help = false;
};

absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments) {
  constexpr int64_t kMany = std::numeric_limits<int64_t>::max();
  Options options;
  Flags flags;
  flags.Switch("help", &options.help);
  flags.Switch("json", &options.json);
  flags.Integer("nproc_per_node", &options.nproc_per_node, 1, 256, "a number of ranks from 1 to 256");
  flags.Integer("steps", &options.steps, 1, kMany, "a whole number above 0");
  flags.Integer("seed", &options.seed, 0, kMany, "a whole number, 0 or above");
  flags.Number("lr", &options.lr, 0, "a number above 0");
  flags.NumberFrom("stall_timeout", &options.stall_timeout, 0, "a number of seconds, 0 or above");
  flags.Text("trace", &options.trace, "the beginning of files' paths");
  flags.Text("data", &options.data, "the path of a text");
  AddBucketPolicy(&flags, &options.bucket_policy);
  DDPOPT_RETURN_IF_ERROR(flags.Parse(arguments));
  return options;
}

struct Batch {
  GptInput input;
  at::Tensor next;
};

// Pieces of the text that begin at `begins`, and the characters one further on.
Batch Gather(const Encoded& text, const std::vector<int64_t>& begins) {
  const auto pieces = [&](const at::Tensor& from, int64_t shift) {
    std::vector<at::Tensor> rows;
    for (const int64_t begin : begins) rows.push_back(from.narrow(0, begin + shift, kContext));
    return at::stack(rows);
  };
  return {{pieces(text.characters, 0), pieces(text.pairs, 0), pieces(text.triples, 0)}, pieces(text.characters, 1)};
}

Batch RandomBatch(const Encoded& text, at::Generator& generator) {
  const at::Tensor drawn = at::randint(0, text.characters.numel() - kContext, {kBatch}, generator, at::kLong);
  const int64_t* data = drawn.const_data_ptr<int64_t>();
  return Gather(text, std::vector<int64_t>(data, data + kBatch));
}

// Rises over the first steps, then falls along a cosine to a twentieth.
double LearningRate(double highest, int64_t step, int64_t steps) {
  if (step < kWarmUpSteps) return highest * static_cast<double>(step + 1) / static_cast<double>(kWarmUpSteps);
  const double done = static_cast<double>(step - kWarmUpSteps) / static_cast<double>(std::max<int64_t>(1, steps - kWarmUpSteps));
  return highest * (0.05 + 0.95 * 0.5 * (1 + std::cos(M_PI * done)));
}

// The mean over all ranks.
absl::StatusOr<double> Mean(const ProcessGroup& group, double sum, double count) {
  at::Tensor both = at::tensor({sum, count}, at::kDouble);
  DDPOPT_RETURN_IF_ERROR(group.AllReduceSum(both));
  const double* data = both.const_data_ptr<double>();
  return data[0] / data[1];
}

// The held-out text is dealt to the ranks window by window.
absl::StatusOr<double> ValidationLoss(Gpt& net, const Encoded& text, const ProcessGroup& group) {
  c10::NoGradGuard no_grad;
  double sum = 0, count = 0;
  std::vector<int64_t> begins;
  const auto flush = [&] {
    if (begins.empty()) return;
    const Batch batch = Gather(text, begins);
    const at::Tensor loss = net->forward(batch.input.characters, batch.input.pairs, batch.input.triples, batch.next);
    sum += loss.item<double>() * static_cast<double>(begins.size());
    count += static_cast<double>(begins.size());
    begins.clear();
  };
  int64_t window = 0;
  for (int64_t begin = 0; begin + kContext < text.characters.numel(); begin += kContext) {
    if (window++ % group.world_size() != group.rank()) continue;
    begins.push_back(begin);
    if (static_cast<int64_t>(begins.size()) == kBatch) flush();
  }
  flush();
  return Mean(group, sum, count);
}

std::string Sample(Gpt& net, const Vocabulary& vocabulary, const std::string& prompt, int64_t seed) {
  c10::NoGradGuard no_grad;
  constexpr double kTemperature = 0.7;
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  std::string text = prompt;
  for (int64_t i = 0; i < kSampleLength; ++i) {
    const Encoded encoded = Encode(text, vocabulary, net->config().table);
    const int64_t length = encoded.characters.numel(), seen = std::min(length, kContext);
    const auto last = [&](const at::Tensor& t) { return t.narrow(0, length - seen, seen).unsqueeze(0); };
    const at::Tensor logits = net->Logits({last(encoded.characters), last(encoded.pairs), last(encoded.triples)});
    const at::Tensor probabilities = at::softmax(logits.select(1, seen - 1).squeeze(0) / kTemperature, 0);
    text.push_back(vocabulary.Character(at::multinomial(probabilities, 1, false, generator).item<int64_t>()));
  }
  return text;
}

// Control characters, save line ends, would disturb the terminal.
std::string Printable(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool control = (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    out.push_back(control ? '?' : c);
  }
  return out;
}

absl::Status Train(const Options& flags, absl::string_view text) {
  InitOptions init;
  init.stall_timeout = Milliseconds(flags.stall_timeout);
  DDPOPT_ASSIGN_OR_RETURN(const ProcessGroup group, InitProcessGroup(init));
  const bool first_rank = group.rank() == 0;

  GptConfig config;
  const Vocabulary vocabulary(text);
  config.vocab = vocabulary.size();
  config.context = kContext;
  config.width = 192;
  config.heads = 6;
  config.layers = 4;
  config.table = 9216;
  DDPOPT_ASSIGN_OR_RETURN(const Split split, SplitText(text, kContext, group.rank(), group.world_size()));
  const Encoded train = Encode(split.train, vocabulary, config.table), held_out = Encode(split.held_out, vocabulary, config.table);

  at::manual_seed(static_cast<uint64_t>(flags.seed));
  at::Generator order = at::detail::createCPUGenerator(static_cast<uint64_t>(flags.seed) * 1000 + static_cast<uint64_t>(group.rank()));
  Gpt net(config);
  int64_t parameters = 0;
  for (const at::Tensor& parameter : net->parameters()) parameters += parameter.numel();
  if (first_rank) {
    std::printf("%d characters of text, %d different; %.1f million parameters; %d rank%s\n", static_cast<int>(text.size()),
                static_cast<int>(config.vocab), static_cast<double>(parameters) / 1e6, group.world_size(),
                group.world_size() == 1 ? "" : "s");
    std::fflush(stdout);
  }

  DdpOptions ddp_options;
  ddp_options.bucket_policy = BucketPolicyOf(flags.bucket_policy);
  DDPOPT_ASSIGN_OR_RETURN(const auto ddp, DistributedDataParallel<Gpt>::Create(net, group, ddp_options));
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(flags.lr).betas({0.9, 0.95}).weight_decay(0.01));

  const double tokens_per_step = static_cast<double>(kBatch * kContext * group.world_size());
  double initial_loss = 0;
  std::deque<double> last_losses;
  const auto begin = std::chrono::steady_clock::now();
  Progress progress(first_rank, flags.steps, "tokens");
  // The first steps, in which forward is captured, are no example.
  const int64_t trace_begin = std::min<int64_t>(2, flags.steps - 1), trace_end = trace_begin + 3;
  std::unique_ptr<StepTrace> trace;
  for (int64_t step = 0; step < flags.steps; ++step) {
    if (!flags.trace.empty() && step == trace_begin) {
      DDPOPT_ASSIGN_OR_RETURN(trace, ddp->Trace(UserPath(flags.trace)));
    }
    for (auto& param_group : optimizer.param_groups()) param_group.options().set_lr(LearningRate(flags.lr, step, flags.steps));
    optimizer.zero_grad();
    const Batch batch = RandomBatch(train, order);
    const at::Tensor loss = ddp->forward(batch.input.characters, batch.input.pairs, batch.input.triples, batch.next);
    const double own = loss.item<double>();
    DDPOPT_ASSIGN_OR_RETURN(const double mean, Mean(group, own, 1));
    if (!std::isfinite(own)) {
      return absl::InternalError(absl::StrFormat("the loss became %f at step %d on rank %d", own, step + 1, group.rank()));
    }
    if (!std::isfinite(mean)) {
      return absl::InternalError(
          absl::StrFormat("the loss of another rank became %f at step %d (seen on rank %d)", mean, step + 1, group.rank()));
    }
    loss.backward();
    optimizer.step();

    if (trace != nullptr && (step + 1 == trace_end || step + 1 == flags.steps)) {
      DDPOPT_RETURN_IF_ERROR(trace->Finish());
      trace.reset();
    }
    if (step == 0) initial_loss = mean;
    last_losses.push_back(mean);
    if (last_losses.size() > 10) last_losses.pop_front();
    if (step == 0 && first_rank) {
      std::printf("%s\n", ddp->core().bucket_table().c_str());
      std::fflush(stdout);
    }
    progress.Step(step + 1, mean, tokens_per_step);
  }
  const double seconds = SecondsSince(begin);
  double final_loss = 0;
  for (const double loss : last_losses) final_loss += loss / static_cast<double>(last_losses.size());

  DDPOPT_ASSIGN_OR_RETURN(const double val_loss, ValidationLoss(net, held_out, group));
  const absl::Status equal = ddp->core().CheckParametersEqual();
  DDPOPT_ASSIGN_OR_RETURN(const std::string costs, ddp->core().SummarizeSteps());
  if (first_rank) {
    std::printf("\nA sample (the first 32 characters are given):\n%s\n\n",
                Printable(Sample(net, vocabulary, split.held_out.substr(0, kContext / 2), flags.seed)).c_str());
    std::printf("What a step cost on each rank\n%s\n%s", costs.c_str(), AutoText(ddp->core()).c_str());
    std::printf("loss %.3f at first, %.3f at last, %.3f on held-out text (nats per character); %.1f s, %.0f tokens/s\n", initial_loss,
                final_loss, val_loss, seconds, tokens_per_step * static_cast<double>(flags.steps) / seconds);
    std::printf("%s\n", equal.ok() ? absl::StrFormat("parameters equal on %d ranks", group.world_size()).c_str()
                                   : "parameters differ between ranks");
    if (flags.json) {
      nlohmann::ordered_json buckets = nlohmann::ordered_json::array();
      for (const auto& bucket : ddp->core().reducer_buckets()) buckets.push_back(bucket.bytes);
      nlohmann::ordered_json result = {{"initial_loss", initial_loss},
                                       {"final_loss", final_loss},
                                       {"val_loss", val_loss},
                                       {"vocab", config.vocab},
                                       {"corpus_bytes", text.size()},
                                       {"steps", flags.steps},
                                       {"world_size", group.world_size()},
                                       {"seconds", seconds},
                                       {"tokens_per_s", tokens_per_step * static_cast<double>(flags.steps) / seconds},
                                       {"buckets", buckets},
                                       {"params_equal", equal.ok()}};
      if (ddp->core().auto_report().active) result["auto"] = AutoJson(ddp->core());
      std::printf("%s\n", result.dump().c_str());
    }
    std::fflush(stdout);
  }
  return equal;
}

int Main(int argc, char** argv) {
  const auto fail = [](const absl::Status& status, int exit_status) {
    std::fprintf(stderr, "train_gpt: %s\n", std::string(status.message()).c_str());
    return exit_status;
  };
  const absl::StatusOr<Options> flags = ParseOptions(std::vector<std::string>(argv + 1, argv + argc));
  if (!flags.ok()) {
    fail(flags.status(), kBadUsage);
    std::fprintf(stderr, "Try --help.\n");
    return kBadUsage;
  }
  if (flags->help) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  // Everything that can be wrong is found before any rank starts, and so is said once.
  std::string own_text;
  if (!flags->data.empty()) {
    absl::StatusOr<std::string> read = ReadText(UserPath(flags->data));
    if (!read.ok()) return fail(read.status(), kBadUsage);
    own_text = *std::move(read);
  }
  const absl::string_view text = flags->data.empty() ? DefaultText() : absl::string_view(own_text);
  if (std::getenv("RANK") == nullptr) {
    const absl::StatusOr<Split> split = SplitText(text, kContext, 0, static_cast<int>(flags->nproc_per_node));
    if (!split.ok()) return fail(Annotate(split.status(), flags->data.empty() ? "the default text" : flags->data), kBadUsage);
  }
  if (std::getenv("RANK") == nullptr) ShareProcessors(flags->nproc_per_node);
  if (const absl::optional<int> status = MaybeLaunchSelf(argc, argv, static_cast<int>(flags->nproc_per_node))) return *status;

  const absl::Status trained = CatchAsStatus("training", [&] { return Train(*flags, text); });
  return trained.ok() ? 0 : fail(trained, kFailed);
}

}  // namespace
}  // namespace ddpopt::examples

int main(int argc, char** argv) { return ddpopt::examples::Main(argc, argv); }
