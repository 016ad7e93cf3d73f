// The decoder-only transformer: pre-norm blocks of causal attention and a GELU network, learned
// positions, and a head that shares the token table (Radford et al. 2019; Press and Wolf 2017,
// "Using the output embedding to improve language models").
#include <cmath>
#include <limits>

#include "worker/model/model_factories.h"
#include "worker/model/recompute.h"
#include "worker/model/sampler.h"
#include "worker/model/torch_model.h"

namespace slackline::worker {
namespace {

constexpr double kNormEpsilon = 1e-5;

// Positions in ModelParameters().
constexpr size_t kTokenTable = 0;
constexpr size_t kPositionTable = 1;
constexpr size_t kFirstBlock = 2;
enum BlockParameter : size_t {
  kNorm1 = 0,  // Each is a weight, and its bias behind it.
  kQkv = 2,
  kOut = 4,
  kNorm2 = 6,
  kUp = 8,
  kDown = 10,
  kBlockParameters = 12,
};

class Gpt final : public TorchModel {
 public:
  Gpt(const ModelConfig& config, const ModelOptions& options)
      : TorchModel(config, options), shape_(config.gpt), recompute_(options.recompute) {
    const int64_t context = shape_.context;
    mask_ = at::full({context, context}, -std::numeric_limits<float>::infinity()).triu(1);
  }

  Result<std::string> Generate(const GenerateOptions& options) override {
    std::vector<int64_t> tokens;
    for (const char c : options.prompt) tokens.push_back(static_cast<unsigned char>(c));
    if (tokens.empty()) return Err(InvalidArgument("--prompt: expected at least one character"));
    std::string text;
    Sampler sampler(options.temperature, options.top_k, options.seed);
    const auto vocabulary = static_cast<size_t>(shape_.vocabulary);
    for (int64_t i = 0; i < options.tokens; ++i) {
      const size_t length = std::min(tokens.size(), static_cast<size_t>(shape_.context));
      Batch batch;
      batch.samples = 1;
      batch.positions = length;
      batch.tokens.assign(tokens.end() - static_cast<ptrdiff_t>(length), tokens.end());
      batch.targets.assign(length, 0);
      SLACKLINE_ASSIGN_OR_RETURN(const std::vector<float> logits, Logits(batch));
      const size_t token = sampler.Pick(std::span(logits).last(vocabulary));
      tokens.push_back(static_cast<int64_t>(token));
      text.push_back(static_cast<char>(token));
    }
    return text;
  }

 protected:
  Status CheckBatch(const Batch& batch) const override {
    const size_t count = batch.samples * batch.positions;
    if (count == 0 || batch.positions > static_cast<size_t>(shape_.context) ||
        batch.tokens.size() != count || batch.targets.size() != count) {
      return InvalidArgument("gpt: a batch of " + std::to_string(batch.samples) + " x " +
                             std::to_string(batch.positions) +
                             " tokens: expected text and at most " +
                             std::to_string(shape_.context) + " tokens a sample");
    }
    for (const auto* list : {&batch.tokens, &batch.targets}) {
      for (const int64_t token : *list) {
        if (token < 0 || token >= shape_.vocabulary) {
          return InvalidArgument("gpt: token " + std::to_string(token) + ": expected below " +
                                 std::to_string(shape_.vocabulary));
        }
      }
    }
    return OkStatus();
  }

  at::Tensor ComputeLogits(const Batch& batch) override {
    const auto samples = static_cast<int64_t>(batch.samples);
    const auto positions = static_cast<int64_t>(batch.positions);
    const at::Tensor tokens =
        at::from_blob(const_cast<int64_t*>(batch.tokens.data()), {samples, positions}, at::kLong);
    Need(kTokenTable, kFirstBlock);
    at::Tensor x = at::embedding(parameter(kTokenTable), tokens) +
                   parameter(kPositionTable).slice(0, 0, positions);
    x = x.view({samples * positions, shape_.width});
    size_t first = kFirstBlock;
    for (int64_t layer = 0; layer < shape_.layers; ++layer, first += kBlockParameters) {
      Need(first, first + kBlockParameters);
      const auto block = [this, first, samples, positions](const at::Tensor& in) {
        const Autocast autocast(compute());  // Backward calls it outside of Forward's.
        return Block(first, in, samples, positions);
      };
      x = recompute_ ? Recomputed(block, x) : block(x);
    }
    Need(first, first + 2);
    return at::linear(Norm(x, first), parameter(kTokenTable));
  }

 private:
  at::Tensor Block(size_t first, const at::Tensor& in, int64_t samples, int64_t positions) const {
    const at::Tensor x = in + Attention(first, Norm(in, first + kNorm1), samples, positions);
    const at::Tensor up = at::gelu(Linear(Norm(x, first + kNorm2), first + kUp));
    return x + Linear(up, first + kDown);
  }

  at::Tensor Norm(const at::Tensor& x, size_t index) const {
    return at::layer_norm(x, {shape_.width}, parameter(index), parameter(index + 1), kNormEpsilon);
  }

  at::Tensor Linear(const at::Tensor& x, size_t index) const {
    return at::linear(x, parameter(index), parameter(index + 1));
  }

  // x: [samples * positions, width], normed.
  at::Tensor Attention(size_t block, const at::Tensor& x, int64_t samples,
                       int64_t positions) const {
    const int64_t depth = shape_.width / shape_.heads;
    const std::vector<at::Tensor> qkv = Linear(x, block + kQkv)
                                            .view({samples, positions, 3, shape_.heads, depth})
                                            .permute({2, 0, 3, 1, 4})
                                            .reshape({3, samples * shape_.heads, positions, depth})
                                            .unbind(0);
    const at::Tensor mask = mask_.slice(0, 0, positions).slice(1, 0, positions);
    const at::Tensor scores =
        at::baddbmm(mask.unsqueeze(0), qkv[0], qkv[1].transpose(1, 2), /*beta=*/1,
                    /*alpha=*/1.0 / std::sqrt(static_cast<double>(depth)));
    const at::Tensor mixed = at::bmm(at::softmax(scores, -1), qkv[2])
                                 .view({samples, shape_.heads, positions, depth})
                                 .transpose(1, 2)
                                 .reshape({samples * positions, shape_.width});
    return Linear(mixed, block + kOut);
  }

  const GptConfig shape_;
  const bool recompute_;
  at::Tensor mask_;  // [context, context]: 0 where a position may look, else -infinity.
};

}  // namespace

std::unique_ptr<Model> MakeGpt(const ModelConfig& config, const ModelOptions& options) {
  return std::make_unique<Gpt>(config, options);
}

}  // namespace slackline::worker
